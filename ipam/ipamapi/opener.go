// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"fmt"
	"net/netip"
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
