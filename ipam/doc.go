// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the address manager of a node, as Cilium and Baidu's CCE
// published it: both families, a blacklist, expiration timers, and four modes in
// which a node has its addresses. It is a face: who holds what is in the ledger.
//
// # Who owns what
//
// Leases, timers and the blacklist are the ledger's and outlive the process.
// What a node was given belongs to whoever gives it: the node's configuration
// (host scope) or a NetResourceSet (cluster pool, custom resource). The pool of
// the ledger belongs to the IPAM, which changes it through its Granter. Any
// goroutine may call an IPAM; it calls nobody while it holds a lock, and starts
// no goroutine: Sync is the program's to run.
//
// # Owners
//
// An owner is free text, by convention namespace/name. One owner may hold many
// addresses: AllocateNext never repeats itself. A release by address frees what
// was taken through this door only; a release by owner frees all of an owner. An
// address that an earlier process has lent is its owner's still; it can be
// allocated by the same owner once more, which is how owners are restored.
//
// # Failures
//
// Nothing is answered before it is durable, and a call that fails has changed
// nothing. A call for both families gives both or none. An address without its
// timer stopped in time is released, also if the process was away then. What
// ends on the other side (CIDRs, single addresses) is lent no more, durably,
// before it is reported; what is in use stays with whoever uses it.
//
// Where two published behaviours disagree, docs/ipam-semantics.md says which one
// is kept and why.
//
// Example: an address for a pod that must be confirmed within ten minutes.
//
//	m, err := ipam.New(ctx, ipam.Deps{Node: node, Config: config, Ledger: l})
//	v4, _, err := m.AllocateNextWithExpiration("ipv4", "default/web", 10*time.Minute)
//	err = m.StopExpirationTimer(v4.IP, v4.ExpirationUUID) // the pod runs
//	err = m.ReleaseIPString("default/web")                // it is gone
package ipam
