// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package poolplan plans changes of a cluster's pools: which blocks a node has of them,
// what a pools.yaml would change, which nodes move, and what blocks the change.
//
// A pool gives each node one block by its node ID. Its ranges and lengths never change,
// so a block stays the node's as long as the pool exists. To grow a network, or to resize
// its blocks, add another pool and drain the old one:
//
//	active <-> draining -> removed
//
// A draining pool keeps its leases, and nothing is allocated from it. It can be removed
// when every node has reported that it uses nothing of it. A removed pool never comes
// back: its name stays reserved, its addresses may be used by another pool. Each change
// raises the generation. Of two values of a pool the one with the higher generation
// counts.
//
// The package is pure: it reads no store, no file and no clock, and owns nothing. Any
// goroutine may call it. A caller writes the changes of a Plan in one transaction, in
// their order, on the condition that no pool was written since the Situation was read.
// Then a plan is valid for as long as it can be written. A refused plan has no changes.
package poolplan
