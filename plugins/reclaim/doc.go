// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package reclaim compares the ledger with the witnesses of this node, releases the
// leases whose owners are gone, and quarantines addresses that are in use without a
// lease.
//
// Each round reads all witnesses and keeps the World that they show. A Judge, which is
// pure, compares the leases with it and decides. A lease is reclaimed only if two
// rounds, at least an interval apart, show that its owner is gone, with nothing in
// between that puts the evidence in doubt. A reclaim does not free at once: it makes the
// lease pending (ledger.ReclaimToken) for a time in which it can be undone. Then, if one
// more round agrees, the lease is released through its own door.
//
// Which addresses are in use without a lease, and what two observations are, is decided in
// package findings, for "cadastre check" as well.
//
// # Ownership and concurrency
//
// Run reads a round in each interval. Any goroutine may call Round and all other
// methods; rounds exclude each other. The plugin owns the Judge and what it remembers;
// the ledger owns the pending leases.
//
// # Failure
//
// A witness that cannot be read is missing in the World of that round. Then no lease
// that needs it is reclaimed, and a pending reclaim that needs it is undone. No quarantine
// ends while any witness is missing. A change of the ledger that fails is tried again by a
// later round. After a restart of the agent every reclaim begins anew: nothing of the
// evidence survives the process.
package reclaim
