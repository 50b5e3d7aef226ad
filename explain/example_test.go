// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/ledger"
)

// A pool that is full: the node cannot give an address to a pod.
func ExamplePool() {
	n := &explain.Node{
		Now: time.Date(2026, 11, 23, 14, 6, 0, 0, time.UTC), Name: "node-5", ID: 5, PodBlocks: "nodeid",
		Pools: []ledger.Pool{{Name: "default", CoolDown: time.Minute}},
		Blocks: []ledger.BlockStat{{
			Pool: "default", Block: netip.MustParsePrefix("10.1.5.0/24"), Size: 256, Held: 252, Infra: 2, Reserved: 2,
		}},
	}
	fmt.Print(explain.Pool(n, "default").Text())
	// Output:
	// pool default: no IP address is free in pool default (IPv4) of node node-5: block 10.1.5.0/24 has 252 held, 2 infra, 0 cooling, 0 quarantined and 2 reserved of 256 addresses
	// ├─ node node-5 has node ID 5; its pod blocks come from the node ID
	// └─ pool default: order next; a released address cools for 1m0s
	//    └─ block 10.1.5.0/24 is full: 252 held, 2 infra, 0 cooling, 0 quarantined, 2 reserved, 0 free of 256
	//
	// fix:
	//   cadastre check
	//       finds leases whose container has ended
	//   cadastre leases --pool default
	//       lists the owners of the addresses
	//   cadastre apply -f FILE
	//       adds a pool to network default: every node gets a further block (docs/tasks/change-a-pool.md, "A node is full")
}
