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
	// recentRemoval is how long an address that was removed is not added again by
	// Reconcile: what the machine says of its interfaces is late.
	recentRemoval = time.Minute
	// backOff is how long the cloud is not asked for more after it had none.
	backOff = 2 * time.Minute
)

// Attachment is an interface as the machine sees it, or the cloud, with its
// addresses and prefixes.
type Attachment struct {
	Interface
	Blocks []netip.Prefix // a whole address is a single address
}

// Ask asks the cloud, whose word counts, for the blocks of an interface; false
// if it is not attached.
type Ask func(ctx context.Context, eniID string) (blocks []netip.Prefix, attached bool, err error)

// Reconcile makes the store what the machine sees. Interfaces and addresses
// that it sees newly are added. Where something is not seen any more the cloud
// is asked, and decides; where it does not answer nothing of that interface
// changes. Where nothing is seen at all nothing changes: every machine has an
// interface.
func (ds *DataStore) Reconcile(ctx context.Context, seen []Attachment, ask Ask) error {
	if len(seen) == 0 {
		return fmt.Errorf("reconcile the interfaces: none is seen, at least the primary one should be: nothing is changed")
	}
	var errs []error
	present := map[string]bool{}
	for _, a := range seen {
		present[a.ID] = true
		if err := ds.reconcile(ctx, a, ask); err != nil {
			errs = append(errs, fmt.Errorf("reconcile interface %q: %w", a.ID, err))
		}
	}
	for _, id := range ds.ids() {
		if present[id] {
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
	if err != nil { // it is new
		if err := ds.AddInterface(a.Interface); err != nil {
			return err
		}
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
	for _, p := range want {
		if slices.Contains(prefixes, p) {
			continue
		}
		if _, recent := ds.RecentlyFreed(p); !recent {
			errs = append(errs, ds.add(a.ID, p, !p.IsSingleIP()))
		}
	}
	return errors.Join(errs...)
}

// RecentlyFreed is whether p is known to have been removed, and whether that was
// less than a minute ago. What is older is forgotten when it was asked for.
func (ds *DataStore) RecentlyFreed(p netip.Prefix) (known, recent bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	at, known := ds.removed[p]
	if recent = known && ds.opt.Uptime()-at < recentRemoval; !recent {
		delete(ds.removed, p)
	}
	return known, recent
}

// Exhausted notes that the cloud has no more addresses; BackingOff is true for
// two minutes then.
func (ds *DataStore) Exhausted() {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	at := ds.opt.Uptime()
	ds.exhausted = &at
}

// BackingOff is true while the cloud is not to be asked for more addresses.
func (ds *DataStore) BackingOff() bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.exhausted != nil && ds.opt.Uptime()-*ds.exhausted < backOff
}

// Shrink removes what is over by the targets, of one family, and says what the
// cloud can be given back, by interface. Nothing goes that cools. The interfaces
// that are attached last give first.
func (ds *DataStore) Shrink(t Targets, f ledger.Family) (map[string][]netip.Prefix, error) {
	_, over := t.Want(ds.GetIPStats(f), ds.opt.PrefixMode)
	back := map[string][]netip.Prefix{}
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

// unused are the blocks of an interface that nothing is assigned of and nothing cools of.
func (ds *DataStore) unused(eniID string, f ledger.Family) (free []netip.Prefix) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	for _, b := range ds.ledger.Stats() {
		if l := ds.subpools[b.Pool]; l != nil && l.of.ID == eniID && b.Family == f && l.prefixes == ds.opt.PrefixMode && b.Held+b.Cooling == 0 {
			free = append(free, b.Block)
		}
	}
	return free
}
