// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// PoolOpener changes pools of the ledger on behalf of their owner.
type PoolOpener interface {
	// Change makes all of the change durable, or none of it, before it returns. It
	// returns in limited time: the engine waits. After an error the outcome is
	// unknown: the change may still be made, but before every change that follows.
	Change(ctx context.Context, change PoolChange) error
}

// PoolChange lists the pools to open and to close. In a program with an event loop
// an event carries it, and the handler stages it.
type PoolChange struct {
	Open  []PoolGrant
	Close []PoolClosing
}

// PoolGrant is a pool of the ledger with its blocks.
type PoolGrant struct {
	Pool   ledger.Pool
	Blocks []netip.Prefix
}

// PoolClosing names a pool that loses its blocks, and the leases that end with it.
type PoolClosing struct {
	Pool    string
	Release []ledger.Key
	Reason  string // of the releases, for their history
}

// Stage stages the change. After an error the caller undoes the stage.
func (c PoolChange) Stage(st *ledger.Stage) error {
	for _, x := range c.Close {
		if err := releaseAll(st, x.Release, x.Reason); err != nil {
			return fmt.Errorf("close pool %q: %w", x.Pool, err)
		}
		if err := st.SetBlocks(x.Pool, nil); err != nil {
			return fmt.Errorf("close pool %q: %w", x.Pool, err)
		}
	}
	for _, x := range c.Open {
		if err := st.SetPool(x.Pool); err != nil {
			return fmt.Errorf("open pool %q: %w", x.Pool.Name, err)
		}
		if err := st.SetBlocks(x.Pool.Name, x.Blocks); err != nil {
			return fmt.Errorf("open pool %q: %w", x.Pool.Name, err)
		}
	}
	return nil
}

func releaseAll(st *ledger.Stage, keys []ledger.Key, reason string) error {
	for _, k := range keys {
		if _, err := st.Release(ledger.Selector{Key: k, Reason: reason}); err != nil {
			return err
		}
	}
	return nil
}

// DirectPools is the PoolOpener of a ledger whose pools no other component changes.
// Any goroutine may call it.
type DirectPools struct {
	mu    sync.Mutex
	stage *ledger.Stage
}

var _ PoolOpener = (*DirectPools)(nil)

// NewDirectPools returns the PoolOpener of l.
func NewDirectPools(l *ledger.Ledger) *DirectPools { return &DirectPools{stage: l.Begin()} }

// Change commits the change.
func (p *DirectPools) Change(ctx context.Context, change PoolChange) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("change pools of the ledger: %w", context.Cause(ctx))
	}
	if err := change.Stage(p.stage); err != nil {
		p.stage.Undo()
		return err
	}
	return p.stage.Commit(ctx)
}

// grant returns the ledger's pool of p with its block.
func (d *Driver) grant(p *pool) PoolGrant {
	return PoolGrant{
		Pool: ledger.Pool{
			Name:     p.ledger,
			Order:    d.config.order(),
			CoolDown: d.config.CoolDown,
			Exclude:  p.edges,
			Space:    d.spaces[p.id.space].inLedger,
		},
		Blocks: []netip.Prefix{p.id.prefix},
	}
}

// repair opens or closes the pools of the ledger whose last change failed, as the
// Driver's pools need it.
func (d *Driver) repair(ctx context.Context) error {
	if len(d.unconfirmed) == 0 {
		return nil
	}
	return d.changePools(ctx, PoolChange{})
}

// changePools changes pools of the ledger, and repairs those whose last change failed.
func (d *Driver) changePools(ctx context.Context, change PoolChange) error {
	asked := change
	for name := range d.unconfirmed {
		if asked.names(name) {
			continue
		}
		if p := d.openIn(name); p != nil {
			change.Open = append(change.Open, d.grant(p))
		} else {
			change.Close = append(change.Close, PoolClosing{Pool: name})
		}
	}
	if err := d.opener.Change(ctx, change); err != nil {
		for _, x := range asked.Open {
			d.unconfirmed[x.Pool.Name] = struct{}{}
		}
		for _, x := range asked.Close {
			d.unconfirmed[x.Pool] = struct{}{}
		}
		return fmt.Errorf("change the ledger's pools: %w", err)
	}
	clear(d.unconfirmed)
	return nil
}

// names reports whether the change opens or closes a pool of the ledger.
func (c PoolChange) names(pool string) bool {
	return slices.ContainsFunc(c.Open, func(x PoolGrant) bool { return x.Pool.Name == pool }) ||
		slices.ContainsFunc(c.Close, func(x PoolClosing) bool { return x.Pool == pool })
}

// openIn returns a pool whose prefix is the block of a pool of the ledger, nil if there is none.
func (d *Driver) openIn(name string) *pool {
	for _, p := range d.pools {
		if p.ledger == name && !p.fromPods() {
			return p
		}
	}
	return nil
}
