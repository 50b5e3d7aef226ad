// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package poolplan says what the pools of a cluster are and may become: which
// blocks a node has of them, what a pools.yaml would change, who moves, and
// what stands in the way.
//
// A pool is cut into one block a node by node ID. Its ranges and lengths never
// change, so a block that a node has of it stays the node's. Growing, or cutting
// differently, is adding another pool and draining the old one:
//
//	active <-> draining -> removed
//
// A draining pool keeps its leases and lends nothing. It is removed when every
// node has said that it has nothing of it any more. What was removed never
// comes back: its name is used up, its addresses may be used by another pool.
// Each change raises the generation, and of two values of a pool the one with
// the higher generation is right.
//
// The package is pure: it reads no store, no file and no clock, and anybody may
// call it from anywhere. It owns nothing. Whoever writes a Plan's changes does
// so in one transaction, in their order, on the condition that no pool was
// written since the Situation was read; then a plan is right for as long as it
// can be written. A plan that is refused has no changes.
//
// Example: 10.1.0.0/16 is full, and pools.yaml is
//
//	pools:
//	- name: pods-2
//	  ranges:
//	  - cidr: 10.2.0.0/16
//	    oneNodePrefixLen: 23
//	- name: default
//	  state: draining
//
// Then node 5 opens 10.2.10.0/23, and its 10.1.5.0/24 drains. When nobody has a
// lease of pool default any more, "state: removed" is accepted for it.
package poolplan
