// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faulty

import (
	"context"
	"sync"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// Planner counts the operations of a fake, a store or a journal, and lets the chosen
// ones fail. The zero Planner plans no fault. Any goroutine may call its methods; plans
// are called one at a time.
type Planner struct {
	mu     sync.Mutex
	plans  []Plan
	count  int
	closed bool
	done   chan struct{} // closed by end; made by waiting
}

// Reset replaces all plans and counts from one again.
func (p *Planner) Reset(plans ...Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans, p.count = plans, 0
}

// Count returns the number of operations since the last Reset.
func (p *Planner) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// Do counts an operation of kind op and carries it out with the fault that the plans
// choose. The effect is called once or, if the fault comes before it, not at all.
func (p *Planner) Do(ctx context.Context, op string, effect func() error) error {
	return p.next(op).do(ctx, p.waiting(), effect)
}

// next counts an operation and returns its fault.
func (p *Planner) next(op string) (f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	if p.closed {
		return Fault{}
	}
	for _, plan := range p.plans { // all are asked: they may be counting
		if g := plan(op, p.count); f.kind == none {
			f = g
		}
	}
	return f
}

// waiting returns a channel that end closes.
func (p *Planner) waiting() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		p.done = make(chan struct{})
	}
	return p.done
}

// end ends all delayed operations with kvdb.ErrClosed. Later ones meet no fault.
func (p *Planner) end() {
	p.waiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.done)
	}
}

// Do carries out one operation with the fault.
func (f Fault) Do(ctx context.Context, effect func() error) error { return f.do(ctx, nil, effect) }

func (f Fault) do(ctx context.Context, done <-chan struct{}, effect func() error) error {
	switch f.kind {
	case fail:
		return f.err
	case wait:
		if err := f.wait(ctx, done); err != nil {
			return err
		}
	}
	err := effect()
	if f.kind == tear {
		return f.err
	}
	return err
}

// wait returns nil when the delay is over, or an error if the context or the Planner
// ends first.
func (f Fault) wait(ctx context.Context, done <-chan struct{}) error {
	var expired <-chan time.Time
	if f.release == nil {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-expired:
	case <-f.release:
	case <-done:
		return kvdb.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
