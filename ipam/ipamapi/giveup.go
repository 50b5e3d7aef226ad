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

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Observation holds what one round of the witnesses has shown.
type Observation struct {
	Engine *witness.EngineView // nil: it cannot be read
	// InUse says by which link an address is in use on this machine, "" if by none. nil:
	// that is not known, and nothing is given up.
	InUse func(netip.Addr) string
	// Uptime is a clock that does not jump.
	Uptime time.Duration
	Now    time.Time // for the record
}

// GivenUp describes requests for a pool that no network of the engine accounts for.
type GivenUp struct {
	Requests int       `json:"requests"`
	Since    time.Time `json:"since"`
	Evidence string    `json:"evidence"`
}

// suspicion is the surplus of requests for a pool in the last observations.
type suspicion struct {
	engine  string // its ID
	used    uint64 // pool.used at the first of them
	surplus int
	first   time.Duration // uptime of the first of them
	pending bool
	since   time.Duration // uptime at which they became pending
}

// Observe compares the requests for each pool with the engine's networks. Requests that
// two observations, at least Config.GiveUpAfter apart, cannot attribute to a network
// become pending (Pool.GivenUp). After Config.Undo they are taken back, as if the engine
// had released them; with the last request the pool ends. A request for the pool, or a
// network that has it, ends that at any time; so does KeepPool. A pool whose addresses
// are in use keeps its requests. An engine of a swarm is not asked about pools of the
// global space.
// If the engine or the use of addresses is not known, earlier observations do not count
// any more.
//
// Observe also restores the pools of an engine that could not be read at the start.
func (d *Driver) Observe(ctx context.Context, o Observation) error {
	d.change.Lock()
	defer d.change.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("compare Docker's pools with the engine: %w", context.Cause(ctx))
	}
	ctx = context.WithoutCancel(ctx)
	if o.Engine == nil {
		clear(d.suspects)
		return nil
	}
	if d.unread {
		if err := d.learnFrom(ctx, o.Engine, poolID{}, false); err != nil {
			return err
		}
	}
	if o.InUse == nil {
		clear(d.suspects)
		return nil
	}
	found := attribute(o.Engine, d.engine.Name, d.idOf(false, poolID{}))
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(d.pools)) {
		p := d.pools[key]
		if p.id.space == d.config.Global.Name && o.Engine.Swarm {
			delete(d.suspects, key)
			continue
		}
		errs = append(errs, d.observePool(ctx, p, found.networksOf(p, d.pools), o))
	}
	maps.DeleteFunc(d.suspects, func(key string, _ *suspicion) bool { return d.pools[key] == nil })
	return errors.Join(errs...)
}

// observePool compares the requests for p with the number of its networks.
func (d *Driver) observePool(ctx context.Context, p *pool, networks int, o Observation) error {
	surplus := p.requests - networks - p.kept
	held := ""
	if networks == 0 {
		held = d.heldBy(p, o)
	}
	s := d.suspects[p.key]
	switch {
	case surplus <= 0 || held != "":
		delete(d.suspects, p.key)
		return d.pend(ctx, p, nil, held)
	case s == nil || s.engine != o.Engine.ID || s.used != p.used.Load() || s.surplus != surplus:
		d.suspects[p.key] = &suspicion{
			engine:  o.Engine.ID,
			used:    p.used.Load(),
			surplus: surplus,
			first:   o.Uptime,
		}
		if s != nil {
			return d.pend(ctx, p, nil, "it was requested, or the engine is another one")
		}
		return nil
	case o.Uptime-s.first < d.config.GiveUpAfter || o.Uptime == s.first:
		return nil
	case !s.pending:
		s.pending, s.since = true, o.Uptime
		return d.pend(ctx, p, &GivenUp{surplus, o.Now.UTC(), evidence(p, networks, o)}, "")
	case o.Uptime-s.since < d.config.Undo:
		return nil
	}
	delete(d.suspects, p.key)
	return d.giveUp(ctx, p, surplus, o)
}

// evidence says what the engine has shown about the requests for p.
func evidence(p *pool, networks int, o Observation) string {
	return witness.Evidence{
		Witness: witness.Engine,
		Text: fmt.Sprintf("%d of the %d networks of engine %s have %s, which was requested %d times",
			networks, len(o.Engine.Networks), o.Engine.ID, p.id.prefix, p.requests),
	}.String()
}

// heldBy returns how an address of p is in use on this machine, "" if none is.
func (d *Driver) heldBy(p *pool, o Observation) string {
	for _, l := range d.leasesOf(p, false) {
		if by := o.InUse(l.Addr); by != "" {
			return by
		}
	}
	return ""
}

// pend records that requests for p are given up, or (nil) that they are not.
func (d *Driver) pend(ctx context.Context, p *pool, g *GivenUp, why string) error {
	was := p.givenUp
	if was == nil && g == nil {
		return nil
	}
	p.givenUp = g
	if err := d.save(ctx, saving{p.key, p.record()}); err != nil {
		p.givenUp = was
		return fmt.Errorf("record what becomes of pool %q: %w", p.key, err)
	}
	if g == nil {
		d.log.Info("a Docker pool is not given up", "pool", p.key, "reason", why)
		return nil
	}
	d.log.Warn("no network of the engine has the pool: it is given up unless this is undone",
		"pool", p.key, "requests", g.Requests, "evidence", g.Evidence, "undoFor", d.config.Undo)
	return nil
}

// giveUp takes back requests for p; without any left the pool ends.
func (d *Driver) giveUp(ctx context.Context, p *pool, surplus int, o Observation) error {
	g := p.givenUp
	if g == nil {
		return nil
	}
	reason := g.Evidence + ", since " + g.Since.Format(time.RFC3339)
	if p.requests > surplus {
		p.givenUp = nil
		if err := d.recount(ctx, p, -surplus, p.kept); err != nil {
			p.givenUp = g
			return err
		}
		d.log.Warn("requests for a Docker pool are given up", "pool", p.key, "requests", surplus, "evidence", reason)
		return nil
	}
	used := p.used.Load()
	leases, err := d.end(ctx, p, ending{reason: reason, allow: func(leases []ledger.Lease) error {
		for _, l := range leases {
			if by := o.InUse(l.Addr); by != "" {
				return fmt.Errorf("%w: %s: %s", ErrPoolInUse, l.Addr, by)
			}
		}
		if p.used.Load() != used {
			return fmt.Errorf("%w: it was just requested", ErrPoolInUse)
		}
		return nil
	}})
	if err != nil {
		return fmt.Errorf("give up pool %q: %w", p.key, err)
	}
	d.mu.Lock()
	delete(d.ended, p.key) // the engine is asked again if it names the pool after all
	d.mu.Unlock()
	d.log.Warn("a Docker pool is given up", "pool", p.key, "addresses", len(leases), "evidence", reason)
	return nil
}

// KeepPool undoes that requests for a pool are given up. As many requests as no network
// accounts for now are not given up again, until the pool is requested or released.
func (d *Driver) KeepPool(ctx context.Context, poolID string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("keep pool %q: %w", poolID, context.Cause(ctx))
	}
	d.change.Lock()
	defer d.change.Unlock()
	p := d.pools[poolID]
	if p == nil {
		return fmt.Errorf("keep pool %q: %w", poolID, ErrPoolNotFound)
	}
	if p.givenUp == nil {
		return fmt.Errorf("keep pool %q: %w", poolID, ErrNotGivenUp)
	}
	kept, g := p.kept, p.givenUp
	p.kept, p.givenUp = p.kept+g.Requests, nil
	if err := d.save(ctx, saving{p.key, p.record()}); err != nil {
		p.kept, p.givenUp = kept, g
		return fmt.Errorf("keep pool %q: %w", poolID, err)
	}
	delete(d.suspects, p.key)
	d.log.Info("a Docker pool is kept", "pool", p.key, "requests", g.Requests)
	return nil
}

// ErrNotGivenUp is returned by KeepPool for a pool of which no requests are given up.
var ErrNotGivenUp = errors.New("no requests for the pool are given up")

// Busy reports whether a lease must not be reclaimed: that of a gateway, which ends with
// its pool. No request for another key is in progress: each endpoint has a new key, and a
// request commits before it is answered.
func (d *Driver) Busy(k ledger.Key) bool { return holder(ledger.Lease{Key: k}).gateway }

// Reclaim releases a lease of an endpoint that is gone, if it is still pending.
func (d *Driver) Reclaim(ctx context.Context, l ledger.Lease, reason string) (freed bool, err error) {
	if ctx.Err() != nil {
		return false, fmt.Errorf("reclaim %s of pool %q: %w", l.Addr, l.Pool, context.Cause(ctx))
	}
	now, ok := d.ledger.Lookup(l.Pool, l.Addr)
	if !ok || now.Generation != l.Generation || now.State != ledger.Pending {
		return false, nil
	}
	_, err = d.ledger.Free(ctx, ledger.Selector{
		Addr:       l.Addr,
		Pool:       l.Pool,
		Purpose:    l.Purpose,
		Generation: l.Generation,
		Reason:     reason,
	})
	switch {
	case errors.Is(err, ledger.ErrNotOwner):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reclaim %s of pool %q: %w", l.Addr, l.Pool, err)
	}
	return true, nil
}
