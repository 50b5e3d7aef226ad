// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package mem is a store that lives in the memory of its process: for tests,
// and for tools that need a store but nothing of it tomorrow.
//
// The Store owns what is put in it (values are copied on the way in, and
// shared, unmodifiable, on the way out). Every method may be called from any
// goroutine. It is as durable as the process, so a transaction that fails has
// changed nothing, whatever the error. The last 1000 transactions are kept for
// watches, or as many as History says; a watch that falls behind them ends
// with kvdb.ErrCompacted and never holds up a writer.
//
// List looks at every key of the store, which is well for some ten thousands.
package mem

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
	"github.com/cadastre/cadastre/kvdb/internal/watchlog"
)

// defaultHistory is the number of transactions kept for watches.
const defaultHistory = 1000

// Store is a kvdb.Store in memory.
type Store struct {
	log *watchlog.Log

	mu     sync.RWMutex
	kvs    map[string]kvdb.KeyValue
	rev    int64
	closed bool
}

var _ kvdb.Store = (*Store)(nil)

// Option changes how New makes a store.
type Option func(*options)

type options struct{ history int }

// History keeps the last n transactions (at least one) for watches.
func History(n int) Option { return func(o *options) { o.history = n } }

// New returns an empty store at revision 0.
func New(opts ...Option) *Store {
	o := options{history: defaultHistory}
	for _, set := range opts {
		set(&o)
	}
	return &Store{log: watchlog.New(o.history, 0), kvs: map[string]kvdb.KeyValue{}}
}

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.ready(ctx); err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	if err := txn.CheckKey(key); err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get: %w", err)
	}
	kv, found := s.kvs[key]
	return kv, found, nil
}

// List implements kvdb.Store.
func (s *Store) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.ready(ctx); err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	prefixes, err := txn.Prefixes(prefixes)
	if err != nil {
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	var kvs []kvdb.KeyValue
	for key, kv := range s.kvs {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b kvdb.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return kvs, s.rev, nil
}

// Txn implements kvdb.Store.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	t, err := txn.New(conds, ops)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ready(ctx); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	events, err := t.Events(s.rev+1, s.lookup)
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	if len(events) == 0 {
		return s.rev, nil
	}
	s.rev++
	for _, e := range events {
		if e.Deleted {
			delete(s.kvs, e.Key)
		} else {
			s.kvs[e.Key] = e.KeyValue
		}
	}
	s.log.Append(s.rev, events)
	return s.rev, nil
}

// Watch implements kvdb.Store.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	return s.log.Watch(ctx, prefix, fromRev)
}

// Close implements kvdb.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.log.Close()
	return nil
}

func (s *Store) lookup(key string) (int64, error) { return s.kvs[key].ModRevision, nil }

// ready tells why nothing can be done now.
func (s *Store) ready(ctx context.Context) error {
	if s.closed {
		return kvdb.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
