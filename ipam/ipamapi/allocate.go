// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// request serves RequestAddress: it returns an address with the length of its
// pool's prefix. The zero Addr asks for any address.
func (d *Driver) request(
	ctx context.Context,
	key string,
	a netip.Addr,
	options map[string]string,
) (netip.Prefix, error) {
	o := ownerOf(options)
	p, err := d.pool(ctx, key)
	if err != nil {
		return netip.Prefix{}, err
	}
	p.used.Add(1)
	if o.gateway { // a gateway may change the record
		d.change.Lock()
		defer d.change.Unlock()
	}
	p.life.RLock()
	defer p.life.RUnlock()
	if p.ended {
		return netip.Prefix{}, ErrPoolNotFound
	}
	if a.IsValid() {
		return d.allocateAddr(ctx, p, a, o)
	}
	return d.allocate(ctx, p, o, d.config.Serial || options[AllocSerialPrefix] == "true")
}

// pool returns the pool of an ID. An unknown ID that did not end is of a driver
// whose records are lost: its pool is opened again.
func (d *Driver) pool(ctx context.Context, key string) (*pool, error) {
	p, ended := d.known(key)
	switch {
	case p != nil && !p.unread.Load():
		return p, nil
	case ended:
		return nil, ErrPoolNotFound
	}
	return d.reopen(ctx, key)
}

// known returns the pool of an ID, nil if there is none, and whether it ended.
func (d *Driver) known(key string) (p *pool, ended bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if p = d.pools[key]; p == nil {
		_, ended = d.ended[key]
	}
	return p, ended
}

// reopen opens a pool by its ID. It reserves the address that Docker gives to a
// gateway by default: the engine does not say again which address that is.
func (d *Driver) reopen(ctx context.Context, key string) (*pool, error) {
	id, err := parsePoolID(key)
	if err != nil {
		return nil, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	if p := d.pools[key]; p != nil && !p.unread.Load() {
		return p, nil
	}
	s := d.spaces[id.space]
	if s == nil {
		return nil, fmt.Errorf("%w: %q", ErrBadPool, id.space)
	}
	if err := d.repair(ctx); err != nil {
		return nil, err
	}
	if d.engine.Reader != nil {
		swarm, err := d.learn(ctx, id)
		if err != nil {
			return nil, err
		}
		if p := d.pools[key]; p != nil {
			return p, nil
		}
		if swarm && id.space == d.config.Global.Name {
			return nil, fmt.Errorf("%w: the engine is part of a swarm and does not show which addresses of the pool "+
				"other nodes use: restart the engine of the swarm's leader, which then asks for all of them again",
				ErrNotNow)
		}
	}
	if there := s.pools[id.prefix]; len(there) == 0 {
		if err := d.overlapping(id, nil); err != nil {
			return nil, err
		}
	} else if name := there[0].ledger; name != id.ledgerPool() {
		return nil, fmt.Errorf("%w: %s is of pool %q of the ledger", ErrPoolOverlap, id.prefix, name)
	}
	p := newPool(id, key)
	if err := d.create(ctx, p); err != nil {
		return nil, err
	}
	d.log.Warn("a Docker pool without a record is served as its ID says", "pool", key)
	if _, _, err := d.claim(ctx, p, p, p.first(), owner{gateway: true, likely: true}); err != nil {
		d.log.Warn("the likely gateway of a Docker pool is not reserved",
			"pool", key, "address", p.first(), "error", err)
	}
	return p, nil
}

// allocate allocates any address: of p or, if that is full, of the next pool of
// its group. An endpoint that repeats its request gets the address that it has.
func (d *Driver) allocate(ctx context.Context, p *pool, o owner, serial bool) (netip.Prefix, error) {
	if o.repeats() {
		if have := d.ledger.ByKey(o.repeatable(p.key)); len(have) > 0 {
			if m := d.memberWith(p, have[0].Addr); m != nil {
				return netip.PrefixFrom(have[0].Addr, m.id.prefix.Bits()), d.flush(ctx)
			}
		}
	}
	var full error
	for _, m := range d.members(p) {
		var a netip.Addr
		err := p.with(m, func() (err error) {
			req := m.request
			req.Key, req.Purpose, req.Order = o.numbered(p.key, d.number.Add(1)), o.purpose(m), d.config.order()
			if serial {
				req.Order = ledger.Serial
			}
			if o.repeats() {
				req.Key, req.More = o.repeatable(p.key), false
			}
			a, _, err = d.ledger.ClaimAddr(ctx, &req)
			return classed(err)
		})
		if err == nil {
			return netip.PrefixFrom(a, m.id.prefix.Bits()), nil
		}
		if !errors.Is(err, ErrNoAvailableIPs) {
			return netip.Prefix{}, err
		}
		if full != nil {
			err = fmt.Errorf("%w; %w", full, err)
		}
		full = err
	}
	return netip.Prefix{}, full
}

// allocateAddr allocates a, or repeats the answer to an earlier request for it.
func (d *Driver) allocateAddr(ctx context.Context, p *pool, a netip.Addr, o owner) (netip.Prefix, error) {
	m := d.memberWith(p, a)
	if m == nil {
		return netip.Prefix{}, fmt.Errorf("%w: %s is not in %s", ErrIPOutOfRange, a, p.id.prefix)
	}
	if m.reserves(a) {
		return netip.Prefix{}, fmt.Errorf("%w: %s is the network or the broadcast address of %s",
			ErrIPAlreadyAllocated, a, m.id.prefix)
	}
	err := p.with(m, func() error {
		l, fresh, err := d.claim(ctx, p, m, a, o)
		switch {
		case err != nil || fresh:
		case holder(l).fixed && p.allocated(l):
			l, fresh, err = d.takeOver(ctx, p, m, l, o, "its container starts")
		case o.gateway && !p.allocated(l) && d.isGuess(l):
			l, fresh, err = d.takeOver(ctx, p, m, l, o, "it is the gateway of another pool")
		}
		if err == nil && !fresh {
			err = d.repeat(ctx, p, l, o)
		}
		return err
	})
	return netip.PrefixFrom(a, m.id.prefix.Bits()), err
}

// claim claims a of m for p. If a has a lease, it returns that one, which is not fresh.
func (d *Driver) claim(
	ctx context.Context,
	p, m *pool,
	a netip.Addr,
	o owner,
) (l ledger.Lease, fresh bool, err error) {
	for range 2 { // the second time for a lease that another call has claimed in between
		if l, ok := d.ledger.Lookup(m.ledger, a); ok && l.State != ledger.Cooling {
			return l, false, nil
		}
		leases, fresh, claimed := d.ledger.Claim(ctx, ledger.Request{
			Pool:    m.ledger,
			Key:     o.named(p.key, a),
			Purpose: o.purpose(m),
			Wanted:  []netip.Addr{a},
		})
		if claimed == nil && fresh {
			return leases[0], true, nil
		}
		if err = classed(claimed); claimed != nil && !errors.Is(claimed, ledger.ErrTaken) {
			break
		}
	}
	if err == nil {
		err = ErrIPAlreadyAllocated
	}
	return ledger.Lease{}, false, err
}

// isGuess reports whether a lease is the likely gateway of a pool that was opened by its ID,
// and the engine has not asked for it through that pool. The ID may be one that the engine has
// given up.
func (d *Driver) isGuess(l ledger.Lease) bool {
	if !holder(l).likely {
		return false
	}
	p := d.pools[l.Key.Network]
	return p == nil || p.shared[l.Addr.String()] == 0
}

// takeOver claims an address that was restored for a container that did not run, or as a
// likely gateway: the engine does not say which container asks for it.
func (d *Driver) takeOver(
	ctx context.Context,
	p, m *pool,
	l ledger.Lease,
	o owner,
	reason string,
) (_ ledger.Lease, fresh bool, err error) {
	_, err = d.ledger.Free(ctx, ledger.Selector{
		Addr:       l.Addr,
		Pool:       l.Pool,
		Purpose:    l.Purpose,
		Generation: l.Generation,
		Reason:     reason,
	})
	if err != nil && !errors.Is(err, ledger.ErrNotOwner) {
		return l, false, err
	}
	return d.claim(ctx, p, m, l.Addr, o)
}

// repeat decides whether lease l answers a request for its address.
func (d *Driver) repeat(ctx context.Context, p *pool, l ledger.Lease, o owner) error {
	if err := d.flush(ctx); err != nil {
		return err
	}
	has := holder(l)
	switch {
	case !p.allocated(l):
	case o.gateway && has.is(o) && p.id.space == d.config.Global.Name:
		return nil // requests there are not counted
	case o.gateway && has.is(o):
		return d.share(ctx, p, l.Addr, 1)
	default:
		if !has.is(o) && o.known() {
			break
		}
		start, again := d.replays.Confirm(l.Generation), p.again.Confirm(l.Generation)
		if has.is(o) || start || again {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is %s by %s for a %s", ErrIPAlreadyAllocated, l.Addr, l.State, l.Key, l.Purpose)
}

// allocated reports whether l was requested through p or through a pool of its group.
func (p *pool) allocated(l ledger.Lease) bool {
	switch {
	case l.Purpose == ledger.ForPod:
		return false
	case l.Key.Network == p.key || p.id.group == "":
		return l.Key.Network == p.key
	}
	id, err := parsePoolID(l.Key.Network)
	return err == nil && id.inGroup() == p.id.inGroup()
}

// share changes the number of networks that have a gateway, beside the first one.
func (d *Driver) share(ctx context.Context, p *pool, a netip.Addr, n int) error {
	was, key := p.shared[a.String()], a.String()
	set := func(n int) {
		if p.shared == nil {
			p.shared = map[string]int{}
		}
		if p.shared[key] = n; n == 0 {
			delete(p.shared, key)
		}
	}
	set(was + n)
	if err := d.save(ctx, saving{p.key, p.record()}); err != nil {
		set(was)
		return err
	}
	return nil
}
