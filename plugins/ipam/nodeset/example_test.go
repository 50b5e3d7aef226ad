// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset_test

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// The operator wants two addresses back; a pod has one of them.
func ExampleRead() {
	set := &kv.NetResourceSet{
		Name: "node-a",
		Pool: map[string]*kv.NetResource{"10.0.0.7": {}, "10.0.0.8": {}, "10.0.0.16/28": {}, "here": {}},
		Releases: map[string]string{
			"10.0.0.7": string(handshake.Marked),
			"10.0.0.8": string(handshake.Marked),
		},
	}
	leased := netip.MustParsePrefix("10.0.0.7/32")
	usable := nodeset.Read(set, nodeset.Rules{
		Leased: func(block netip.Prefix) bool { return block.Overlaps(leased) },
	})
	fmt.Println("open:", usable.Open)
	fmt.Println("refused:", usable.Refused)
	for _, p := range usable.Problems {
		fmt.Println(p.Key, p.Text)
	}
	// Output:
	// open: [10.0.0.7/32 10.0.0.16/28]
	// refused: map[10.0.0.7:true]
	// here is neither an address nor a block like 10.1.4.0/28
}
