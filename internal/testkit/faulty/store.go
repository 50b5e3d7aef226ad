// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package faulty wraps a store and lets chosen operations fail, wait, tear
// (done, but answered with an error) or, for watches, break off. It is for
// tests of whatever has to survive that.
//
// The wrapper owns the store that it wraps: Close closes both. Every method
// may be called from any goroutine. Operations are counted as they begin, so
// the n-th is well defined only as far as their order is; Close is none. Which
// fault the n-th one meets is chosen by plans; where several name one, the
// first does. Without a fault an operation is exactly that of the wrapped store.
//
// Example, a third operation that is applied but looks failed:
//
//	store := faulty.New(mem.New(), faulty.At(3, faulty.Tear()))
//	defer store.Close()
//	...
//	_, err := store.Txn(ctx, nil, ops) // the third operation
//	errors.Is(err, faulty.ErrInjected) // true, and ops are stored
package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// ErrInjected is the error of a fault that names no other.
var ErrInjected = errors.New("faulty: injected fault")

// Store is a kvdb.Store with faults.
type Store struct {
	inner    kvdb.Store
	done     chan struct{} // closed by Close
	watchers sync.WaitGroup

	mu     sync.Mutex
	plans  []Plan
	count  int
	closed bool
}

var _ kvdb.Store = (*Store)(nil)

// New wraps inner.
func New(inner kvdb.Store, plans ...Plan) *Store {
	return &Store{inner: inner, plans: plans, done: make(chan struct{})}
}

// Reset replaces all plans and counts from one again.
func (s *Store) Reset(plans ...Plan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plans, s.count = plans, 0
}

// Count is the number of operations since New or Reset.
func (s *Store) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	f, err := s.begin(ctx, Get)
	if err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	kv, found, err := s.inner.Get(ctx, key)
	if f.kind == tear {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, f.err)
	}
	return kv, found, err
}

// List implements kvdb.Store.
func (s *Store) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	f, err := s.begin(ctx, List)
	if err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	kvs, rev, err := s.inner.List(ctx, prefixes...)
	if f.kind == tear {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, f.err)
	}
	return kvs, rev, err
}

// Txn implements kvdb.Store.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	f, err := s.begin(ctx, Txn)
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	rev, err := s.inner.Txn(ctx, conds, ops)
	if f.kind == tear {
		return 0, fmt.Errorf("apply transaction: %w", f.err)
	}
	return rev, err
}

// Watch implements kvdb.Store.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	f, err := s.begin(ctx, Watch)
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", prefix, err)
	}
	w, err := s.inner.Watch(ctx, prefix, fromRev)
	if err == nil && f.kind == cut {
		return s.relay(ctx, w, f)
	}
	if f.kind == tear {
		if err == nil {
			w.Close()
		}
		return nil, fmt.Errorf("watch %q: %w", prefix, f.err)
	}
	return w, err
}

// Close implements kvdb.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
	}
	s.mu.Unlock()
	err := s.inner.Close()
	s.watchers.Wait()
	return err
}

// begin counts an operation and answers its fault, or the error with which it
// ends before it reached the wrapped store.
func (s *Store) begin(ctx context.Context, op string) (Fault, error) {
	f := s.choose(op)
	switch f.kind {
	case fail:
		return f, f.err
	case wait:
		return f, s.wait(ctx, f)
	}
	return f, nil
}

func (s *Store) choose(op string) (f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if s.closed {
		return Fault{} // the wrapped store says so
	}
	for _, plan := range s.plans { // all are asked: they may be counting
		if g := plan(op, s.count); f.kind == none {
			f = g
		}
	}
	return f
}

func (s *Store) wait(ctx context.Context, f Fault) error {
	var expired <-chan time.Time
	if f.release == nil {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-expired:
	case <-f.release:
	case <-s.done:
		return kvdb.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
