// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// 10.1.0.0/16 is full: node 5 moves to a pool with larger blocks.
func ExampleMake() {
	wanted, err := poolplan.Parse([]byte(`
pools:
- name: pods-2
  ranges:
  - cidr: 10.2.0.0/16
    oneNodePrefixLen: 23
- name: default
  state: draining
`))
	if err != nil {
		panic(err)
	}
	first := poolplan.FromCluster(addrplan.Cluster{Families: []addrplan.Family{
		{Pods: netip.MustParsePrefix("10.1.0.0/16"), PodsOneNode: 24},
	}})
	plan := poolplan.Make(poolplan.Situation{
		Pools: []poolplan.Pool{first},
		Nodes: []*kv.NodeRecord{{Id: 5, Name: "node-a"}},
	}, wanted)
	if err := plan.Text(os.Stdout); err != nil {
		panic(err)
	}
	for _, move := range plan.Moves {
		fmt.Println("node", move.NodeID, "drains", move.Drains, "opens", move.Opens)
	}
	// Output:
	// CHANGE  POOL     NETWORK  RANGE                   STATE               GENERATION
	// add     pods-2   default  10.2.0.0/16 cut in /23  active              1
	// drain   default  default  10.1.0.0/16 cut in /24  active -> draining  1 -> 2
	//
	// NODE        POOL     DRAINS       LEASES  OPENS                KEEPS
	// 5 (node-a)  default  10.1.5.0/24  ?       pods-2 10.2.10.0/23  -
	//
	// 1 block drains, 0 leases stay: pods keep their addresses, new ones come from elsewhere
	// warning: the leases in 1 block are not known: the node has not answered yet
	// node 5 drains [10.1.5.0/24] opens [pods-2 10.2.10.0/23]
}
