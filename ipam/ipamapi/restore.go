// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// restore builds memory from the records and the ledger, and brings these in
// line with each other: pools of the records are opened, those that were being
// released are closed, and pools without a record stay if they have leases.
func (d *Driver) restore(ctx context.Context) error {
	var changes []saving
	closing := map[string]poolID{}
	if err := d.records.Load(ctx, func(key string, value []byte) error {
		id, err := parsePoolID(key)
		if err != nil || d.realms[id.space] == nil {
			d.log.Error("a record of a Docker pool is left alone: it is of no pool ID of a space that is configured", "record", key)
			return nil
		}
		r := record{Version: recordVersion, Refs: 1}
		err = json.Unmarshal(value, &r)
		if r.Version > recordVersion {
			return fmt.Errorf("the record of %s is of version %d, this program knows %d: install the newer program again", key, r.Version, recordVersion)
		}
		if err != nil || r.Refs < 1 && !r.Ended {
			d.log.Error("the record of a Docker pool cannot be read; its ID says what is needed", "pool", key, "error", err)
			r = record{Version: recordVersion, Refs: 1}
			changes = append(changes, saving{key, &r})
		}
		if r.Closing {
			closing[key] = id
			if r.Ended {
				d.closed[key] = struct{}{}
			} else {
				changes = append(changes, saving{key, nil})
			}
			return nil
		}
		d.insert(&entry{id: id, key: key, refs: r.Refs, chosen: r.Chosen, shared: r.Gateways})
		return nil
	}); err != nil {
		return fmt.Errorf("load the records of pools: %w", err)
	}
	var gone []ledger.Key
	held := map[string]bool{} // pools of the ledger
	leases := d.ledger.Leases()
	d.replays.Begin(leases)
	for _, l := range leases {
		id, ok := d.poolOf(l)
		if !ok {
			held[l.Pool] = held[l.Pool] || l.State != ledger.Cooling
			continue
		}
		d.number.Store(max(d.number.Load(), number(l.Key)))
		if _, ok := closing[l.Key.Network]; ok {
			gone = append(gone, l.Key)
			continue
		}
		held[l.Pool] = true
		if e := d.restoreLease(id, l); e != nil {
			changes = append(changes, saving{e.key, e.record()})
		}
	}
	if err := d.reconcile(ctx, gone, held); err != nil {
		return err
	}
	if len(changes) == 0 {
		return nil
	}
	return d.save(ctx, changes...)
}

// poolOf is the pool that a lease was taken through.
func (d *Driver) poolOf(l ledger.Lease) (poolID, bool) {
	if l.State == ledger.Cooling || l.Purpose == ledger.ForPod {
		return poolID{}, false
	}
	id, err := parsePoolID(l.Key.Network)
	return id, err == nil && d.realms[id.space] != nil
}

// restoreLease counts a lease. A pool of which only the leases are left is
// known again: the engine may still use it.
func (d *Driver) restoreLease(id poolID, l ledger.Lease) (fresh *entry) {
	e := d.entries[l.Key.Network]
	if e == nil {
		d.log.Warn("a Docker pool has leases and no record: it is kept", "pool", l.Key.Network)
		fresh = &entry{id: id, key: l.Key.Network, refs: 1}
		d.insert(fresh)
		e = fresh
	}
	for _, m := range d.members(e) {
		if m.book.pool == l.Pool && m.book.prefix.Contains(l.Addr) {
			m.book.live.Add(1)
			return fresh
		}
	}
	d.log.Warn("a lease is of none of the prefixes of its Docker pool", "address", l.Addr, "pool", l.Key.Network)
	e.book.live.Add(1) // it goes with the pool, or with the one that it is of
	d.early[l.Pool]++
	return fresh
}

// reconcile makes the ledger have the pools of d.entries, and no others but
// those in which something is held.
func (d *Driver) reconcile(ctx context.Context, gone []ledger.Key, held map[string]bool) error {
	open := map[string]*book{}
	var change PoolChange
	for _, key := range slices.Sorted(maps.Keys(d.entries)) {
		if b := d.entries[key].book; !b.pods && open[b.pool] == nil {
			open[b.pool] = b
			change.Open = append(change.Open, d.grant(b))
		}
	}
	idle := map[string]bool{}
	for _, s := range d.ledger.Stats() {
		if open[s.Pool] == nil && strings.HasPrefix(s.Pool, ledgerPrefix) && !idle[s.Pool] && !held[s.Pool] {
			idle[s.Pool] = true
			change.Close = append(change.Close, PoolClosing{Pool: s.Pool})
		}
	}
	if len(gone) > 0 {
		if err := d.releaseKeys(ctx, gone); err != nil {
			return fmt.Errorf("finish the release of pools: %w", err)
		}
	}
	if len(change.Open)+len(change.Close) == 0 {
		return nil
	}
	if err := d.changePools(ctx, change); err != nil {
		return fmt.Errorf("open %d pools, close %d: %w", len(change.Open), len(change.Close), err)
	}
	for _, b := range open {
		b.asked = true
		b.open.Store(true)
	}
	return nil
}

// grant is what the ledger is to know of a book.
func (d *Driver) grant(b *book) PoolGrant {
	return PoolGrant{
		Pool:   ledger.Pool{Name: b.pool, Order: d.config.order(), CoolDown: d.config.CoolDown, Exclude: b.edges},
		Blocks: []netip.Prefix{b.prefix},
	}
}

// insert makes e known, with the book of its prefix, or else its own.
func (d *Driver) insert(e *entry) {
	r := d.realms[e.id.space]
	e.lends, e.alone = e.id.lends(), []*entry{e}
	if b := r.books[e.id.prefix]; b != nil {
		e.book = b
	} else {
		if e.book == nil {
			e.book = newBook(e.id)
		}
		e.book.realm = r
		e.book.live.Add(d.early[e.book.pool])
		delete(d.early, e.book.pool)
		r.add(e.book)
	}
	e.book.entries++
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries[e.key] = e
	delete(d.closed, e.key)
	if e.id.group != "" {
		g := e.id.inGroup()
		d.groups[g] = append(slices.Clone(d.groups[g]), e)
	}
}

// maxReleased bounds the memory of IDs that ended.
const maxReleased = 1 << 16

// remove takes e away, with its book if it was the last one of it.
func (d *Driver) remove(e *entry) {
	if e.book.entries--; e.book.entries == 0 {
		e.book.realm.remove(e.book)
		delete(d.shaky, e.book.pool)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, e.key)
	if len(d.released) >= maxReleased {
		clear(d.released)
	}
	d.released[e.key] = struct{}{}
	if e.id.group != "" {
		g := e.id.inGroup()
		d.groups[g] = slices.DeleteFunc(slices.Clone(d.groups[g]), func(m *entry) bool { return m == e })
		if len(d.groups[g]) == 0 {
			delete(d.groups, g)
		}
	}
}

// members are the pools that serve requests for e: itself first.
func (d *Driver) members(e *entry) []*entry {
	if e.id.group == "" {
		return e.alone
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := []*entry{e}
	for _, m := range d.groups[e.id.inGroup()] {
		if m != e {
			all = append(all, m)
		}
	}
	return all
}
