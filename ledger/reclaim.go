// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// ReclaimToken is the token of the Expiry of a lease whose owner seems to be gone. The ledger
// never ends such a lease by itself: after the time its caller may release it, if the evidence
// still holds. A repeated claim of its key stops this Expiry, in the commit of the claim. It
// does not survive a restart: Open makes such a lease held again, since the evidence was that
// of another process.
const ReclaimToken = "reclaim"

// WitnessNetwork is the network of the keys of quarantined addresses that a witness has
// found in use. No CNI network and no Docker network has this name.
const WitnessNetwork = "(witness)"

// Reclaiming reports whether the lease is pending because its owner seems to be gone.
func (l *Lease) Reclaiming() bool { return l.State == Pending && l.Expiry.Token == ReclaimToken }

// InUse reports whether the owner of the lease may use the address: it is held, or
// pending because the owner seems to be gone.
func (l *Lease) InUse() bool { return l.State == Held || l.Reclaiming() }

// resume stages the end of the reclaims of leases, which a repeated claim has shown to be
// in use.
func (st *Stage) resume(have []*lease) {
	for _, x := range have {
		mine := x.owner == st && !slices.ContainsFunc(
			st.changes,
			func(c change) bool { return c.kind == extended && c.lease == x },
		)
		if x.timer != nil && x.timer.Token == ReclaimToken && (x.owner == nil || mine) {
			st.extend(x, nil, "claimed again")
		}
	}
}

// Quarantine makes a quarantined lease of an address that is in use without a claim,
// under a key that names its finder. An address that cools is in use still: its quarantine
// replaces the cool-down. It does nothing if the address has a lease, is reserved or is
// excluded. It fails if no active block contains the address.
func (l *Ledger) Quarantine(
	ctx context.Context,
	pool string,
	a netip.Addr,
	key Key,
	reason string,
) (fresh bool, err error) {
	err = l.autocommit(ctx, func(st *Stage) (err error) {
		fresh, err = st.quarantineFree(pool, a, key, reason)
		return err
	})
	return fresh, explain(err, "quarantine %s in pool %q", a, pool)
}

// Unleased is an address that is in use without a claim. Key names its finder.
type Unleased struct {
	Pool   string
	Addr   netip.Addr
	Key    Key
	Reason string // the evidence
}

// ChangeQuarantines begins and ends quarantines in one commit, as Quarantine and Release do one by
// one. It returns those that it has begun, and the leases of those that it has ended. What
// cannot be changed is left out, and is part of the error.
func (l *Ledger) ChangeQuarantines(
	ctx context.Context,
	begin []Unleased,
	end []Selector,
) (begun []Unleased, ended []Lease, err error) {
	var failed []error
	err = l.autocommit(ctx, func(st *Stage) error {
		for i := range end {
			failed = append(failed, st.releaseEach(&end[i], func(x *lease) { ended = append(ended, x.value()) }))
		}
		for _, u := range begin {
			fresh, err := st.quarantineFree(u.Pool, u.Addr, u.Key, u.Reason)
			failed = append(failed, err)
			if fresh {
				begun = append(begun, u)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, explain(err, "begin %d quarantines and end %d", len(begin), len(end))
	}
	return begun, ended, errors.Join(failed...)
}

func (st *Stage) quarantineFree(pool string, a netip.Addr, key Key, reason string) (fresh bool, err error) {
	l := st.l
	st.asked = true
	p := l.pools[pool]
	if p == nil {
		return false, fmt.Errorf("quarantine %s in pool %q: %w", a, pool, ErrNoPool)
	}
	l.expirePending()
	fp := &p.fam[FamilyOf(a)]
	l.expireCooling(p, fp)
	b, old := fp.blockOf(a), fp.lease(a)
	switch {
	case b == nil || b.state != Active:
		return false, fmt.Errorf("quarantine %s: %w: no active block of pool %q contains it", a, ErrOutside, pool)
	case old != nil && old.state != Cooling, p.isExcluded(a), p.excluded[a].stage != nil, p.isReserved(b, a):
		return false, nil
	case old != nil:
		fp.removeCooling(old)
	default:
		fp.occupyAll(a)
	}
	l.gen++
	st.allocate(place{b, a, old}, &Request{Key: key}, l.hash(&key), reason)
	return true, nil
}
