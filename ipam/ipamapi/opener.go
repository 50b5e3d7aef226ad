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

// PoolOpener changes pools of the ledger on behalf of the one who owns them.
type PoolOpener interface {
	// Change makes all of the change durable, or none of it, before it returns,
	// which must not take forever: the engine waits. After an error its outcome is
	// unknown; the changes that follow come after it, whenever it is made.
	Change(ctx context.Context, change PoolChange) error
}

// PoolChange is pools that come and go. In a program with an event loop it is
// what the event carries; its handler stages it.
type PoolChange struct {
	Open  []PoolGrant
	Close []PoolClosing
}

// PoolGrant is a pool of the ledger with the blocks that it is to have.
type PoolGrant struct {
	Pool   ledger.Pool
	Blocks []netip.Prefix
}

// PoolClosing is a pool that gives up its blocks, and the leases that end with it.
type PoolClosing struct {
	Pool    string
	Release []ledger.Key
}

// Stage stages the change. After an error the caller undoes the stage.
func (c PoolChange) Stage(st *ledger.Stage) error {
	for _, x := range c.Close {
		if err := releaseAll(st, x.Release); err != nil {
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

func releaseAll(st *ledger.Stage, keys []ledger.Key) error {
	for _, k := range keys {
		if _, err := st.Release(ledger.Selector{Key: k}); err != nil {
			return err
		}
	}
	return nil
}

// DirectPools is the PoolOpener of a ledger that nobody else changes pools of.
// Use NewDirectPools; any goroutine may call it.
type DirectPools struct {
	mu     sync.Mutex
	ledger *ledger.Ledger
}

var _ PoolOpener = (*DirectPools)(nil)

// NewDirectPools makes the PoolOpener of l.
func NewDirectPools(l *ledger.Ledger) *DirectPools { return &DirectPools{ledger: l} }

// Change commits the change.
func (p *DirectPools) Change(ctx context.Context, change PoolChange) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.ledger.Begin()
	if err := change.Stage(st); err != nil {
		st.Undo()
		return err
	}
	return st.Commit(ctx)
}

// grant returns the ledger's pool of p with its block.
func (d *Driver) grant(p *pool) PoolGrant {
	return PoolGrant{
		Pool: ledger.Pool{
			Name:     p.ledger,
			Order:    d.config.order(),
			CoolDown: d.config.CoolDown,
			Exclude:  p.edges,
			Space:    d.spaces[p.id.space].inLedger(),
		},
		Blocks: []netip.Prefix{p.id.prefix},
	}
}

// settle changes the ledger's pools of which an earlier change failed to what
// they should be.
func (d *Driver) settle(ctx context.Context) error {
	if len(d.unsettled) == 0 {
		return nil
	}
	return d.changePools(ctx, PoolChange{})
}

// changePools changes pools of the ledger, and settles the others that need it.
func (d *Driver) changePools(ctx context.Context, change PoolChange) error {
	asked := change
	for name := range d.unsettled {
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
			d.unsettled[x.Pool.Name] = struct{}{}
		}
		for _, x := range asked.Close {
			d.unsettled[x.Pool] = struct{}{}
		}
		return fmt.Errorf("change the ledger's pools: %w", err)
	}
	clear(d.unsettled)
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
