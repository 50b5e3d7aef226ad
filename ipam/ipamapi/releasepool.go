// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cadastre/cadastre/ledger"
)

// ReleasePool takes back one request for the pool; the last one ends the pool
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
	p := d.pools[key]
	if p == nil {
		return ErrBadPool
	}
	if p.requests > 1 {
		return d.recount(ctx, p, -1, 0)
	}
	_, err := d.end(ctx, p, ending{allow: d.mayEnd(p)})
	return err
}

// mayEnd returns what allows a release to end p. Requests for a pool of the global space
// are not counted: one with endpoints is that of another network.
func (d *Driver) mayEnd(p *pool) func([]ledger.Lease) error {
	return func(leases []ledger.Lease) error {
		for _, l := range leases {
			if p.id.space == d.config.Global.Name && !holder(l).gateway {
				return fmt.Errorf("%w: %s", ErrPoolInUse, inUse(leases))
			}
		}
		return nil
	}
}

// ending selects how a pool ends.
type ending struct {
	allow   func([]ledger.Lease) error
	forever bool   // with leases it stays on record as ended
	reason  string // for the history of the leases that end with it; "": it was released
}

// end ends a pool with all its leases and returns them, unless how.allow refuses
// it. Its caller holds change.
func (d *Driver) end(ctx context.Context, p *pool, how ending) ([]ledger.Lease, error) {
	p.life.Lock()
	defer p.life.Unlock()
	closes := !p.fromPods() && d.spaces[p.id.space].isLast(p)
	leases := d.leasesOf(p, closes)
	if err := how.allow(leases); err != nil {
		return nil, err
	}
	if len(leases) == 0 {
		return nil, d.endEmpty(ctx, p, closes)
	}
	closing := p.record()
	closing.Closing, closing.Ended = true, how.forever // from here on a crash ends the pool
	if err := d.save(ctx, saving{p.key, closing}); err != nil {
		return nil, err
	}
	keys := make([]ledger.Key, 0, len(leases))
	for _, l := range leases {
		keys = append(keys, l.Key)
	}
	var err error
	if closes {
		err = d.changePools(ctx, PoolChange{Close: []PoolClosing{{Pool: p.ledger, Release: keys, Reason: how.reason}}})
	} else {
		err = d.releaseKeys(ctx, keys, how.reason)
	}
	if err != nil {
		d.keep(ctx, p)
		return nil, err
	}
	d.forget(p, how.forever)
	if how.forever {
		return leases, nil
	}
	if err := d.save(ctx, saving{p.key, nil}); err != nil {
		d.log.Warn("a Docker pool is released, and its record is still to be deleted", "pool", p.key, "error", err)
	}
	return leases, nil
}

// endEmpty ends a pool without leases; closes is set if the ledger's pool ends
// with it. A crash in between leaves a pool of the ledger without leases and
// record, which the next start closes.
func (d *Driver) endEmpty(ctx context.Context, p *pool, closes bool) error {
	if err := d.save(ctx, saving{p.key, nil}); err != nil {
		return err
	}
	d.forget(p, false)
	if !closes {
		return nil
	}
	if err := d.changePools(ctx, PoolChange{Close: []PoolClosing{{Pool: p.ledger}}}); err != nil {
		d.log.Warn("a Docker pool is released, and is still to be closed in the ledger", "pool", p.key, "error", err)
	}
	return nil
}

// forget makes p unknown.
func (d *Driver) forget(p *pool, recorded bool) {
	p.ended = true
	d.remove(p, recorded)
	d.log.LogAttrs(context.Background(), slog.LevelInfo, "Docker pool released", slog.String("pool", p.key))
}

// keep undoes the closing record of p after its release failed. It also opens
// the ledger's pool again, since the change that failed may still be made.
func (d *Driver) keep(ctx context.Context, p *pool) {
	err := d.save(ctx, saving{p.key, p.record()})
	if err == nil {
		err = d.repair(ctx)
	}
	if err == nil {
		err = d.flush(ctx)
	}
	if err != nil {
		d.log.Warn("the release of a Docker pool failed; after a crash now the pool may be gone",
			"pool", p.key, "error", err)
	}
}

// leasesOf returns the leases that end with p: those that were requested through
// it and, if the ledger's pool closes, those that others of its group have there.
func (d *Driver) leasesOf(p *pool, closes bool) (found []ledger.Lease) {
	var leases []ledger.Lease
	if p.id.group == "" {
		leases = d.ledger.LeasesOf(p.ledger)
	} else {
		leases = d.ledger.Leases()
	}
	for _, l := range leases {
		if _, ours := d.poolOf(l); ours && (l.Key.Network == p.key || closes && l.Pool == p.ledger) {
			found = append(found, l)
		}
	}
	return found
}

// releaseKeys releases leases together.
func (d *Driver) releaseKeys(ctx context.Context, keys []ledger.Key, reason string) error {
	st := d.ledger.Begin()
	if err := releaseAll(st, keys, reason); err != nil {
		st.Undo()
		return err
	}
	return st.Commit(ctx)
}
