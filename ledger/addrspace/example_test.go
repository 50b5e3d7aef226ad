// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace_test

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Node 5 of a cluster whose pods are in 10.1.0.0/16, a /24 for each node.
func ExampleNodePrefix() {
	fmt.Println(addrspace.NodePrefix(netip.MustParsePrefix("10.1.0.0/16"), 24, 5))
	// Output: 10.1.5.0/24 <nil>
}

func ExampleSpace() {
	s := addrspace.New(netip.MustParsePrefix("10.1.5.0/24"))
	first, _ := s.TakeNextAddr(netip.Addr{})
	part, _ := s.TakeNext(netip.Addr{}, 28)
	fmt.Println(first, part, s.Free())
	// Output: 10.1.5.0 10.1.5.16/28 239
}
