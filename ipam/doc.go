// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the address manager of a node under the names that Cilium and
// Baidu's CCE published. It has both families, a blacklist, expiration timers, and four
// sources of a node's addresses (Mode). The ledger allocates; this package translates
// the published calls and follows the NetResourceSet of the node.
//
// A Source connects the IPAM with the NetResourceSet of its node; without one, the program
// calls Update, and Sync or Review.
//
// # Ownership
//
// The ledger owns leases, timers and the blacklist, which outlive the process. The
// node's configuration (host scope) or the operator's NetResourceSet (cluster pool,
// custom resource) owns the node's blocks. The IPAM owns its pool of the ledger and
// changes it through its Granter. Only the addresses of allocators that a caller
// sets in the IPAM are outside of the ledger, and in memory.
//
// # Concurrency
//
// Any goroutine may call an IPAM. It calls no other component while it holds a
// lock, except such an allocator, and starts no goroutine but that of a timer of
// one. A Source starts two goroutines for each IPAM, which Close awaits.
//
// # Owners
//
// An owner is free text, by convention namespace/name. An owner may have many
// addresses: each AllocateNext returns another one. A release by address releases
// only what this IPAM has allocated. A release by owner releases all addresses of
// the owner. The addresses of an earlier process stay with their owners; the same
// owner can allocate each of them once more, which is how owners are restored.
//
// # Failures
//
// A call returns after its commit, and a call that fails has changed nothing. A
// call for both families allocates both or none. An address whose timer was not
// stopped in time is released, also after a restart. A CIDR or single address that
// the operator takes back is out of the pool, durably, before that is reported;
// leases of it stay.
//
// docs/ipam-semantics.md lists where two published behaviours disagree, which one
// this package keeps, and why.
package ipam
