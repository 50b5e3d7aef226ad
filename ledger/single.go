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
	if l.atOnce(ctx) {
		return l.claimNow(req, answer)
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

// atOnce is true where nothing is to be written: what one call claims or
// releases is then true without a stage, which is for those who wait for a write.
func (l *Ledger) atOnce(ctx context.Context) bool { return l.journal == nil && ctx.Err() == nil }

// claimNow is claimOne without a stage.
func (l *Ledger) claimNow(req *Request, answer *Lease) (a netip.Addr, fresh bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have, hash, err := l.admit(nil, req)
	if err != nil {
		return a, false, err
	}
	if len(have) > 0 {
		leases, err := l.repeat(req, have)
		if err == nil {
			a, err = only(req, leases, answer)
		}
		return a, false, err
	}
	at, err := l.pick(req)
	if err != nil {
		return a, false, req.failed(err)
	}
	x := l.lend(at, req, hash, "")
	if answer != nil {
		*answer = x.value()
	}
	return x.addr, true, nil
}

// pick takes the one address that is asked for.
func (l *Ledger) pick(req *Request) (place, error) {
	p, err := l.lender(req)
	switch {
	case err != nil:
		return place{}, err
	case len(req.Families) == 1:
		return l.pickAny(p, req.Families[0], req)
	}
	at, err := l.pickAddr(nil, p, req.Wanted[0], req)
	if err != nil {
		return place{}, fmt.Errorf("%s: %w", req.Wanted[0], err)
	}
	return at, nil
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
	if l.atOnce(ctx) {
		return l.freeNow(sel, f)
	}
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

// freeNow is freeEach without a stage.
func (l *Ledger) freeNow(sel *Selector, f func(*lease)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, err := l.findSettled(nil, sel)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	touched := l.touched[:0]
	for _, x := range found {
		// gen first: it is at the lease's other end, which reuse writes to. Looked at
		// now, that is in the cache by then.
		if x.gen != sel.Generation && sel.Generation != 0 {
			continue
		}
		f(x)
		touched = append(touched, x.block)
		l.unlink(x)
		if coolsDown(x) {
			l.cool(x, true, l.opt.Uptime())
		} else {
			l.drop(x)
			l.reuse(x) // no stage is at it
		}
	}
	l.touched = touched
	for _, b := range touched {
		l.sweepBlock(b)
	}
	return nil
}
