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

// RequestPool returns the pool that is asked for, or a free one.
func (d *Driver) RequestPool(req PoolRequest) (AllocatedPool, error) {
	p, err := d.requestPool(context.Background(), req)
	if err != nil {
		return AllocatedPool{}, fmt.Errorf("request pool %q in %q: %w", req.Pool, req.AddressSpace, err)
	}
	return AllocatedPool{PoolID: p.key, Pool: p.id.prefix}, nil
}

// wanted is a PoolRequest after parsing.
type wanted struct {
	id      poolID        // without a prefix, if the Driver chooses it
	family  ledger.Family // of the pool
	bits    int           // length of a pool that the Driver chooses, 0 for the usual one
	overlap bool
}

// parse checks a request. A prefix decides the family: a flag that contradicts
// it would make a pool that nothing can find again.
func (d *Driver) parse(req PoolRequest) (wanted, error) {
	w := wanted{
		id:      poolID{space: req.AddressSpace, group: req.Options[GroupOption]},
		overlap: req.Options[OverlapOption] == "true",
	}
	if d.spaces[req.AddressSpace] == nil {
		return w, fmt.Errorf("%w %q: want %q or %q",
			ErrInvalidAddressSpace, req.AddressSpace, d.config.Local.Name, d.config.Global.Name)
	}
	if req.V6 {
		w.family = ledger.IPv6
	}
	if v := req.Options[OverlapOption]; v != "" && v != "true" && v != "false" {
		return w, fmt.Errorf("%w: option %s is %q, want true or false", ErrInvalidPool, OverlapOption, v)
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
		return w, fmt.Errorf("%w: %s needs a pool with a prefix that contains it", ErrInvalidSubPool, sub)
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

func (d *Driver) requestPool(ctx context.Context, req PoolRequest) (*pool, error) {
	w, err := d.parse(req)
	if err != nil {
		return nil, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	if err := d.repair(ctx); err != nil {
		return nil, err
	}
	if d.unread { // a new pool must not overlap one that the engine has
		if _, err := d.learn(ctx, w.id); err != nil && d.fresh {
			return nil, err
		}
	}
	chosen := !w.id.prefix.IsValid()
	if chosen {
		err = d.find(&w)
	} else {
		err = d.locate(&w)
	}
	if err != nil {
		return nil, err
	}
	key := w.id.String()
	if p := d.pools[key]; p != nil {
		p.used.Add(1)
		if p.id.space == d.config.Global.Name && !chosen {
			p.life.Lock()
			defer p.life.Unlock()
			p.again.Begin(d.leasesOf(p, false)) // a new leader of the swarm repeats all of its requests
			return p, nil
		}
		return p, d.recount(ctx, p, 1, 0)
	}
	p := newPool(w.id, key)
	p.chosen = chosen
	if err := d.create(ctx, p); err != nil {
		return nil, err
	}
	d.log.LogAttrs(ctx, slog.LevelInfo, "Docker pool opened", slog.String("pool", key), slog.Bool("chosen", chosen))
	return p, nil
}

// find chooses the prefix of a pool.
func (d *Driver) find(w *wanted) (err error) {
	s := d.spaces[w.id.space]
	if s.pods.Pool != "" {
		p, done, err := d.suballocate(s, w.family, w.bits)
		if done && err == nil {
			w.id.prefix, w.id.pods = p, s.pods.Pool
		}
		if done || err != nil {
			return err
		}
	}
	w.id.prefix, err = d.choose(s, w.family, w.bits, d.networks(w.overlap))
	return err
}

// locate decides whether a prefix that is named is a part of the pod block, and
// checks what it overlaps unless a pool of it exists.
func (d *Driver) locate(w *wanted) error {
	s := d.spaces[w.id.space]
	if there := s.pools[w.id.prefix]; len(there) > 0 {
		w.id.pods = there[0].id.pods
		return nil
	}
	w.id.pods = d.podPoolOf(s, w.id.prefix)
	switch {
	case w.overlap:
		return nil
	case w.id.pods != "": // the pod block is one of the node's subnets
		return d.overlapping(w.id, nil)
	}
	return d.overlapping(w.id, d.networks(false))
}

// networks returns the node's networks, which no pool may overlap. A default
// route is not a network.
func (d *Driver) networks(overlap bool) []netip.Prefix {
	if d.host == nil || overlap {
		return nil
	}
	all := slices.Clone(d.host.Networks())
	for i := range all {
		all[i] = canonical(all[i])
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Bits() <= 0 })
}

// create opens the ledger's pool, writes the record and makes p known. A pool of
// the ledger without a record has no leases and is closed by the next change.
func (d *Driver) create(ctx context.Context, p *pool) error {
	opens := !p.fromPods() && len(d.spaces[p.id.space].pools[p.id.prefix]) == 0
	if opens {
		if err := d.changePools(ctx, PoolChange{Open: []PoolGrant{d.grant(p)}}); err != nil {
			return err
		}
	}
	if err := d.save(ctx, saving{p.key, p.record()}); err != nil {
		if opens {
			d.unconfirmed[p.ledger] = struct{}{}
		}
		return err
	}
	d.insert(p)
	return nil
}

// recount changes the number of requests for p, and sets the number of those that are
// kept.
func (d *Driver) recount(ctx context.Context, p *pool, n, kept int) error {
	was := p.kept
	p.requests, p.kept = p.requests+n, kept
	if err := d.save(ctx, saving{p.key, p.record()}); err != nil {
		p.requests, p.kept = p.requests-n, was
		return err
	}
	return nil
}
