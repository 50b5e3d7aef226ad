// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// RequestPool gives the pool that is asked for, or one that is free.
func (d *Driver) RequestPool(req PoolRequest) (AllocatedPool, error) {
	e, err := d.requestPool(context.Background(), req)
	if err != nil {
		return AllocatedPool{}, fmt.Errorf("request pool %q in %q: %w", req.Pool, req.AddressSpace, err)
	}
	return AllocatedPool{PoolID: e.key, Pool: e.book.prefix}, nil
}

// wish is a PoolRequest that was read.
type wish struct {
	id      poolID
	family  ledger.Family
	bits    int // of a pool that is to be chosen, 0 for the usual one
	overlap bool
}

// read checks a request. The prefix says the family, where there is one: a flag
// that contradicts it would make a pool that nobody can find again.
func (d *Driver) read(req PoolRequest) (wish, error) {
	w := wish{id: poolID{space: req.AddressSpace, group: req.Options[GroupOption]}, overlap: req.Options[OverlapOption] == "true"}
	if d.realms[req.AddressSpace] == nil {
		return w, fmt.Errorf("%w %q: there are %q and %q", ErrInvalidAddressSpace, req.AddressSpace, d.config.Local.Name, d.config.Global.Name)
	}
	if req.V6 {
		w.family = ledger.IPv6
	}
	if v := req.Options[OverlapOption]; v != "" && v != "true" && v != "false" {
		return w, fmt.Errorf("%w: option %s is %q, it must be true or false", ErrInvalidPool, OverlapOption, v)
	}
	if req.Pool != "" {
		p, err := netip.ParsePrefix(req.Pool)
		if err != nil {
			return w, fmt.Errorf("%w: %w", ErrInvalidPool, err)
		}
		w.family = ledger.FamilyOf(p.Addr().Unmap())
		if p.Addr().IsUnspecified() {
			w.bits = p.Bits()
		} else if w.id.prefix = canonical(p); w.id.prefix.Bits() <= 0 {
			return w, fmt.Errorf("%w: %s has no network part", ErrInvalidPool, p)
		}
	}
	if req.SubPool == "" {
		return w, nil
	}
	sub, err := netip.ParsePrefix(req.SubPool)
	switch {
	case err != nil:
		return w, fmt.Errorf("%w: %w", ErrInvalidSubPool, err)
	case !w.id.prefix.IsValid():
		return w, fmt.Errorf("%w: %s is a part of no pool that is named", ErrInvalidSubPool, sub)
	}
	switch sub = canonical(sub); {
	case within(w.id.prefix, sub): // all of it; networks of old engines have larger ones
	case within(sub, w.id.prefix):
		w.id.sub = sub
	default:
		return w, fmt.Errorf("%w: %s is not in %s", ErrInvalidSubPool, sub, w.id.prefix)
	}
	return w, nil
}

func (d *Driver) requestPool(ctx context.Context, req PoolRequest) (*entry, error) {
	w, err := d.read(req)
	if err != nil {
		return nil, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	if len(d.shaky) > 0 {
		if err := d.changePools(ctx, PoolChange{}); err != nil {
			return nil, err
		}
	}
	r, chosen := d.realms[w.id.space], !w.id.prefix.IsValid()
	host := d.networks(w.overlap)
	if chosen {
		if err := d.choose(r, &w, host); err != nil {
			return nil, err
		}
	} else if b := r.books[w.id.prefix]; b != nil {
		if b.pods {
			w.id.pods = b.pool
		}
	} else {
		w.id.pods = d.podPoolOf(r, w.id.prefix)
		if w.id.pods != "" {
			host = nil // the pod block is one of the node's subnets
		}
		if !w.overlap {
			if err := r.overlapping(w.id.prefix, host); err != nil {
				return nil, err
			}
		}
	}
	key := w.id.String()
	if e := d.entries[key]; e != nil {
		return e, d.recount(ctx, e, 1)
	}
	e := &entry{id: w.id, key: key, refs: 1, chosen: chosen}
	if err := d.save(ctx, saving{key, e.record()}); err != nil {
		return nil, err
	}
	d.insert(e)
	d.log.LogAttrs(ctx, slog.LevelInfo, "Docker pool taken", slog.String("pool", key), slog.Bool("chosen", chosen))
	return e, nil
}

// networks are what no pool may overlap.
func (d *Driver) networks(overlap bool) []netip.Prefix {
	if d.host == nil || overlap {
		return nil
	}
	return d.host.Networks()
}

// choose fills in the prefix of a wish without one.
func (d *Driver) choose(r *realm, w *wish, host []netip.Prefix) (err error) {
	if r.pods.Pool != "" {
		done, err := d.carve(r, w)
		if done || err != nil {
			return err
		}
	}
	w.id.prefix, err = r.choose(w.family, w.bits, host)
	return err
}

// recount counts requests for e.
func (d *Driver) recount(ctx context.Context, e *entry, n int) error {
	e.refs += n
	if err := d.save(ctx, saving{e.key, e.record()}); err != nil {
		e.refs -= n
		return err
	}
	return nil
}

// open opens those pools of the ledger that are not open yet: each with the
// first request for an address of it, since until then its record is enough.
func (d *Driver) open(ctx context.Context, entries []*entry) error {
	var change PoolChange
	var books []*book
	for _, e := range entries {
		if b := e.book; !e.gone && !b.open.Load() && !slices.Contains(books, b) {
			b.asked = true
			books, change.Open = append(books, b), append(change.Open, d.grant(b))
		}
	}
	if len(books) == 0 {
		return nil
	}
	if err := d.changePools(ctx, change); err != nil {
		return err
	}
	for _, b := range books {
		b.open.Store(true)
	}
	return nil
}

// changePools changes pools of the ledger. Where the outcome of an earlier change
// is not known, it is made what it should be on the way.
func (d *Driver) changePools(ctx context.Context, change PoolChange) error {
	opens := func(name string) bool {
		return slices.ContainsFunc(change.Open, func(g PoolGrant) bool { return g.Pool.Name == name })
	}
	closes := func(name string) bool {
		return slices.ContainsFunc(change.Close, func(c PoolClosing) bool { return c.Pool == name })
	}
	for name := range d.strays {
		if !opens(name) && !closes(name) {
			change.Close = append(change.Close, PoolClosing{Pool: name})
		}
	}
	for name, b := range d.shaky {
		if !opens(name) && !closes(name) {
			change.Open = append(change.Open, d.grant(b))
		}
	}
	if err := d.opener.Change(ctx, change); err != nil {
		return fmt.Errorf("change the ledger's pools: %w", err)
	}
	clear(d.strays)
	clear(d.shaky)
	return nil
}

// ReleasePool takes one request for the pool back; the last one ends the pool
// with all its leases.
func (d *Driver) ReleasePool(poolID string) error {
	if err := d.releasePool(context.Background(), poolID); err != nil {
		return fmt.Errorf("release pool %q: %w", poolID, err)
	}
	return nil
}

func (d *Driver) releasePool(ctx context.Context, key string) error {
	d.change.Lock()
	defer d.change.Unlock()
	e := d.entries[key]
	if e == nil {
		return ErrBadPool
	}
	if e.refs > 1 {
		return d.recount(ctx, e, -1)
	}
	_, err := d.end(ctx, e, ending{allow: func([]ledger.Lease) error { return nil }})
	return err
}

// ending selects how a pool ends.
type ending struct {
	allow   func([]ledger.Lease) error
	forever bool // with leases it stays on record as ended
}

// end ends a pool with all its leases and returns them, unless how.allow refuses
// it. Its caller holds change.
func (d *Driver) end(ctx context.Context, e *entry, how ending) ([]ledger.Lease, error) {
	e.book.life.Lock()
	defer e.book.life.Unlock()
	last, members := e.book.entries == 1, d.members(e)
	leases := d.leasesOf(e, members)
	if err := how.allow(leases); err != nil {
		return nil, err
	}
	if len(leases) == 0 {
		return nil, d.endEmpty(ctx, e, last)
	}
	closing := e.record()
	closing.Closing, closing.Ended = true, how.forever // from here on a crash ends the pool
	if err := d.save(ctx, saving{e.key, closing}); err != nil {
		return nil, err
	}
	keys := keysOf(leases)
	var err error
	if last && !e.book.pods {
		err = d.changePools(ctx, PoolChange{Close: []PoolClosing{{Pool: e.book.pool, Release: keys}}})
	} else {
		err = d.releaseKeys(ctx, keys)
	}
	if err != nil {
		d.keep(ctx, e)
		return nil, err
	}
	for _, l := range leases {
		if i := slices.IndexFunc(members, func(m *entry) bool { return m.book.pool == l.Pool && m.book.prefix.Contains(l.Addr) }); i >= 0 {
			d.ended(members[i].book, l.Addr)
		}
	}
	d.forget(e)
	if how.forever {
		d.mu.Lock()
		d.closed[e.key] = struct{}{}
		d.mu.Unlock()
		return leases, nil
	}
	if err := d.save(ctx, saving{e.key, nil}); err != nil {
		d.log.Warn("a Docker pool is released, and its record still to be deleted", "pool", e.key, "error", err)
	}
	return leases, nil
}

// endEmpty ends a pool without leases; last is set if no other pool uses its
// addresses.
func (d *Driver) endEmpty(ctx context.Context, e *entry, last bool) error {
	if err := d.save(ctx, saving{e.key, nil}); err != nil {
		return err
	}
	d.forget(e)
	if last && e.book.asked { // a crash now leaves a pool without leases: the next start closes it
		d.strays[e.book.pool] = struct{}{}
		if err := d.changePools(ctx, PoolChange{}); err != nil {
			d.log.Warn("a Docker pool is released, and is still to be closed in the ledger", "pool", e.key, "error", err)
		}
	}
	return nil
}

// forget makes e unknown.
func (d *Driver) forget(e *entry) {
	e.gone = true
	d.remove(e)
	d.log.LogAttrs(context.Background(), slog.LevelInfo, "Docker pool released", slog.String("pool", e.key))
}

// keep takes back that e is closing. Its pool is opened again, since what has
// failed may still be done. If that fails, too, it is for the next change.
func (d *Driver) keep(ctx context.Context, e *entry) {
	if !e.book.pods {
		d.shaky[e.book.pool] = e.book
	}
	err := d.save(ctx, saving{e.key, e.record()})
	if err == nil && e.book.pods {
		err = d.ledger.Begin().Commit(ctx) // nothing, but for what the failed commit may have left
	} else if err == nil {
		err = d.changePools(ctx, PoolChange{})
	}
	if err != nil {
		d.log.Warn("a Docker pool is kept whose release failed; after a crash now it may be gone", "pool", e.key, "error", err)
	}
}

// leasesOf are the leases that end with e: those that were taken through it,
// and those that others of its group have taken from a book that ends.
func (d *Driver) leasesOf(e *entry, members []*entry) (found []ledger.Lease) {
	live := int64(0)
	for _, m := range members {
		live += m.book.live.Load()
	}
	if live <= 0 {
		return nil
	}
	last := e.book.entries == 1 && !e.book.pods
	for _, l := range d.ledger.Leases() {
		if _, ours := d.poolOf(l); ours && (l.Key.Network == e.key || last && l.Pool == e.book.pool) {
			found = append(found, l)
		}
	}
	return found
}

func keysOf(leases []ledger.Lease) (keys []ledger.Key) {
	for _, l := range leases {
		keys = append(keys, l.Key)
	}
	return keys
}

// releaseKeys releases leases together.
func (d *Driver) releaseKeys(ctx context.Context, keys []ledger.Key) error {
	st := d.ledger.Begin()
	if err := releaseAll(st, keys); err != nil {
		st.Undo()
		return err
	}
	return st.Commit(ctx)
}
