// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger is the only allocator of addresses. A Ledger holds pools with their
// policies, the blocks of each pool that this node was granted, and the leases of
// single addresses.
//
// # Ownership and concurrency
//
// Any goroutine may claim and release. One goroutine (the event loop) changes pools
// and blocks. The ledger calls no other component but its journal, and holds its lock
// only while it works in memory, never while it writes. The loop stages its changes
// (Begin, Stage) and commits them once; other callers use Claim and Release.
//
// # Failure
//
// A claim or a release returns after its commit to the Journal; calls at the same time
// share one commit. After a failed commit memory is as before, and the next commit
// writes the records of the failed one again. A claim or release may be repeated under
// its Key: the same Key has the same address, without a write. A ledger with the
// NullJournal works in the same way and starts empty.
//
// # Leases
//
// A lease is held; after its release it cools for the cool-down of its pool, and then
// its address is free. Cooling counts the time since boot, so that no change of the
// clock shortens it; after a reboot it begins again. If no other address is free, a
// claim gets the one that has cooled longest.
//
// A pending lease is released when its Expiry is over, unless a caller with its token
// stops the Expiry. Every method ends what is over first; Run only writes that to the
// journal in time.
//
// A quarantined address is in use by an unknown owner: only an explicit release frees
// it. An excluded address is allocated only to the node itself (infra), whether or not
// a block contains it yet; a lease of it stays. Exclusions are durable.
//
// # Blocks
//
// An active block allocates. A block that SetBlocks no longer names drains: it keeps
// its leases, allocates nothing, and ends with its last lease. The cost of a claim
// does not depend on the number of blocks, pools and exclusions.
package ledger
