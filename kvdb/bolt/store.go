// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package bolt is a store in one bucket of a bbolt database.
//
// The database belongs to the caller, who opens it, may keep other things in
// other buckets, and closes it after the Store: Close of the Store leaves it
// open. The bucket belongs to the Store, to one at a time. Every method may be
// called from any goroutine, but none while that goroutine has a bbolt
// transaction open, which would wait for itself.
//
// Transactions that wait at the same time are committed together, in order,
// each with its own conditions and its own revision: what N callers pay for is
// one sync of the disk, not N. The first that finds nobody committing starts
// the one goroutine that does; it ends when nobody waits, and Close awaits it.
//
// A transaction that fails with kvdb.ErrConditions changed nothing and fails
// alone. If the database cannot commit, all of the group get its error. If the
// context ends first, a transaction still queued is withdrawn and changes
// nothing; one being committed goes on, its outcome unknown to the caller.
//
// Revisions survive a restart, the history for watches does not: a watch from
// a revision made by an earlier process ends with kvdb.ErrCompacted.
//
// Example:
//
//	db, err := bbolt.Open("cadastre.db", 0o600, nil)
//	defer db.Close()
//	store, err := bolt.New(db, "kvdb")
//	defer store.Close()
//	kv, found, err := store.Get(ctx, "nodes/5")
package bolt

import (
	"context"
	"fmt"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
	"github.com/cadastre/cadastre/kvdb/internal/watchlog"
)

// defaultHistory is the number of transactions kept for watches.
const defaultHistory = 1000

// Store is a kvdb.Store in a bucket.
type Store struct {
	db      *bbolt.DB
	bucket  []byte
	log     *watchlog.Log
	commits sync.WaitGroup // the goroutine that commits, if there is one

	mu         sync.Mutex
	queue      []*call
	committing bool
	closed     bool
}

var _ kvdb.Store = (*Store)(nil)

// Option changes how New makes a store.
type Option func(*options)

type options struct{ history int }

// History keeps the last n transactions (at least one) for watches.
func History(n int) Option { return func(o *options) { o.history = n } }

// New returns the store in bucket of db, which is created if it is missing. A
// bucket that holds anything else is an error and left alone.
func New(db *bbolt.DB, bucket string, opts ...Option) (*Store, error) {
	o := options{history: defaultHistory}
	for _, set := range opts {
		set(&o)
	}
	s := &Store{db: db, bucket: []byte(bucket)}
	rev, err := s.prepare()
	if err != nil {
		return nil, fmt.Errorf("open store in bucket %q: %w", bucket, err)
	}
	s.log = watchlog.New(o.history, rev)
	return s, nil
}

// Get implements kvdb.Store.
func (s *Store) Get(ctx context.Context, key string) (kv kvdb.KeyValue, found bool, err error) {
	err = s.view(ctx, func(l layout) error {
		if err := txn.CheckKey(key); err != nil {
			return err
		}
		kv, found, err = l.get(key)
		return err
	})
	if err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	return kv, found, nil
}

// List implements kvdb.Store.
func (s *Store) List(ctx context.Context, prefixes ...string) (kvs []kvdb.KeyValue, rev int64, err error) {
	if prefixes, err = txn.Prefixes(prefixes); err != nil {
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	err = s.view(ctx, func(l layout) error {
		if rev, err = l.revision(); err != nil {
			return err
		}
		for _, prefix := range prefixes {
			below, err := l.list(prefix)
			if err != nil {
				return err
			}
			kvs = append(kvs, below...)
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	return kvs, rev, nil
}

// Watch implements kvdb.Store.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	if fromRev == 0 {
		// The log lags the database by the group just committed, which
		// others may have read already; so ask the database what now is.
		err := s.view(ctx, func(l layout) error {
			rev, err := l.revision()
			fromRev = rev + 1
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("watch %q: %w", prefix, err)
		}
	}
	return s.log.Watch(ctx, prefix, fromRev)
}

// Close implements kvdb.Store. Queued transactions fail, those being committed
// are awaited; the database stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	queued := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, c := range queued {
		c.end(kvdb.ErrClosed)
	}
	s.commits.Wait()
	s.log.Close()
	return nil
}

// view runs read on one state of the store.
func (s *Store) view(ctx context.Context, read func(layout) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.db.View(func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		return read(l)
	})
}

// ready tells why nothing can be done now.
func (s *Store) ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kvdb.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
