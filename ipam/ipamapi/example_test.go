// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// A network with its gateway, and a container.
func Example() {
	ctx := context.Background()
	l, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
	if err != nil {
		log.Fatal(err)
	}
	d, err := ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Records: ipamapi.NewMemoryRecords()})
	if err != nil {
		log.Fatal(err)
	}
	pool, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pool.PoolID)
	for _, options := range []map[string]string{
		{ipamapi.RequestAddressType: ipamapi.Gateway},
		{ipamapi.EndpointName: "web", ipamapi.EndpointMAC: "02:42:ac:11:00:02"},
	} {
		ip, _, err := d.RequestAddress(pool.PoolID, nil, options)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(ip)
	}
	for _, lease := range l.Leases() {
		fmt.Println(lease.Addr, lease.Purpose, lease.Key)
	}
	// Output:
	// LocalDefault/172.17.0.0/16
	// 172.17.0.1/16
	// 172.17.0.2/16
	// 172.17.0.1 infra LocalDefault/172.17.0.0/16/gateway/gateway#1
	// 172.17.0.2 docker LocalDefault/172.17.0.0/16/web/02:42:ac:11:00:02#any
}
