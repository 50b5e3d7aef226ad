// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// Selector selects leases by exactly one of Key, Pod and Addr; the other fields
// narrow the selection.
type Selector struct {
	Key         Key
	Pod         Pod        // by namespace and name, and by UID if it is set
	Addr        netip.Addr // needs Pool and Purpose, which must match
	Pool        string
	Purpose     Purpose
	Network     string // by address, not "": only a lease under a key of this network
	Generation  uint64 // not 0: only the lease of this claim
	Quarantined bool   // by address: also a quarantined lease of any owner
	Reason      string // of the change, for the history; it selects nothing
}

// Release frees the leases of a selector and returns them by address. A lease
// that does not exist is released already: no error and no write. The release is
// durable when Release returns.
func (l *Ledger) Release(ctx context.Context, sel Selector) (leases []Lease, err error) {
	err = l.releaseEach(ctx, &sel, func(x *lease) { leases = append(leases, x.value()) })
	return sortedOrNone(leases, err)
}

// Free is Release for a caller that only needs the number of leases it has freed.
func (l *Ledger) Free(ctx context.Context, sel Selector) (n int, err error) {
	if err := l.releaseEach(ctx, &sel, func(*lease) { n++ }); err != nil {
		return 0, err
	}
	return n, nil
}

// FreeKey is Release of the lease of a key, for a caller that only needs its
// address and pool: the zero ones, if the key had none.
func (l *Ledger) FreeKey(ctx context.Context, k Key) (a netip.Addr, pool string, err error) {
	err = l.releaseEach(ctx, &Selector{Key: k}, func(x *lease) { a, pool = x.addr, x.block.pool.Name })
	if err != nil {
		return netip.Addr{}, "", err
	}
	return a, pool, nil
}

// Release stages the change that Ledger.Release commits.
func (st *Stage) Release(sel Selector) (leases []Lease, err error) {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	err = st.releaseEach(&sel, func(x *lease) { leases = append(leases, x.value()) })
	return sortedOrNone(leases, err)
}

// sortedOrNone returns leases by address, or the error.
func sortedOrNone(leases []Lease, err error) ([]Lease, error) {
	if err != nil {
		return nil, err
	}
	if len(leases) > 1 {
		slices.SortFunc(leases, func(x, y Lease) int { return x.Addr.Compare(y.Addr) })
	}
	return leases, nil
}

// releaseEach commits the release of the leases of a selector, and calls f for
// each of them before.
func (l *Ledger) releaseEach(ctx context.Context, sel *Selector, f func(*lease)) error {
	err := l.autocommit(ctx, func(st *Stage) error { return st.releaseEach(sel, f) })
	if err != nil {
		return explain(err, "release %s", sel.describe())
	}
	return nil
}

// releaseEach stages the release of the leases of a selector, and calls f for
// each of them before.
func (st *Stage) releaseEach(sel *Selector, f func(*lease)) error {
	st.asked = true
	found, err := st.l.selectLeases(st, sel)
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	if st.mark.changes > 0 {
		if i := slices.IndexFunc(found, st.beforeMark); i >= 0 {
			return fmt.Errorf("release: %s: its claim is not committed yet: %w", found[i].addr, ErrBusy)
		}
	}
	for _, x := range found {
		if sel.Generation != 0 && x.gen != sel.Generation || x.releasing {
			continue
		}
		f(x)
		st.release(x, sel.Reason)
	}
	return nil
}

// selectLeases returns the leases of a selector. It waits for stages other than st
// that change them. The slice is valid until the lock is released.
func (l *Ledger) selectLeases(st *Stage, sel *Selector) ([]*lease, error) {
	for {
		l.expirePending()
		found, err := l.find(sel)
		l.found = found
		if err != nil {
			return nil, err
		}
		if wait, err := l.changedByOther(st, found); err != nil || !wait {
			return found, err
		}
		l.ended.Wait()
	}
}

// find returns the leases of a selector that do not cool.
func (l *Ledger) find(sel *Selector) ([]*lease, error) {
	found := l.found[:0]
	switch {
	case sel.Key != (Key{}):
		l.held(&sel.Key, l.hash(&sel.Key), func(x *lease) bool { found = append(found, x); return true })
	case sel.Pod.Name != "":
		for x := l.byPod.first(l.hashPod(&sel.Pod)); x != nil; x = l.byPod.next(x) {
			if x.pod.Name == sel.Pod.Name && x.pod.Namespace == sel.Pod.Namespace &&
				x.state != Quarantined && x.purpose == sel.Purpose && (sel.Pod.UID == "" || x.pod.UID == "" || sel.Pod.UID == x.pod.UID) {
				found = append(found, x)
			}
		}
	case sel.Addr.IsValid():
		x, err := l.findAddr(sel)
		if x != nil {
			found = append(found, x)
		}
		return found, err
	default:
		return nil, fmt.Errorf("the selector is empty: want a key, a pod or an address")
	}
	return found, nil
}

// findAddr returns the lease of an address, nil if the address has none.
func (l *Ledger) findAddr(sel *Selector) (*lease, error) {
	p := l.pools[sel.Pool]
	if p == nil {
		return nil, nil
	}
	x := p.fam[FamilyOf(sel.Addr)].lease(sel.Addr)
	switch {
	case x == nil || x.state == Cooling:
		return nil, nil
	case x.state == Quarantined:
		if !sel.Quarantined {
			return nil, fmt.Errorf(
				"%s in pool %q: %w: it is quarantined (%s)",
				sel.Addr,
				sel.Pool,
				ErrNotOwner,
				x.reason,
			)
		}
	case x.purpose != sel.Purpose:
		return nil, fmt.Errorf(
			"%s in pool %q: %w: it is held for a %s, not for a %s",
			sel.Addr,
			sel.Pool,
			ErrNotOwner,
			x.purpose,
			sel.Purpose,
		)
	case sel.Network != "" && x.key.Network != sel.Network:
		return nil, fmt.Errorf(
			"%s in pool %q: %w: it is held in network %q, not in %q",
			sel.Addr,
			sel.Pool,
			ErrNotOwner,
			x.key.Network,
			sel.Network,
		)
	}
	return x, nil
}

// release stages the release of x, or undoes its claim if st has staged that.
func (st *Stage) release(x *lease, reason string) {
	if x.staged {
		i := slices.IndexFunc(st.changes, func(c change) bool { return c.kind == claimed && c.lease == x })
		st.l.revert(st.changes[i])
		st.changes = slices.DeleteFunc(
			st.changes,
			func(c change) bool { return c.lease == x && (c.kind == claimed || c.kind == extended) },
		)
		st.l.sweep(x.block)
		st.l.ended.Broadcast()
		return
	}
	x.releasing, x.owner = true, st
	st.changes = append(st.changes, change{kind: released, lease: x, reason: reason, event: st.event})
}
