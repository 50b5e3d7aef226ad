// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// timedJournal measures the commits.
type timedJournal struct {
	ledger.Journal
	observe func(time.Duration, error)
}

// Commit commits and notes how long it took.
func (j *timedJournal) Commit(ctx context.Context, ops []kvdb.Op) error {
	began := time.Now()
	err := j.Journal.Commit(ctx, ops)
	if j.observe != nil {
		j.observe(time.Since(began), err)
	}
	return err
}

// timedStore measures the requests to the cluster store.
type timedStore struct {
	kvdb.Store
	observe func(request string, took time.Duration, err error)
}

// Get reads a key.
func (s *timedStore) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	began := time.Now()
	x, found, err := s.Store.Get(ctx, key)
	s.observe("get", time.Since(began), err)
	return x, found, err
}

// List reads prefixes.
func (s *timedStore) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	began := time.Now()
	kvs, rev, err := s.Store.List(ctx, prefixes...)
	s.observe("list", time.Since(began), err)
	return kvs, rev, err
}

// Txn writes. A condition that does not hold is not an error of the store.
func (s *timedStore) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	began := time.Now()
	rev, err := s.Store.Txn(ctx, conds, ops)
	if errors.Is(err, kvdb.ErrConditions) {
		s.observe("txn", time.Since(began), nil)
	} else {
		s.observe("txn", time.Since(began), err)
	}
	return rev, err
}

// Watch opens a watch; it is measured until it is open.
func (s *timedStore) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	began := time.Now()
	w, err := s.Store.Watch(ctx, prefix, fromRev)
	s.observe("watch", time.Since(began), err)
	return w, err
}

// Probe asks a store that can be asked whether it is there.
func (s *timedStore) Probe(ctx context.Context) error {
	p, ok := s.Store.(interface{ Probe(context.Context) error })
	if !ok {
		return nil
	}
	began := time.Now()
	err := p.Probe(ctx)
	s.observe("probe", time.Since(began), err)
	return err
}
