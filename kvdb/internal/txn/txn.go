// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package txn is one transaction of a store before it is applied: checked
// against the rules of package kvdb, copied from its caller, in order of keys.
//
// A Txn owns all that it holds, so its caller may go away or reuse its slices
// while a store still has it queued. The events that Events answers share the values of
// the Txn and are not modified either. A Txn is immutable and may be used by any
// goroutine. New and Events change nothing when they fail.
//
// A store applies a transaction by asking for its events and storing them:
//
//	t, err := txn.New(conds, ops)  // kvdb.ErrKey, kvdb.ErrTooManyOps
//	...
//	events, err := t.Events(rev+1, lookup)  // kvdb.ErrConditions
//	if err == nil && len(events) > 0 { rev++; ... store and publish them }
//
// Deleting a key that is not stored makes no event, and a transaction without events
// takes no revision, as it is with etcd.
package txn

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/kvdb"
)

// Txn is a checked transaction.
type Txn struct {
	conds []kvdb.Cond
	ops   []kvdb.Op
}

// Lookup answers the revision at which key was last written, 0 if it is not stored.
type Lookup func(key string) (int64, error)

// New checks a transaction and copies it. As many conditions are allowed as
// operations, because etcd limits both alike.
func New(conds []kvdb.Cond, ops []kvdb.Op) (*Txn, error) {
	if len(ops) > kvdb.MaxOps || len(conds) > kvdb.MaxOps {
		return nil, fmt.Errorf("check transaction of %d conditions and %d operations: %w",
			len(conds), len(ops), kvdb.ErrTooManyOps)
	}
	t := &Txn{conds: slices.Clone(conds), ops: slices.Clone(ops)}
	slices.SortFunc(t.ops, func(a, b kvdb.Op) int { return strings.Compare(a.Key, b.Key) })
	for _, c := range t.conds {
		if err := CheckKey(c.Key); err != nil {
			return nil, fmt.Errorf("check condition: %w", err)
		}
	}
	for i, op := range t.ops {
		if err := CheckKey(op.Key); err != nil {
			return nil, fmt.Errorf("check operation: %w", err)
		}
		if i > 0 && t.ops[i-1].Key == op.Key {
			return nil, fmt.Errorf("check transaction that writes %q twice: %w", op.Key, kvdb.ErrKey)
		}
		t.ops[i].Value = bytes.Clone(op.Value)
	}
	return t, nil
}

// CheckKey answers kvdb.ErrKey for what cannot be a key.
func CheckKey(key string) error {
	if key == "" {
		return fmt.Errorf("empty key: %w", kvdb.ErrKey)
	}
	return nil
}

// Ops are the operations in order of keys; they must not be modified.
func (t *Txn) Ops() []kvdb.Op { return t.ops }

// Conds are the conditions; they must not be modified.
func (t *Txn) Conds() []kvdb.Cond { return t.conds }

// Events answers the changes that the transaction makes at rev to the state
// that lookup describes, in order of keys, or kvdb.ErrConditions.
func (t *Txn) Events(rev int64, lookup Lookup) ([]kvdb.Event, error) {
	for _, c := range t.conds {
		at, err := lookup(c.Key)
		if err != nil {
			return nil, fmt.Errorf("check condition on %q: %w", c.Key, err)
		}
		if at != c.ModRevision {
			return nil, fmt.Errorf("%q is at revision %d, not %d: %w",
				c.Key, at, c.ModRevision, kvdb.ErrConditions)
		}
	}
	events := make([]kvdb.Event, 0, len(t.ops))
	for _, op := range t.ops {
		if op.Delete {
			at, err := lookup(op.Key)
			if err != nil {
				return nil, fmt.Errorf("delete %q: %w", op.Key, err)
			}
			if at != 0 {
				events = append(
					events,
					kvdb.Event{KeyValue: kvdb.KeyValue{Key: op.Key, ModRevision: rev}, Deleted: true},
				)
			}
			continue
		}
		events = append(events, kvdb.Event{KeyValue: kvdb.KeyValue{Key: op.Key, Value: op.Value, ModRevision: rev}})
	}
	return events, nil
}
