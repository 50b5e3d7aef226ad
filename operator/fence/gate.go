// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package fence is for controllers of which one may work at a time: a Gate asks
// whether this is still the one, for all who are about to write.
//
// Every method may be called from any goroutine, and waits for no longer than
// its context.
//
// Example:
//
//	g := fence.NewGate(lease.Check, 10*time.Second)
//	if err := g.Check(ctx); err == nil { ... } // write what was read before, as it was read
package fence

import (
	"context"
	"sync"
	"time"
)

// Gate asks once for all who wait together: a question that begins after the
// last of them came answers every one. An answer from before a call is never
// used for it: what the call is based on may be newer than that answer.
type Gate struct {
	ask     func(context.Context) error // nil: all is well
	timeout time.Duration               // of one question

	mu      sync.Mutex
	waiting *question // not asked yet
	asked   *question // being asked, or answered
}

type question struct {
	done chan struct{}
	err  error
}

// NewGate makes a gate. ask returns nil where this controller still was the one
// at some moment after it was called; without it all is well.
func NewGate(ask func(context.Context) error, timeout time.Duration) *Gate {
	return &Gate{ask: ask, timeout: timeout}
}

// Check is what ask has answered, to a question that began after the call.
func (g *Gate) Check(ctx context.Context) error {
	if g.ask == nil {
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
		g.answer(ctx, q)
	}
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer asks. That the first one gives up is no answer for the others.
func (g *Gate) answer(ctx context.Context, q *question) {
	defer close(q.done)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
	defer cancel()
	q.err = g.ask(ctx)
}
