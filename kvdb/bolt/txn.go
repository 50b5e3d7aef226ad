// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

// transaction is one call of Txn.
type transaction struct {
	s      *Store
	txn    *txn.Txn
	ran    bool
	rev    int64
	events []kvdb.Event
	err    error // of the transaction alone
}

// Txn implements kvdb.Store.
func (s *Store) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	rev, err := s.submit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	return rev, nil
}

func (s *Store) submit(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	t, err := txn.New(conds, ops)
	if err != nil {
		return 0, err
	}
	if err := storable(t.Ops()); err != nil {
		return 0, err
	}
	x := &transaction{s: s, txn: t}
	c := &call{owner: s, change: x.apply, ended: x.ended, done: make(chan struct{})}
	if err := s.enqueue(c); err != nil {
		return 0, err
	}
	if _, err := s.f.commits.await(ctx, c); err != nil {
		return 0, err
	}
	return x.rev, nil
}

// storable finds what bbolt would refuse in the middle of a group, at the
// expense of all callers in it.
func storable(ops []kvdb.Op) error {
	for _, op := range ops {
		if len(op.Key) > bbolt.MaxKeySize {
			return fmt.Errorf(
				"key of %d bytes, at most %d can be stored: %w",
				len(op.Key),
				bbolt.MaxKeySize,
				kvdb.ErrKey,
			)
		}
		if len(op.Value) > bbolt.MaxValueSize-revisionLen-checksumLen {
			return fmt.Errorf("put %q: %w", op.Key, berrors.ErrValueTooLarge)
		}
	}
	return nil
}

// enqueue lets c wait for its commit, unless the store is closed.
func (s *Store) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kvdb.ErrClosed
	}
	s.calls.Add(1)
	err := s.f.commits.submit(c)
	if err != nil {
		s.calls.Done()
	}
	return err
}

// apply is the transaction's change. The revision is read from the database and
// not from memory: see resync.
func (x *transaction) apply(tx *bbolt.Tx) (wrote bool, err error) {
	x.ran, x.rev, x.events, x.err = true, 0, nil, nil
	defer func() { x.err = err }()
	l, err := openLayout(tx, x.s.bucket)
	if err != nil {
		return false, err
	}
	before, err := l.revision()
	if err != nil {
		return false, err
	}
	if x.events, err = x.txn.Events(before+1, l.lookup); err != nil {
		return false, err
	}
	x.rev = before
	if len(x.events) == 0 {
		return false, nil
	}
	x.rev++
	if err := l.write(x.events); err != nil {
		return true, err
	}
	return true, l.setRevision(x.rev)
}

// ended publishes the events of a transaction that is durable.
func (x *transaction) ended(err error) {
	defer x.s.calls.Done()
	switch {
	case err == nil && len(x.events) > 0:
		x.s.log.Append(x.rev, x.events)
	case err != nil && x.ran && !errors.Is(err, x.err): // the commit failed
		x.s.resync()
	}
}

// resync is for after a failed commit. If the last sync of the disk is what failed,
// then what it should have made durable can be seen all the same. The watches must then
// not carry on as if it were not there.
func (s *Store) resync() {
	// Where not even reading works there is nothing to be told.
	_ = s.f.view(func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		rev, err := l.revision()
		if err != nil {
			return err
		}
		s.log.Skip(rev)
		return nil
	})
}
