// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/witness"
)

// EngineReader reads the engine that calls the Driver, in limited time: the engine
// waits for the Driver meanwhile.
type EngineReader interface {
	Read(ctx context.Context) (*witness.EngineView, error)
}

// Engine names the engine that calls the Driver. The zero value: the caller vouches
// that no engine has pools that the records do not have.
type Engine struct {
	Reader EngineReader
	Name   string // of the Driver, as the engine knows it
}

// readRecord is the key of the record that says that the engine has been read since
// the records were created.
const readRecord = "engine"

// startLimit bounds the wait for an engine that has pools on record, and that may itself
// be waiting for the Driver.
const startLimit = 2 * time.Second

// learnAtStart reads the engine before the first request is served. If it cannot be
// read, pools of the records are served: an engine that starts asks for addresses
// before it answers.
func (d *Driver) learnAtStart(ctx context.Context) error {
	if d.engine.Reader == nil {
		return nil
	}
	d.change.Lock()
	defer d.change.Unlock()
	d.unread = true
	reading, cancel := ctx, context.CancelFunc(func() {})
	if !d.fresh {
		reading, cancel = context.WithTimeout(ctx, startLimit)
	}
	view, err := d.engine.Reader.Read(reading)
	cancel()
	if err == nil {
		return d.learnFrom(ctx, view, poolID{}, true)
	}
	if d.fresh && errors.Is(err, witness.ErrNotApplicable) {
		d.fresh = false // the administrator says that there is nothing to read
	}
	d.log.Warn("the engine's networks cannot be read: pools that are not on record get no addresses",
		"newDatabase", d.fresh, "error", err)
	return nil
}

// learn reads the engine because of a request for the pool hint, and reports whether it
// is part of a swarm. Its caller holds change.
func (d *Driver) learn(ctx context.Context, hint poolID) (swarm bool, err error) {
	view, err := d.engine.Reader.Read(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: the engine's networks have to be read first: %w", ErrNotNow, err)
	}
	return view.Swarm, d.learnFrom(ctx, view, hint, false)
}

// learnFrom restores the pools of the engine's networks that the Driver does not have,
// with all their addresses. It first restores the gateways and the auxiliary addresses
// of all networks, then the endpoints and the addresses that users have fixed. With
// all, it also restores addresses of pools that it has. No address of a pool is
// allocated before its own are restored; a crash in between leaves that on record. Its
// caller holds change.
func (d *Driver) learnFrom(ctx context.Context, view *witness.EngineView, hint poolID, all bool) error {
	if err := d.repair(ctx); err != nil {
		return err
	}
	found := attribute(view, d.engine.Name, d.idOf(view.Swarm, hint))
	keys := slices.Sorted(maps.Keys(found))
	keys = slices.DeleteFunc(keys, func(key string) bool {
		_, ended := d.ended[key]
		return ended
	})
	for _, key := range keys {
		if err := d.restorePool(ctx, key, found[key]); err != nil {
			return fmt.Errorf("restore pool %q of the engine: %w", key, err)
		}
	}
	for _, restore := range []func(context.Context, *pool, *attributed) error{
		d.restoreReserved,
		d.restoreHeld,
	} {
		for _, key := range keys {
			p := d.pools[key]
			if !all && !p.unread.Load() {
				continue
			}
			if err := restore(ctx, p, found[key]); err != nil {
				return fmt.Errorf("restore the addresses of pool %q: %w", key, err)
			}
		}
	}
	return d.learned(ctx)
}

// learned records that what the engine has is restored.
func (d *Driver) learned(ctx context.Context) error {
	var changes []saving
	for key, p := range d.pools {
		if p.unread.Load() {
			r := p.record()
			r.Unread = false
			changes = append(changes, saving{key, r})
		}
	}
	if d.fresh {
		changes = append(changes, saving{readRecord, &record{Version: recordVersion}})
	}
	if len(changes) > 0 {
		if err := d.save(ctx, changes...); err != nil {
			return err
		}
	}
	for _, p := range d.pools {
		p.unread.Store(false)
	}
	d.fresh, d.unread = false, false
	return nil
}

// restorePool makes the pool of networks known, with one request for each network.
func (d *Driver) restorePool(ctx context.Context, key string, x *attributed) error {
	if p := d.pools[key]; p != nil {
		if n := x.networks - p.requests; n > 0 {
			return d.recount(ctx, p, n, 0)
		}
		return nil
	}
	p := newPool(x.id, key)
	p.requests = x.networks
	p.unread.Store(true)
	if err := d.create(ctx, p); err != nil {
		return err
	}
	d.log.Warn("a pool of the engine's networks was not on record: it is restored",
		"pool", key, "networks", x.networks, "endpoints", len(x.endpoints))
	return nil
}

// restoreReserved restores the gateways and the auxiliary addresses of a pool. If the
// engine does not name a gateway, it is the one that the Driver allocates first, unless
// that has another use, or an address of this host.
func (d *Driver) restoreReserved(ctx context.Context, p *pool, x *attributed) error {
	gateways := maps.Clone(x.gateways)
	if x.unknown > 0 {
		likely := d.ownAddresses(p.id.prefix)
		if !x.uses(p.first()) {
			likely = append(likely, p.first())
		}
		for _, a := range likely {
			gateways[a] = max(gateways[a], 1)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(gateways), netip.Addr.Compare) {
		gateway := owner{gateway: true, likely: x.gateways[a] == 0}
		if err := d.restoreAddr(ctx, p, holding{a, gateway}); err != nil {
			return err
		}
		if more := gateways[a] - 1 - p.shared[a.String()]; more > 0 {
			if err := d.share(ctx, p, a, more); err != nil {
				return err
			}
		}
	}
	for _, a := range x.aux {
		if err := d.restoreAddr(ctx, p, holding{addr: a}); err != nil {
			return err
		}
	}
	return nil
}

// restoreHeld restores the addresses of endpoints. In a pool that was not on record it
// also restores those that are fixed: otherwise the engine has released them.
func (d *Driver) restoreHeld(ctx context.Context, p *pool, x *attributed) error {
	held := slices.Clone(x.endpoints)
	if p.unread.Load() {
		held = append(held, x.fixed...)
	}
	for _, h := range held {
		if err := d.restoreAddr(ctx, p, h); err != nil {
			return err
		}
	}
	return nil
}

// restoreAddr claims an address that the engine has, unless it has a lease.
func (d *Driver) restoreAddr(ctx context.Context, p *pool, h holding) error {
	m := d.memberWith(p, h.addr)
	if m == nil || m.reserves(h.addr) {
		d.log.Warn("an address of the engine is in no pool of its network", "pool", p.key, "address", h.addr)
		return nil
	}
	_, fresh, err := d.claim(ctx, p, m, h.addr, h.owner)
	switch {
	case errors.Is(err, ErrNoAvailableIPs), errors.Is(err, ErrIPAlreadyAllocated):
		d.log.Warn("an address of the engine is not restored", "pool", p.key, "address", h.addr, "error", err)
		return nil
	case err != nil:
		return err
	}
	if fresh {
		holder, _ := d.ledger.Lookup(m.ledger, h.addr)
		of, _ := HolderOf(holder)
		d.log.Info("an address of the engine is restored", "pool", p.key, "address", h.addr, "holder", of.String())
	}
	return nil
}

// AddressView is implemented by a HostView that also lists the addresses of the
// machine.
type AddressView interface {
	// Addresses returns the addresses of the host's links.
	Addresses() []netip.Addr
}

// ownAddresses returns the addresses of this host in a prefix: those of the bridges of
// networks, which are their gateways.
func (d *Driver) ownAddresses(in netip.Prefix) (own []netip.Addr) {
	view, ok := d.host.(AddressView)
	if !ok {
		return nil
	}
	for _, a := range view.Addresses() {
		if in.Contains(a) && !slices.Contains(own, a) {
			own = append(own, a)
		}
	}
	return own
}
