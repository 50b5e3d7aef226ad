// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package faulty plans faults for tests: an operation fails before its effect, waits,
// tears (its effect happens, and the answer is an error) or, for watches, breaks off.
//
// A Plan chooses the fault of the n-th operation. A Planner counts the operations of
// one fake and carries out the chosen faults; if several plans name a fault, the first
// one counts. Store is a kvdb.Store with a Planner; package journal has the journal of a
// ledger with one. Operations are counted as they begin.
//
// A Store owns the store that it wraps: Close closes both, and is not counted. Any
// goroutine may call each method. Without a fault an operation behaves like the one of
// the wrapped store.
package faulty

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// ErrInjected is the error of a fault that names no other.
var ErrInjected = errors.New("faulty: injected fault")

// Store is a kvdb.Store with faults.
type Store struct {
	Planner
	inner    kvdb.Store
	watchers sync.WaitGroup
}

var _ kvdb.Store = (*Store)(nil)

// New returns a Store that wraps inner.
func New(inner kvdb.Store, plans ...Plan) *Store {
	s := &Store{inner: inner}
	s.Reset(plans...)
	return s
}

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (kv kvdb.KeyValue, found bool, err error) {
	err = s.Do(ctx, Get, func() (err error) {
		kv, found, err = s.inner.Get(ctx, key)
		return err
	})
	if err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	return kv, found, nil
}

// List implements kvdb.Store.
func (s *Store) List(ctx context.Context, prefixes ...string) (kvs []kvdb.KeyValue, rev int64, err error) {
	err = s.Do(ctx, List, func() (err error) {
		kvs, rev, err = s.inner.List(ctx, prefixes...)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	return kvs, rev, nil
}

// Txn implements kvdb.Store.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (rev int64, err error) {
	err = s.Do(ctx, Txn, func() (err error) {
		rev, err = s.inner.Txn(ctx, conds, ops)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	return rev, nil
}

// Watch implements kvdb.Store.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (w kvdb.Watcher, err error) {
	f := s.next(Watch)
	err = f.do(ctx, s.waiting(), func() (err error) {
		w, err = s.inner.Watch(ctx, prefix, fromRev)
		return err
	})
	switch {
	case err != nil && w != nil: // a torn watch is closed again
		w.Close()
		fallthrough
	case err != nil:
		return nil, fmt.Errorf("watch %q: %w", prefix, err)
	case f.kind == cut:
		return s.relay(ctx, w, f)
	}
	return w, nil
}

// Close implements kvdb.Store.
func (s *Store) Close() error {
	s.end()
	err := s.inner.Close()
	s.watchers.Wait()
	return err
}
