// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/internal/txn"
)

// maxGroup bounds a group well below the default history, so that no watch can lose
// its place within a single commit.
const maxGroup = 128

// call is one caller of Txn that waits. What it holds belongs to the
// committing goroutine until done is closed.
type call struct {
	txn    *txn.Txn
	done   chan struct{}
	rev    int64
	events []kvdb.Event
	err    error
}

// end answers the caller; a nil err leaves the call's own.
func (c *call) end(err error) {
	if err != nil {
		c.err = err
	}
	close(c.done)
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
	c := &call{txn: t, done: make(chan struct{})}
	if err := s.enqueue(c); err != nil {
		return 0, err
	}
	select {
	case <-c.done:
		return c.rev, c.err
	case <-ctx.Done():
	}
	if s.withdraw(c) {
		return 0, fmt.Errorf("withdrawn from the queue: %w", context.Cause(ctx))
	}
	select {
	case <-c.done:
		return c.rev, c.err
	default:
		return 0, fmt.Errorf("outcome is not known yet: %w", context.Cause(ctx))
	}
}

// storable finds what bbolt would refuse in the middle of a group, at the
// expense of everybody in it.
func storable(ops []kvdb.Op) error {
	for _, op := range ops {
		if len(op.Key) > bbolt.MaxKeySize {
			return fmt.Errorf("key of %d bytes, at most %d can be stored: %w", len(op.Key), bbolt.MaxKeySize, kvdb.ErrKey)
		}
		if len(op.Value) > bbolt.MaxValueSize-revisionLen {
			return fmt.Errorf("put %q: %w", op.Key, berrors.ErrValueTooLarge)
		}
	}
	return nil
}

// enqueue lets c wait for its commit, and sees to it that somebody commits.
func (s *Store) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kvdb.ErrClosed
	}
	s.queue = append(s.queue, c)
	if !s.committing {
		s.committing = true
		s.commits.Go(func() {
			for s.waiting() {
				s.commit()
			}
		})
	}
	return nil
}

// withdraw takes c out of the queue; false if it is not there any more.
func (s *Store) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, c)
	if i < 0 {
		return false
	}
	s.queue = slices.Delete(s.queue, i, i+1)
	return true
}

// waiting tells whether to go on committing.
func (s *Store) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.committing = len(s.queue) > 0
	return s.committing
}

func (s *Store) take() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.queue), maxGroup)
	group := slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	return group
}

// commit commits one group. It is taken only when the database is ours to
// write: until then calls may join it, or be withdrawn.
func (s *Store) commit() {
	tx, err := s.db.Begin(true)
	group := s.take()
	if err == nil {
		err = s.write(tx, group)
	}
	if err != nil {
		err = fmt.Errorf("commit %d transactions: %w", len(group), err)
		s.resync()
	}
	for _, c := range group {
		if err == nil && len(c.events) > 0 {
			s.log.Append(c.rev, c.events)
		}
		c.end(err)
	}
}

// write applies a group and commits it, unless nothing came of it.
func (s *Store) write(tx *bbolt.Tx, group []*call) error {
	defer tx.Rollback() //nolint:errcheck // it only says that the commit came first
	l, err := openLayout(tx, s.bucket)
	if err != nil {
		return err
	}
	// The database is asked, not memory: see resync.
	before, err := l.revision()
	if err != nil {
		return err
	}
	rev := before
	for _, c := range group {
		if c.events, c.err = c.txn.Events(rev+1, l.lookup); c.err != nil {
			continue
		}
		if len(c.events) > 0 {
			rev++
		}
		c.rev = rev
		if err := l.write(c.events); err != nil {
			return err
		}
	}
	if rev == before {
		return nil
	}
	if err := l.setRevision(rev); err != nil {
		return err
	}
	return tx.Commit()
}

// resync is for after a failed commit: if the last sync of the disk is what
// failed, then what it should have made durable can be seen all the same, and
// the watches must not carry on as if it were not there.
func (s *Store) resync() {
	// Where not even reading works there is nothing to be told.
	_ = s.db.View(func(tx *bbolt.Tx) error {
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
