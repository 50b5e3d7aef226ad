// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// fenceTimeout is how long the fence may take to answer.
const fenceTimeout = 10 * time.Second

// gate asks Config.Fence for all who wait together: a question that begins after
// the last of them came answers every one. An answer from before a call is never
// used for it: what the call is based on may be newer than that answer.
type gate struct {
	fence func(context.Context) error // nil: all is well

	mu      sync.Mutex
	waiting *question // not asked yet
	asked   *question // being asked, or answered
}

type question struct {
	done chan struct{}
	err  error
}

// check returns nil where this manager still was the one at some moment after
// the call.
func (g *gate) check(ctx context.Context) error {
	if g.fence == nil {
		return ctx.Err()
	}
	g.mu.Lock()
	q, before := g.waiting, g.asked
	first := q == nil
	if first {
		q = &question{done: make(chan struct{})}
		g.waiting = q
	}
	g.mu.Unlock()
	if first {
		if before != nil {
			<-before.done
		}
		g.mu.Lock()
		g.waiting, g.asked = nil, q
		g.mu.Unlock()
		g.ask(ctx, q)
	}
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ask answers a question. That the first who asks gives up is no answer for the
// others.
func (g *gate) ask(ctx context.Context, q *question) {
	defer close(q.done)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fenceTimeout)
	defer cancel()
	if err := g.fence(ctx); err != nil {
		q.err = fmt.Errorf("look whether this is still the manager of NetResourceSets: %w", err)
	}
}

// fenced is an API server that is written to only by who may.
type fenced struct {
	NetResourceSetGetterUpdater
	gate *gate
}

// Create implements NetResourceSetGetterUpdater.
func (f fenced) Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := f.gate.check(context.Background()); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.Create(node)
}

// Update implements NetResourceSetGetterUpdater.
func (f fenced) Update(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := f.gate.check(context.Background()); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.Update(origResource, newResource)
}

// UpdateStatus implements NetResourceSetGetterUpdater.
func (f fenced) UpdateStatus(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if err := f.gate.check(context.Background()); err != nil {
		return nil, err
	}
	return f.NetResourceSetGetterUpdater.UpdateStatus(origResource, newResource)
}
