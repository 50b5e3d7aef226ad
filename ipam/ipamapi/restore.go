// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// restored holds what a start reads and has to bring in line.
type restored struct {
	closing map[string]struct{} // IDs of pools whose release had begun
	changes []saving            // records to write
	gone    []ledger.Key        // leases of closing pools
	held    map[string]bool     // pools of the ledger with leases that stay
	ending  map[string]bool     // pools of the ledger that closing pools had, perhaps with others
}

// restore builds memory from the records and the ledger, and brings these in line with
// each other. It opens the pools of the records, and closes those that were being
// released. Pools without a record stay if they have leases.
func (d *Driver) restore(ctx context.Context) error {
	d.fresh = true
	r := restored{closing: map[string]struct{}{}, held: map[string]bool{}, ending: map[string]bool{}}
	restoreRecord := func(key string, value []byte) error { return d.restoreRecord(&r, key, value) }
	if err := d.records.Load(ctx, restoreRecord); err != nil {
		return fmt.Errorf("load the records of pools: %w", err)
	}
	leases := d.ledger.Leases()
	d.replays.Begin(leases)
	for _, l := range leases {
		d.restoreLease(&r, l)
	}
	if err := d.reconcile(ctx, &r); err != nil {
		return err
	}
	if len(r.changes) == 0 {
		return nil
	}
	return d.save(ctx, r.changes...)
}

// restoreRecord makes the pool of a record known, unless its release had begun.
func (d *Driver) restoreRecord(r *restored, key string, value []byte) error {
	if key == readRecord {
		d.fresh = false
		return nil
	}
	id, ok := d.configured(key)
	if !ok {
		d.log.Error("a record of a Docker pool is ignored: its key is not a pool ID of a configured address space",
			"record", key)
		return nil
	}
	rec := record{Version: recordVersion, Refs: 1}
	err := json.Unmarshal(value, &rec)
	if rec.Version > recordVersion {
		return fmt.Errorf("the record of %s is of version %d, this program knows %d: install the newer program again",
			key, rec.Version, recordVersion)
	}
	if err != nil || rec.Refs < 1 && !rec.Ended {
		d.log.Error("the record of a Docker pool cannot be read; its ID says what is needed", "pool", key, "error", err)
		rec = record{Version: recordVersion, Refs: 1}
		r.changes = append(r.changes, saving{key, &rec})
	}
	if rec.Closing {
		r.closing[key] = struct{}{}
		r.ending[id.ledgerPool()] = id.pods == ""
		if rec.Ended {
			d.ended[key] = true
		} else {
			r.changes = append(r.changes, saving{key, nil})
		}
		return nil
	}
	p := newPool(id, key)
	p.requests, p.chosen, p.shared = rec.Refs, rec.Chosen, rec.Gateways
	p.givenUp, p.kept = rec.GivenUp, rec.Kept
	p.unread.Store(rec.Unread)
	d.insert(p)
	d.fresh = false
	return nil
}

// restoreLease sorts a lease. A pool of which only leases are left is known
// again: the engine may still use it.
func (d *Driver) restoreLease(r *restored, l ledger.Lease) {
	id, ok := d.poolOf(l)
	if !ok {
		r.held[l.Pool] = r.held[l.Pool] || l.State != ledger.Cooling
		return
	}
	d.fresh = false
	d.number.Store(max(d.number.Load(), number(l.Key)))
	_, closing := r.closing[l.Key.Network]
	if closing || r.ending[l.Pool] && d.openIn(l.Pool) == nil { // the prefix of another one of its group ends
		r.gone = append(r.gone, l.Key)
		return
	}
	r.held[l.Pool] = true
	if d.pools[l.Key.Network] == nil {
		d.log.Warn("a Docker pool has leases and no record: it is kept", "pool", l.Key.Network)
		p := newPool(id, l.Key.Network)
		d.insert(p)
		r.changes = append(r.changes, saving{p.key, p.record()})
	}
}

// poolOf returns the ID of the pool through which a lease was requested.
func (d *Driver) poolOf(l ledger.Lease) (poolID, bool) {
	if l.State == ledger.Cooling || l.Purpose == ledger.ForPod {
		return poolID{}, false
	}
	return d.configured(l.Key.Network)
}

// configured parses a pool ID. It is not ok if its address space is not configured.
func (d *Driver) configured(key string) (id poolID, ok bool) {
	id, err := parsePoolID(key)
	return id, err == nil && d.spaces[id.space] != nil
}

// reconcile opens the pools in the ledger, and closes all others of Docker but
// those with leases that stay.
func (d *Driver) reconcile(ctx context.Context, r *restored) error {
	seen := map[string]bool{}
	var change PoolChange
	for _, key := range slices.Sorted(maps.Keys(d.pools)) {
		if p := d.pools[key]; !p.fromPods() && !seen[p.ledger] {
			seen[p.ledger] = true
			change.Open = append(change.Open, d.grant(p))
		}
	}
	for _, s := range d.ledger.Stats() {
		if strings.HasPrefix(s.Pool, ledgerPrefix) && !seen[s.Pool] && !r.held[s.Pool] {
			seen[s.Pool] = true
			change.Close = append(change.Close, PoolClosing{Pool: s.Pool})
		}
	}
	if len(r.gone) > 0 {
		if err := d.releaseKeys(ctx, r.gone, ""); err != nil {
			return fmt.Errorf("finish the release of pools: %w", err)
		}
	}
	if len(change.Open)+len(change.Close) == 0 {
		return nil
	}
	if err := d.changePools(ctx, change); err != nil {
		return fmt.Errorf("open %d pools, close %d: %w", len(change.Open), len(change.Close), err)
	}
	return nil
}
