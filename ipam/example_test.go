// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

// An address for a pod that has to be confirmed, and one that nobody confirms.
func Example() {
	uptime := time.Hour
	l, err := ledger.Open(context.Background(), journal.NewMemory(), ledger.Options{Uptime: func() time.Duration { return uptime }})
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := ipam.New(context.Background(), ipam.Deps{
		Ledger: l, Config: &config{mode: "kubernetes", v4: true, v6: true}, Node: node{"10.1.5.0/24", "fd00::/120"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	web, _, _ := m.AllocateNextWithExpiration("ipv4", "default/web", 10*time.Minute)
	fmt.Println(web.IP, m.StopExpirationTimer(web.IP, web.ExpirationUUID))
	_, db, _ := m.AllocateNextWithExpiration("ipv6", "default/db", 10*time.Minute)
	fmt.Println(db.IP)
	uptime += time.Hour
	fmt.Println(m.Dump())
	fmt.Println(m.ReleaseIPString("default/web"))
	// Output:
	// 10.1.5.1 <nil>
	// fd00::1
	// map[10.1.5.1:default/web] map[] IPv4: 1/254 allocated from 10.1.5.0/24, IPv6: 0/254 allocated from fd00::/120
	// <nil>
}
