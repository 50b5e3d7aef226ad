// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

const (
	// recentRemoval is the time in which Reconcile does not add a removed block again:
	// the metadata of the machine is late.
	recentRemoval = time.Minute
	// backOff is the time in which the cloud is not asked again after it had no
	// addresses.
	backOff = 2 * time.Minute
)

// Attachment is an interface with its addresses and prefixes, as the machine or the
// cloud reports it.
type Attachment struct {
	Interface
	Blocks []netip.Prefix // a whole address is a single address
}

// Ask returns the blocks of an interface according to the cloud, which decides;
// false if the interface is not attached.
type Ask func(ctx context.Context, eniID string) (blocks []netip.Prefix, attached bool, err error)

// Reconcile adds the interfaces and addresses that the machine reports and the
// store lacks. If the machine does not report one of the store, the cloud decides;
// if the cloud does not answer, that interface does not change. If the machine
// reports no interface at all, nothing changes, since every machine has one.
func (ds *DataStore) Reconcile(ctx context.Context, seen []Attachment, ask Ask) error {
	if ctx.Err() != nil {
		return fmt.Errorf("reconcile the interfaces: %w", context.Cause(ctx))
	}
	if len(seen) == 0 {
		return fmt.Errorf(
			"reconcile the interfaces: the machine reports none, want at least the primary one: nothing is changed",
		)
	}
	errs := []error{ds.reviewReturning(seen)}
	present := map[string]bool{}
	for _, a := range seen {
		present[a.ID] = true
		if ds.isDeleting(a.ID) {
			continue
		}
		if err := ds.reconcile(ctx, a, ask); err != nil {
			errs = append(errs, fmt.Errorf("reconcile interface %q: %w", a.ID, err))
		}
	}
	for _, id := range ds.ids() {
		if present[id] || ds.isLost(id) {
			continue
		}
		if _, attached, err := ask(ctx, id); err != nil || attached {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, ds.RemoveENIFromDataStore(id, true))
	}
	return errors.Join(errs...)
}

func (ds *DataStore) ids() (all []string) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	for _, a := range ds.sorted() {
		all = append(all, a.ID)
	}
	return all
}

func (ds *DataStore) reconcile(ctx context.Context, a Attachment, ask Ask) error {
	addresses, prefixes, err := ds.GetENIBlocks(a.ID)
	if err != nil || ds.isLost(a.ID) { // it is new, or back
		if err := ds.AddInterface(a.Interface); err != nil {
			return err
		}
	}
	if err := ds.refresh(a.Interface); err != nil {
		return err
	}
	for _, x := range addresses {
		prefixes = append(prefixes, netip.PrefixFrom(x, x.BitLen()))
	}
	want := a.Blocks
	if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !slices.Contains(want, p) }) {
		blocks, attached, err := ask(ctx, a.ID)
		if err != nil || !attached {
			return err
		}
		want = blocks
	}
	var errs []error
	for _, p := range prefixes {
		if !slices.Contains(want, p) {
			errs = append(errs, ds.Remove(a.ID, p, true))
		}
	}
	var fresh []netip.Prefix
	for _, p := range want {
		if slices.Contains(prefixes, p) || ds.isReturning(p) {
			continue
		}
		if _, recent := ds.RecentlyFreed(p); !recent {
			fresh = append(fresh, p)
		}
	}
	if ds.shared != nil && len(fresh) > 0 {
		errs = append(errs, ds.AddBlocks(a.ID, fresh))
		fresh = nil
	}
	for _, p := range fresh {
		errs = append(errs, ds.add(a.ID, p, !p.IsSingleIP()))
	}
	return errors.Join(errs...)
}

// RecentlyFreed reports whether the removal of p is known, and whether it was less
// than a minute ago. An older removal is forgotten after the call.
func (ds *DataStore) RecentlyFreed(p netip.Prefix) (known, recent bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	at, known := ds.removed[p]
	if recent = known && ds.opt.Uptime()-at < recentRemoval; !recent {
		delete(ds.removed, p)
	}
	return known, recent
}

// Exhausted notes that the cloud has no more addresses. BackingOff returns true for
// the next two minutes.
func (ds *DataStore) Exhausted() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	at := ds.opt.Uptime()
	ds.exhausted = &at
}

// BackingOff reports whether the cloud must not be asked for addresses.
func (ds *DataStore) BackingOff() bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.exhausted != nil && ds.opt.Uptime()-*ds.exhausted < backOff
}

// Shrink removes the excess blocks of one family and returns them by interface, for
// the return to the cloud. It removes no block with a cooling address, and begins
// with the highest device number.
func (ds *DataStore) Shrink(t Targets, f ledger.Family) (map[string][]netip.Prefix, error) {
	over := t.Excess(ds.GetIPStats(f), ds.opt.PrefixMode)
	back := map[string][]netip.Prefix{}
	if ds.shared != nil {
		return back, ds.shrinkShared(over, f, back)
	}
	for _, id := range slices.Backward(ds.ids()) {
		for _, p := range slices.Backward(ds.unused(id, f)) {
			if over == 0 {
				return back, nil
			}
			err := ds.Remove(id, p, false)
			if e := (*Error)(nil); errors.As(err, &e) {
				continue // it was assigned meanwhile
			} else if err != nil {
				return back, err
			}
			back[id] = append(back[id], p)
			over--
		}
	}
	return back, nil
}

// shrinkShared is Shrink with a shared ledger: one grant for each interface.
func (ds *DataStore) shrinkShared(over int, f ledger.Family, back map[string][]netip.Prefix) error {
	for _, id := range slices.Backward(ds.ids()) {
		unused := ds.unused(id, f)
		unused = unused[max(0, len(unused)-over):]
		if len(unused) == 0 {
			continue
		}
		unlock := ds.lock()
		taken, err := ds.returnBlocks(id, unused)
		unlock()
		if err != nil {
			return err
		}
		if over -= len(taken); len(taken) > 0 {
			back[id] = taken
		}
	}
	return nil
}

// isReturning reports whether a block is on its way back to the cloud.
func (ds *DataStore) isReturning(p netip.Prefix) bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if ds.shared == nil {
		return false
	}
	_, ok := ds.shared.returning[p]
	return ok
}

// isLost reports whether the cloud no longer has an interface of the store.
func (ds *DataStore) isLost(eniID string) bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	a := ds.attached[eniID]
	return a != nil && a.lost
}

// unused returns the blocks of an interface without assigned and cooling addresses.
func (ds *DataStore) unused(eniID string, f ledger.Family) (free []netip.Prefix) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	for _, b := range ds.ledger.Stats() {
		s := ds.subpoolOf(b.Pool, b.Block)
		if s == nil || s.of.ID != eniID || s.family != f || s.prefixes != ds.opt.PrefixMode ||
			b.State != ledger.Active {
			continue
		}
		if b.Held+b.Cooling+b.Quarantined == 0 {
			free = append(free, b.Block)
		}
	}
	return free
}
