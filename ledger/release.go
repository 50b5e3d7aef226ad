// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// Selector says which leases to release. Exactly one of Key, Pod and Addr is
// set; the other fields narrow it down.
type Selector struct {
	Key         Key
	Pod         Pod        // by namespace and name; UID as well if it is set
	Addr        netip.Addr // needs Pool and Purpose, which must match
	Pool        string
	Purpose     Purpose
	Generation  uint64 // not 0: only the lease of this claim
	Quarantined bool   // by address: also a quarantined one, whoever holds it
}

// Release frees the leases of a selector and returns them. What is not there
// is released already: no error and no write. The release is durable when it
// returns.
func (l *Ledger) Release(ctx context.Context, sel Selector) ([]Lease, error) {
	st := l.brief()
	leases, err := st.Release(sel)
	if err != nil {
		return nil, err
	}
	if err := st.Commit(ctx); err != nil {
		return nil, fmt.Errorf("release: %w", err)
	}
	return leases, nil
}

// Release stages what Ledger.Release would do.
func (st *Stage) Release(sel Selector) ([]Lease, error) {
	l := st.l
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []*lease
	for {
		var err error
		if found, err = l.find(sel); err != nil {
			return nil, err
		}
		wait, err := l.others(st, found)
		if err != nil {
			return nil, fmt.Errorf("release: %w", err)
		}
		if !wait {
			break
		}
		l.settled.Wait()
	}
	var leases []Lease
	for _, x := range found {
		if sel.Generation != 0 && x.gen != sel.Generation || x.leaving {
			continue
		}
		leases = append(leases, x.value())
		st.release(x)
	}
	return leases, nil
}

// find are the leases of a selector that are not cooling, by address.
func (l *Ledger) find(sel Selector) ([]*lease, error) {
	var found []*lease
	switch {
	case sel.Key != (Key{}):
		l.held(sel.Key, func(x *lease) bool { found = append(found, x); return true })
	case sel.Pod.Name != "":
		for x := l.byPod[podName{sel.Pod.Namespace, sel.Pod.Name}]; x != nil; x = x.podNext {
			if x.state != Quarantined && x.purpose == sel.Purpose && (sel.Pod.UID == "" || x.pod.UID == "" || sel.Pod.UID == x.pod.UID) {
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
		return nil, fmt.Errorf("release: neither a key nor a pod nor an address is given")
	}
	slices.SortFunc(found, func(x, y *lease) int { return x.addr.Compare(y.addr) })
	return found, nil
}

func (l *Ledger) findAddr(sel Selector) (*lease, error) {
	p := l.pools[sel.Pool]
	if p == nil {
		return nil, nil
	}
	x := p.fam[FamilyOf(sel.Addr)].leases[sel.Addr]
	switch {
	case x == nil || x.state == Cooling:
		return nil, nil
	case x.state == Quarantined:
		if !sel.Quarantined {
			return nil, fmt.Errorf("release %s in pool %q: %w: it is quarantined (%s)", sel.Addr, sel.Pool, ErrNotOwner, x.reason)
		}
	case x.purpose != sel.Purpose:
		return nil, fmt.Errorf("release %s in pool %q: %w: it is held for a %s, not for a %s", sel.Addr, sel.Pool, ErrNotOwner, x.purpose, sel.Purpose)
	}
	return x, nil
}

// release stages the release of x, or undoes its claim where that is staged here.
func (st *Stage) release(x *lease) {
	if i := slices.IndexFunc(st.changes, func(c change) bool { return c.kind == claimed && c.lease == x }); i >= 0 {
		st.l.revert(st.changes[i])
		st.changes = slices.Delete(st.changes, i, i+1)
		st.l.settled.Broadcast()
		return
	}
	x.leaving, x.owner = true, st
	st.changes = append(st.changes, change{kind: left, lease: x})
}
