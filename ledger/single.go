// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
)

// ClaimOne is Claim of one address, for those who claim often: its answer
// needs no memory of its own.
func (l *Ledger) ClaimOne(ctx context.Context, req Request) (x Lease, err error) {
	_, _, err = l.claimOne(ctx, &req, &x)
	return x, err
}

// ClaimAddr is ClaimOne for those who only want to know the address, and
// whether it is a new one.
func (l *Ledger) ClaimAddr(ctx context.Context, req *Request) (a netip.Addr, fresh bool, err error) {
	return l.claimOne(ctx, req, nil)
}

// ClaimAddr stages what Ledger.ClaimAddr would do.
func (st *Stage) ClaimAddr(req *Request) (a netip.Addr, fresh bool, err error) {
	var room [1]Lease
	leases, fresh, err := st.claimInto(room[:0], req)
	if err == nil {
		a, err = only(req, leases, nil)
	}
	return a, fresh, err
}

// claimOne answers with the lease where somebody wants it.
func (l *Ledger) claimOne(ctx context.Context, req *Request, answer *Lease) (a netip.Addr, fresh bool, err error) {
	if len(req.Wanted)+len(req.Families) != 1 {
		return a, false, fmt.Errorf("claim one address in pool %q for %s: %d families and %d addresses are named, one of both would be right",
			req.Pool, req.Key, len(req.Families), len(req.Wanted))
	}
	var room [1]Lease
	st := l.brief()
	leases, fresh, err := st.claimInto(room[:0], req)
	if err == nil {
		a, err = only(req, leases, answer)
	}
	if err != nil {
		return a, false, err
	}
	if err := st.Commit(ctx); err != nil {
		return netip.Addr{}, false, fmt.Errorf("claim an address for %s: %w", req.Key, err)
	}
	l.briefs.Put(st)
	return a, fresh, nil
}

// only is the answer where it is one lease.
func only(req *Request, leases []Lease, answer *Lease) (a netip.Addr, err error) {
	if len(leases) != 1 {
		return a, fmt.Errorf("claim one address in pool %q for %s: %w of %d addresses", req.Pool, req.Key, ErrKeyHeld, len(leases))
	}
	if answer != nil {
		*answer = leases[0]
	}
	return leases[0].Addr, nil
}

// Free is Release for those who only want to know how many leases it has freed.
func (l *Ledger) Free(ctx context.Context, sel Selector) (n int, err error) {
	err = l.freeEach(ctx, &sel, func(*lease) { n++ })
	if err != nil {
		return 0, err
	}
	return n, nil
}

// FreeKey is Release of what a key has, for those who only want to know which
// address of which pool that was: the zero one, if it had none.
func (l *Ledger) FreeKey(ctx context.Context, k Key) (a netip.Addr, pool string, err error) {
	err = l.freeEach(ctx, &Selector{Key: k}, func(x *lease) { a, pool = x.addr, x.block.pool.Name })
	if err != nil {
		return netip.Addr{}, "", err
	}
	return a, pool, nil
}

// freeEach calls f for each lease before it is released.
func (l *Ledger) freeEach(ctx context.Context, sel *Selector, f func(*lease)) error {
	st := l.brief()
	if err := st.releaseEach(sel, f); err != nil {
		return err
	}
	if err := st.Commit(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	l.briefs.Put(st)
	return nil
}
