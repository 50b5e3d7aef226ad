// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/operator/blocks"
)

func Example() {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := blocks.New(blocks.Policy{CoolDown: time.Minute})
	if err := s.AddRange(blocks.Range{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Bits: 24}); err != nil {
		fmt.Println(err)
		return
	}
	s.Reserve(netip.MustParsePrefix("10.1.0.0/20"))
	a, b := blocks.NewOwner("a", "uid-1"), blocks.NewOwner("b", "uid-2")
	fmt.Println(s.Allocate(a, nil, now))
	fmt.Println(s.Allocate(a, nil, now)) // it has one
	fmt.Println(s.Allocate(b, []int{26}, now))
	fmt.Println(s.Occupy(b, netip.MustParsePrefix("10.1.16.0/24"), now))
	fmt.Println(s.Release(a, now)) // b holds it
	stat := s.Stat(now)
	fmt.Println(stat.Owners, stat.Ranges[0].Free(), stat.Ranges[0].Capacity)
	// Output:
	// [10.1.16.0/24] <nil>
	// [10.1.16.0/24] <nil>
	// [10.1.17.0/26] <nil>
	// CIDR is taken: 10.1.16.0/24 of node "b" overlaps 10.1.16.0/24 of node "a"
	// <nil>
	// 1 238 256
}
