// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package bolt keeps a node's database in one file: the ledger's journal, the
// embedded cluster store, a mirror of a cluster store elsewhere, and what the node
// remembers of itself.
//
// One process has the file open at a time. Every method may be called from any
// goroutine. All parts write through one committer. Changes that wait at the same time
// are one transaction, in order. So what N callers pay for is one sync of the disk, not
// N. A caller is answered when its change is durable. A change that fails fails alone;
// if the database cannot commit, all callers of the group get its error. If a context
// ends first, a change still queued is withdrawn and changes nothing.
//
// Of the embedded store each transaction has its own conditions and its own
// revision. Revisions survive a restart, the history for watches does not: a watch
// from a revision made by an earlier process ends with kvdb.ErrCompacted.
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

// Store is a kvdb.Store in a bucket of the file. Close it before the file.
type Store struct {
	f      *File
	bucket string
	log    *watchlog.Log
	calls  sync.WaitGroup // of Txn that are not answered yet

	mu     sync.Mutex
	closed bool
}

var _ kvdb.Store = (*Store)(nil)

// newStore returns the store in a bucket of f, which is created if it is missing.
// A bucket that holds anything else is an error and left alone.
func newStore(f *File, bucket string) (*Store, error) {
	s := &Store{f: f, bucket: bucket}
	rev, err := s.prepare()
	if err != nil {
		return nil, fmt.Errorf("open store in bucket %q: %w", bucket, err)
	}
	s.log = watchlog.New(defaultHistory, rev)
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
		// readers may have seen already; so ask the database for its state.
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
// are awaited; the file stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.f.commits.withdrawAll(s, kvdb.ErrClosed)
	s.calls.Wait()
	s.log.Close()
	return nil
}

// view runs read on one state of the store.
func (s *Store) view(ctx context.Context, read func(layout) error) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.f.view(func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		return read(l)
	})
}

// ready returns why nothing can be done now.
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
