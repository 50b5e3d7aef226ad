// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeset implements the node's half of a NetResourceSet, the object in which an
// operator grants addresses to a node. The operator's half is operator/netresource; the
// states that both write are those of package api/handshake.
//
//	Follow        reads the versions of the set from a cluster store
//	Read          returns the blocks of a version that the node may allocate from
//	UplinksOf     returns the interfaces of the addresses
//	ReadUsage     reads the use of the blocks from the ledger
//	Report        returns the set with the node's part of it
//	CIDRs         decides on the CIDRs of a cluster pool
//	Reporter      writes that part, and creates a missing set
//
// Two programs use it. One is the agent with "podBlocks: netresource" (plugins/ipam), whose
// event loop follows the set and grants the blocks. The other is the address manager
// (package ipam), which a Source connects to the set.
//
// # Ownership
//
// The operator owns the pool of the set, the node its use; both write the states of the
// releases. The ledger owns the leases. An Allocator grants the blocks to its ledger and
// tells the Reporter which version it has granted.
//
// # Concurrency
//
// All functions but Follow and Reporter.Run are pure or read the ledger: any goroutine may
// call them. Follow and Run return when their context ends, and start no goroutine.
//
// # Failure
//
// A version whose blocks cannot be granted is repeated until it can be. A block is reported
// as ready for its release only after the Allocator has committed that nothing more is
// allocated from it. It is reported only into the version of the object that the Allocator
// has granted, because a later version may have withdrawn the request.
package nodeset
