// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.etcd.io/bbolt"
)

// maxGroup bounds a group well below the default history, so that no watch can lose
// its place within a single commit.
const maxGroup = 128

// errClosed is returned for a change of a file that is closed.
var errClosed = errors.New("the database is closed")

// change writes one caller's part of a transaction and reports whether it wrote
// anything. It may run more than once, each time in a new transaction in which
// nothing of its earlier runs is left.
type change func(tx *bbolt.Tx) (wrote bool, err error)

// call is one caller that waits for its change. What it holds belongs to the
// committing goroutine until done is closed.
type call struct {
	owner  any // withdrawAll finds the calls of one owner by it
	change change
	ended  func(error) // nil, or called before the caller is answered, in the order of the calls
	done   chan struct{}
	err    error
}

func (c *call) answer(err error) {
	c.err = err
	if c.ended != nil {
		c.ended(err)
	}
	close(c.done)
}

// committer is the only writer of a file. Changes that wait at the same time
// share one bbolt transaction, in their order: N callers pay for one sync of the
// disk. The first caller that finds the committer idle commits its group itself, or
// lets a goroutine do so; the goroutine ends when no change waits.
//
// A change that fails before it wrote fails alone. One that fails after it wrote
// is left out, and the group runs again without it. If the commit itself fails,
// each caller of the group gets its error.
type committer struct {
	f *File

	mu     sync.Mutex
	queue  []*call
	busy   bool
	closed bool
	work   sync.WaitGroup
}

// commit runs one change and returns when it is durable. A context that ends
// withdraws a change that still waits; one that is being committed is awaited.
func (m *committer) commit(ctx context.Context, f change) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := &call{change: f, done: make(chan struct{})}
	lead, err := m.enqueue(c)
	if err != nil {
		return err
	}
	if lead { // no other goroutine has to be woken
		m.commitGroup()
		if m.waiting() {
			m.work.Go(m.drain)
		}
		m.work.Done()
	}
	known, err := m.await(ctx, c)
	if !known {
		<-c.done
		return c.err
	}
	return err
}

// submit puts c into the queue, and never commits in the caller's goroutine: the
// caller may leave while c is being committed. The caller awaits c.
func (m *committer) submit(c *call) error {
	lead, err := m.enqueue(c)
	if lead {
		m.work.Go(m.drain)
		m.work.Done()
	}
	return err
}

// drain commits until no change waits.
func (m *committer) drain() {
	for m.waiting() {
		m.commitGroup()
	}
}

// enqueue puts c into the queue. lead is set for a caller that found the committer
// idle: it must commit, or start a goroutine that does, and then call work.Done.
func (m *committer) enqueue(c *call) (lead bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, errClosed
	}
	m.queue = append(m.queue, c)
	if lead, m.busy = !m.busy, true; lead {
		m.work.Add(1)
	}
	return lead, nil
}

// await returns the outcome of c. If ctx ends first, c is withdrawn; known is
// false if c is being committed at that moment.
func (m *committer) await(ctx context.Context, c *call) (known bool, err error) {
	select {
	case <-c.done:
		return true, c.err
	case <-ctx.Done():
	}
	if m.withdraw(c) {
		c.answer(fmt.Errorf("withdrawn from the queue: %w", context.Cause(ctx)))
		return true, c.err
	}
	select {
	case <-c.done:
		return true, c.err
	default:
		return false, fmt.Errorf("outcome is not known yet: %w", context.Cause(ctx))
	}
}

// withdraw takes c out of the queue and reports whether c was there.
func (m *committer) withdraw(c *call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.queue, c)
	if i < 0 {
		return false
	}
	m.queue = slices.Delete(m.queue, i, i+1)
	return true
}

// withdrawAll ends the queued calls of one owner with err.
func (m *committer) withdrawAll(owner any, err error) {
	m.mu.Lock()
	var gone []*call
	m.queue = slices.DeleteFunc(m.queue, func(c *call) bool {
		if c.owner == owner {
			gone = append(gone, c)
		}
		return c.owner == owner
	})
	m.mu.Unlock()
	for _, c := range gone {
		c.answer(err)
	}
}

// waiting reports whether to go on committing.
func (m *committer) waiting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = len(m.queue) > 0
	return m.busy
}

func (m *committer) take() []*call {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(m.queue), maxGroup)
	group := slices.Clone(m.queue[:n])
	m.queue = slices.Delete(m.queue, 0, n)
	return group
}

// close refuses further changes, fails those that wait, and awaits the commit
// that is under way.
func (m *committer) close() {
	m.mu.Lock()
	m.closed = true
	gone := m.queue
	m.queue = nil
	m.mu.Unlock()
	for _, c := range gone {
		c.answer(errClosed)
	}
	m.work.Wait()
}

// group is the calls of one commit. They are taken from the queue when the
// transaction has begun: until then calls may join the group, or be withdrawn.
type group struct {
	calls []*call
	errs  []error // of the changes, by call
	taken bool
}

func (m *committer) commitGroup() {
	g := &group{}
	err := m.f.guard(func() error {
		for {
			bad, err := m.attempt(g)
			if bad < 0 {
				return err
			}
			c, own := g.calls[bad], g.errs[bad]
			g.calls = slices.Delete(g.calls, bad, bad+1)
			c.answer(own)
		}
	})
	if !g.taken { // the transaction could not begin
		g.calls = m.take()
	}
	if err != nil {
		m.f.unhealthy.Store(&err)
	}
	for i, c := range g.calls {
		if err != nil {
			c.answer(err)
		} else {
			c.answer(g.errs[i])
		}
	}
}

// attempt runs the changes of the group in one transaction and commits it, unless
// nothing was written. bad is the index of a change that must be left out, or -1.
// A transaction on a file that is damaged or was changed by another program stays
// open: see File.guard.
func (m *committer) attempt(g *group) (bad int, err error) {
	if err := m.f.samePath(); err != nil {
		return -1, err
	}
	tx, err := m.f.db.Begin(true)
	if err != nil {
		return -1, err
	}
	if !g.taken {
		g.calls, g.taken = m.take(), true
	}
	if err := m.f.recognize(tx); err != nil {
		if !errors.Is(err, errForeign) {
			_ = tx.Rollback()
		}
		return -1, err
	}
	m.f.trust.accepting = false
	wrote, bad := g.apply(tx)
	if bad < 0 && wrote {
		return -1, m.f.finish(tx)
	}
	_ = tx.Rollback()
	return bad, nil
}

// apply runs the changes. bad is the first one that failed after it wrote, or -1.
func (g *group) apply(tx *bbolt.Tx) (wrote bool, bad int) {
	g.errs = make([]error, len(g.calls))
	for i, c := range g.calls {
		var w bool
		w, g.errs[i] = c.change(tx)
		if w && g.errs[i] != nil {
			return true, i
		}
		wrote = wrote || w
	}
	return wrote, -1
}
