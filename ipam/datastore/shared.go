// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// ReturningPool is the pool of a shared ledger that holds the blocks on their way back
// to the cloud. No address of it is ever allocated. A block stays there until the cloud
// no longer shows it, so that a stale reading after a crash does not bring it back.
const ReturningPool = "interfaces/returning"

// Granter changes the blocks of a ledger that the store shares with other owners of
// leases. In a program with an event loop the loop owns the pools, and the Granter pushes
// an event.
type Granter interface {
	// Grant makes the blocks of a Grant those of the ledger, durably, before it returns.
	// It returns those of Grant.Returning that have an address which is not free: they
	// stay as they were. After an error nothing has changed, or the next Grant, which
	// has all blocks again, repairs it.
	Grant(ctx context.Context, g Grant) (kept []netip.Prefix, err error)
}

// Grant holds all blocks of the interfaces.
type Grant struct {
	Blocks []GrantedBlock // in the order in which they are filled
	// Returning holds the blocks on their way back to the cloud, for ReturningPool. One
	// that the ledger still has an address of is kept instead.
	Returning []netip.Prefix
	// Claims holds the leases that a checkpoint has for the new blocks. They are claimed
	// in the same commit.
	Claims []ledger.Request
}

// GrantedBlock is a block of an interface.
type GrantedBlock struct {
	Prefix    netip.Prefix
	Interface string
	// Usable is false for a block from which nothing new is allocated: of an excluded
	// interface, of the other kind, or of one that the cloud no longer has.
	Usable bool
}

// shared holds what a store has beside a ledger that it shares.
type shared struct {
	pool      string
	grants    Granter
	returning map[netip.Prefix]returning
	deleting  map[string]time.Duration // uptime of the removal of interfaces
	restored  map[netip.Addr]restored  // entries of a checkpoint whose block was not added yet
}

// returning is a block on its way back.
type returning struct {
	eni  string         // "": the next reading tells
	done *time.Duration // uptime at which the cloud has confirmed it; nil: it has not
}

func newShared(opt Options) *shared {
	s := &shared{
		pool:      opt.Pool,
		grants:    opt.Grants,
		returning: map[netip.Prefix]returning{},
		deleting:  map[string]time.Duration{},
		restored:  map[netip.Addr]restored{},
	}
	for _, b := range opt.Ledger.Stats() {
		if b.Pool == ReturningPool && b.State == ledger.Active {
			s.returning[b.Block] = returning{}
		}
	}
	return s
}

// Attach restores interfaces in a store with a shared ledger, with those of their blocks
// that the ledger has. It is called before the first reading of the cloud.
func (ds *DataStore) Attach(all []Attachment) error {
	if ds.shared == nil {
		return fmt.Errorf("attach the known interfaces: the store has a ledger of its own: add them one by one")
	}
	defer ds.lock()()
	have := map[netip.Prefix]ledger.BlockState{}
	for _, b := range ds.ledger.Stats() {
		if b.Pool == ds.shared.pool && (b.State == ledger.Active || b.Held+b.Quarantined > 0) {
			have[b.Block] = b.State
		}
	}
	for _, x := range all {
		a := ds.newAttachment(x.Interface)
		ds.attached[x.ID] = a
		for _, p := range x.Blocks {
			state, has := have[p]
			if i, _, overlaps := ds.find(p); has && !overlaps {
				b := block{prefix: p, of: a.subpool(ledger.FamilyOf(p.Addr()), !p.IsSingleIP())}
				b.lost = ds.isUsable(b) && state == ledger.Draining // the cloud did not have it
				ds.blocks = slices.Insert(ds.blocks, i, b)
			}
		}
	}
	ds.sortPools()
	return nil
}

// addClaim adds the claim of a restored entry. Both addresses of a key are one claim; if the
// block of one of them comes later, the claim is a further one of the key.
func (ds *DataStore) addClaim(all []ledger.Request, e restored) []ledger.Request {
	req := claimOf(e.IPAMKey, e.Metadata)
	if i := slices.IndexFunc(all, func(x ledger.Request) bool { return x.Key == req.Key }); i >= 0 {
		all[i].Wanted = append(all[i].Wanted, e.addr)
		return all
	}
	req.Pool, req.Wanted = ds.shared.pool, []netip.Addr{e.addr}
	other := func(x ledger.Lease) bool { return ledger.FamilyOf(x.Addr) != ledger.FamilyOf(e.addr) }
	req.More = slices.ContainsFunc(ds.ledger.ByKey(req.Key), other)
	return append(all, req)
}

// share grants blocks to the shared ledger, and makes them those of the store. more are
// further blocks on their way back, by prefix. ds.mu is unlocked meanwhile; ds.change
// keeps other changes away.
func (ds *DataStore) share(next []block, more map[netip.Prefix]returning) (kept []netip.Prefix, err error) {
	next = ds.withoutLost(next)
	g := Grant{Blocks: ds.granted(next)}
	for _, all := range []map[netip.Prefix]returning{ds.shared.returning, more} {
		g.Returning = slices.AppendSeq(g.Returning, maps.Keys(all))
	}
	given := func(p netip.Prefix) bool { // the cloud has given it anew since its return
		_, b, found := ds.findIn(next, p)
		return found && b.prefix == p
	}
	g.Returning = slices.DeleteFunc(g.Returning, given)
	slices.SortFunc(g.Returning, netip.Prefix.Compare)
	had := map[netip.Prefix]bool{}
	for _, b := range ds.blocks {
		had[b.prefix] = true
	}
	for a, e := range ds.shared.restored {
		if _, b, found := ds.findIn(next, netip.PrefixFrom(a, a.BitLen())); found && !had[b.prefix] && !e.cools {
			g.Claims = ds.addClaim(g.Claims, e)
		}
	}
	for _, c := range g.Claims {
		slices.SortFunc(c.Wanted, netip.Addr.Compare)
	}
	slices.SortFunc(g.Claims, func(x, y ledger.Request) int { return x.Wanted[0].Compare(y.Wanted[0]) })
	if kept, err = ds.grant(g); err != nil {
		return nil, err
	}
	maps.DeleteFunc(ds.shared.returning, func(p netip.Prefix, _ returning) bool { return given(p) })
	for p, r := range more {
		if !slices.Contains(kept, p) {
			ds.shared.returning[p] = r
		}
	}
	for _, b := range ds.blocks {
		if slices.Contains(kept, b.prefix) {
			if i, _, overlaps := ds.findIn(next, b.prefix); !overlaps {
				next = slices.Insert(next, i, b)
			}
		}
	}
	for _, c := range g.Claims {
		for _, a := range c.Wanted {
			delete(ds.shared.restored, a)
		}
	}
	ds.blocks = next
	maps.DeleteFunc(ds.attached, func(_ string, a *attachment) bool {
		return a.lost && !slices.ContainsFunc(next, func(b block) bool { return b.of.of == a })
	})
	ds.sortPools()
	return kept, nil
}

func (ds *DataStore) grant(g Grant) ([]netip.Prefix, error) {
	ds.mu.Unlock()
	defer ds.mu.Lock()
	return ds.shared.grants.Grant(context.Background(), g)
}

// granted returns the blocks in the order in which they are filled: the interface with
// the lowest device number first, so that the others run empty.
func (ds *DataStore) granted(all []block) (granted []GrantedBlock) {
	for _, a := range ds.sorted() {
		for _, b := range all {
			if b.of.of == a {
				granted = append(granted, GrantedBlock{b.prefix, a.ID, ds.isUsable(b)})
			}
		}
	}
	return granted
}

// isUsable reports whether new addresses are allocated from a block.
func (ds *DataStore) isUsable(b block) bool {
	a := b.of.of
	return !b.lost && !a.lost && !a.Excluded && !a.Trunk && b.of.prefixes == ds.opt.PrefixMode
}

// withoutLost leaves out lost blocks without a lease.
func (ds *DataStore) withoutLost(all []block) []block {
	held := map[netip.Prefix]bool{}
	for _, b := range ds.ledger.Stats() {
		if b.Pool == ds.shared.pool && b.Held+b.Quarantined > 0 {
			held[b.Block] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(b block) bool {
		return (b.lost || b.of.of.lost) && !held[b.prefix]
	})
}

// Returning returns the blocks that the caller has to return to the cloud, by interface.
// Those whose interface is not known are under "".
func (ds *DataStore) Returning() map[string][]netip.Prefix {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	all := map[string][]netip.Prefix{}
	if ds.shared == nil {
		return all
	}
	for p, r := range ds.shared.returning {
		if r.done == nil {
			all[r.eni] = append(all[r.eni], p)
		}
	}
	for _, list := range all {
		slices.SortFunc(list, netip.Prefix.Compare)
	}
	return all
}

// Returned notes that the cloud has taken blocks back.
func (ds *DataStore) Returned(blocks []netip.Prefix) {
	defer ds.lock()()
	if ds.shared == nil {
		return
	}
	for _, p := range blocks {
		ds.returned(p)
	}
}

func (ds *DataStore) returned(p netip.Prefix) {
	if r, ok := ds.shared.returning[p]; ok && r.done == nil {
		now := ds.opt.Uptime()
		r.done = &now
		ds.shared.returning[p] = r
	}
}

// reviewReturning compares the blocks on their way back with a reading of the cloud. A
// block that the cloud shows for longer than a reading can be stale has to be returned
// again; one that it no longer shows is forgotten after that time.
func (ds *DataStore) reviewReturning(seen []Attachment) error {
	defer ds.lock()()
	if ds.shared == nil {
		return nil
	}
	on := map[netip.Prefix]string{}
	present := map[string]bool{}
	for _, a := range seen {
		present[a.ID] = true
		for _, p := range a.Blocks {
			on[p] = a.ID
		}
	}
	now, before := ds.opt.Uptime(), len(ds.shared.returning)
	for p, r := range ds.shared.returning {
		eni, shown := on[p]
		over := r.done != nil && now-*r.done >= recentRemoval
		switch {
		case shown && (over || r.eni != eni):
			ds.shared.returning[p] = returning{eni: eni, done: unless(over, r.done)}
		case !shown && r.done == nil && (r.eni == "" || !present[r.eni]):
			ds.returned(p)
		case !shown && over:
			delete(ds.shared.returning, p)
		}
	}
	maps.DeleteFunc(ds.shared.deleting, func(id string, at time.Duration) bool {
		return now-at >= recentRemoval
	})
	if before == len(ds.shared.returning) && len(ds.withoutLost(ds.blocks)) == len(ds.blocks) {
		return nil
	}
	_, err := ds.share(ds.blocks, nil)
	return err
}

func unless[T any](over bool, x *T) *T {
	if over {
		return nil
	}
	return x
}

// returnBlocks takes blocks out of the shared ledger for their return to the cloud. It
// returns those that were taken out; the remaining ones have addresses in use.
func (ds *DataStore) returnBlocks(eni string, blocks []netip.Prefix) (taken []netip.Prefix, err error) {
	more := map[netip.Prefix]returning{}
	for _, p := range blocks {
		more[p] = returning{eni: eni}
	}
	next := slices.DeleteFunc(slices.Clone(ds.blocks), func(b block) bool {
		_, out := more[b.prefix]
		return out
	})
	kept, err := ds.share(next, more)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(blocks), func(p netip.Prefix) bool { return slices.Contains(kept, p) }), nil
}

// ReturnUnused takes the unused blocks from which nothing may be allocated out of the
// shared ledger: of excluded interfaces and of the other kind. Returning has them then.
// Blocks of a trunk interface stay, and those of an excluded interface that another program
// has made: they may be that program's.
func (ds *DataStore) ReturnUnused() error {
	defer ds.lock()()
	if ds.shared == nil {
		return nil
	}
	used := map[netip.Prefix]bool{}
	for _, b := range ds.ledger.Stats() {
		if b.Pool == ds.shared.pool && b.Held+b.Cooling+b.Quarantined > 0 {
			used[b.Block] = true
		}
	}
	unused := map[string][]netip.Prefix{}
	for _, b := range ds.blocks {
		a := b.of.of
		if ds.isUsable(b) || used[b.prefix] || b.lost || a.lost || a.Trunk || a.Excluded && a.Foreign {
			continue
		}
		unused[a.ID] = append(unused[a.ID], b.prefix)
	}
	for _, id := range slices.Sorted(maps.Keys(unused)) {
		if _, err := ds.returnBlocks(id, unused[id]); err != nil {
			return fmt.Errorf("return unused blocks of interface %q: %w", id, err)
		}
	}
	return nil
}

// refresh follows changes of an interface of a store with a shared ledger.
func (ds *DataStore) refresh(i Interface) error {
	defer ds.lock()()
	a := ds.attached[i.ID]
	if ds.shared == nil || a == nil || a.Interface == i {
		return nil
	}
	was := a.Interface
	a.Interface = i
	if _, err := ds.share(ds.blocks, nil); err != nil {
		a.Interface = was
		return err
	}
	return nil
}

// Regrant grants the present blocks again, after a change of what the Granter knows of their
// interfaces. A store with a ledger of its own has no Granter.
func (ds *DataStore) Regrant() error {
	defer ds.lock()()
	if ds.shared == nil {
		return nil
	}
	if _, err := ds.share(ds.blocks, nil); err != nil {
		return fmt.Errorf("grant the blocks of the interfaces again: %w", err)
	}
	return nil
}

// Known returns the blocks that the store has granted last, or that Attach has restored.
func (ds *DataStore) Known() []GrantedBlock {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.granted(ds.blocks)
}

// forget removes blocks that the cloud no longer has from the shared ledger. One with
// leases stays, without new ones, until they end.
func (ds *DataStore) forget(gone func(block) bool) error {
	next := slices.Clone(ds.blocks)
	now := ds.opt.Uptime()
	for i := range next {
		if gone(next[i]) {
			next[i].lost = true
			ds.removed[next[i].prefix] = now
		}
	}
	_, err := ds.share(next, nil)
	return err
}

// Lost returns the blocks with leases that the cloud no longer has, by interface.
func (ds *DataStore) Lost() map[string][]netip.Prefix {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	lost := map[string][]netip.Prefix{}
	for _, b := range ds.blocks {
		if b.lost || b.of.of.lost {
			lost[b.of.of.ID] = append(lost[b.of.of.ID], b.prefix)
		}
	}
	return lost
}

// Deleted notes that the cloud has deleted an interface with its blocks.
func (ds *DataStore) Deleted(eniID string) {
	defer ds.lock()()
	if ds.shared == nil {
		return
	}
	ds.shared.deleting[eniID] = ds.opt.Uptime()
	for p, r := range ds.shared.returning {
		if r.eni == eniID {
			ds.returned(p)
		}
	}
}

// isDeleting reports whether an interface was removed from the store, or deleted by the
// cloud, less than a minute ago: the cloud may still show it.
func (ds *DataStore) isDeleting(eniID string) bool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if ds.shared == nil {
		return false
	}
	_, ok := ds.shared.deleting[eniID]
	return ok
}
