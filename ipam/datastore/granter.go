// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// Usable returns the blocks from which addresses are allocated, and then those that Drain
// has reopened.
func (g *Grant) Usable(reopened []netip.Prefix) []netip.Prefix {
	var usable []netip.Prefix
	for _, b := range g.Blocks {
		if b.Usable && !slices.Contains(usable, b.Prefix) {
			usable = append(usable, b.Prefix)
		}
	}
	return append(usable, reopened...)
}

// Drain stages the end of allocations from the blocks on their way back, and moves those
// without a lease to ReturningPool. kept are those that stay in the pool because one of
// their addresses is held, cooling or quarantined; reopened are those of kept from which
// addresses were allocated before. The caller stages the blocks of the pool afterwards.
func (g *Grant) Drain(l *ledger.Ledger, st *ledger.Stage, pool string) (kept, reopened []netip.Prefix, err error) {
	active := map[netip.Prefix]bool{}
	for _, b := range l.Stats() {
		if b.Pool == pool && b.State == ledger.Active {
			active[b.Block] = true
		}
	}
	if err := st.SetBlocks(pool, g.Usable(nil)); err != nil {
		return nil, nil, fmt.Errorf("drain the blocks of pool %q: %w", pool, err)
	}
	going := slices.Clone(g.Returning)
	for _, b := range l.Stats() { // nothing more is claimed there
		i := slices.Index(going, b.Block)
		if b.Pool != pool || i < 0 || b.Held+b.Cooling+b.Quarantined == 0 {
			continue
		}
		going = slices.Delete(going, i, i+1)
		if kept = append(kept, b.Block); active[b.Block] {
			reopened = append(reopened, b.Block)
		}
	}
	if err := st.SetPool(ledger.Pool{Name: ReturningPool}); err != nil {
		return nil, nil, err
	}
	if err := st.SetBlocks(ReturningPool, going); err != nil {
		return nil, nil, fmt.Errorf("note the blocks on their way back to the cloud: %w", err)
	}
	return kept, reopened, nil
}

// DirectGranter is the Granter of a program without an event loop. Use NewDirectGranter;
// any goroutine may call its methods.
type DirectGranter struct {
	mu     sync.Mutex
	ledger *ledger.Ledger
	pool   ledger.Pool
}

// NewDirectGranter returns a Granter that commits within the call.
func NewDirectGranter(l *ledger.Ledger, pool ledger.Pool) *DirectGranter {
	return &DirectGranter{ledger: l, pool: pool}
}

// Grant commits the blocks of g.
func (d *DirectGranter) Grant(ctx context.Context, g Grant) ([]netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("grant blocks to pool %q: %w", d.pool.Name, context.Cause(ctx))
	}
	st := d.ledger.Begin()
	kept, err := d.stage(st, g)
	if err != nil {
		st.Undo()
		return nil, fmt.Errorf("grant blocks to pool %q: %w", d.pool.Name, err)
	}
	return kept, st.Commit(ctx)
}

func (d *DirectGranter) stage(st *ledger.Stage, g Grant) ([]netip.Prefix, error) {
	if err := st.SetPool(d.pool); err != nil {
		return nil, err
	}
	kept, reopened, err := g.Drain(d.ledger, st, d.pool.Name)
	if err != nil {
		return nil, err
	}
	if err := st.SetBlocks(d.pool.Name, g.Usable(reopened)); err != nil {
		return nil, err
	}
	for _, req := range g.Claims {
		if _, _, err := st.Claim(req); err != nil {
			return nil, err
		}
	}
	return kept, nil
}
