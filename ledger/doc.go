// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger is the only book of addresses: pools with their policies, the
// blocks that this node was granted of them, and the leases of single
// addresses. Nothing else in the program remembers who holds what.
//
// A claim or a release is answered after its journal commit; whoever waits at
// the same time is committed together. A commit that fails leaves memory and
// journal as they were: what the journal may have kept of it is written over by
// the next commit. Every claim and release can be repeated under its Key: the
// same Key has the same address, without a write. Without a journal, which is for
// measurements and for faces that keep nothing, a claim or a release of one call
// is true at once.
//
// Leases may be claimed and released from any goroutine. Pools and blocks are
// changed from one goroutine only (the event loop). The ledger calls nobody
// back and holds its lock for no longer than memory needs.
//
// The loop, which must not wait for the disk while handlers run, stages its
// claims (Begin, Stage) and commits once; everybody else calls Claim and
// Release.
//
// A lease is held, then, when released, cooling for the cool-down of its pool,
// then free. Cooling counts the time since boot, so no clock that jumps can
// shorten it; after a reboot it begins again. When nothing else is free, the
// address that has cooled longest is lent early. A quarantined address is in
// use by somebody unknown; only an explicit release frees it.
//
// A pending lease is released like any other unless somebody who has its token
// stops its Expiry in time; an Expiry counts like a cool-down, and what it ends
// has cooled since. No goroutine waits for it: whoever looks at the book ends
// first what is over, and Run is only for the journal and for those who wait.
//
// An excluded address is lent to nobody but the node itself (infra), whether or
// not a block has it yet; whoever holds it keeps it. Exclusions are durable.
//
// Example: a pool, one block, one claim.
//
//	l, err := ledger.Open(ctx, journal, ledger.Options{})
//	st := l.Begin()
//	st.SetPool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true})
//	st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")})
//	err = st.Commit(ctx)
//	leases, err := l.Claim(ctx, ledger.Request{Pool: "default", Key: key, Pod: pod})
package ledger
