// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kvdb is the contract of the cluster store: node records, pools,
// custom networks and reflected Kubernetes state live there. Leases never do;
// they belong to the ledger's journal.
//
// A store is a sorted map from key to bytes with one revision counter for the
// whole of it. A transaction raises the revision by one and stamps it on every
// key that it writes; a key's ModRevision is therefore what a later
// transaction can be made conditional on. Values are opaque here (protobuf
// messages by convention).
//
// Every method may be called from any goroutine. Nothing is answered before it
// is as durable as the store can make it. A Txn that fails with ErrConditions
// has changed nothing. One that fails with any other error may or may not have been
// applied, and the caller finds out by reading back.
//
// The stores are in the folders below: mem, bolt and (for clusters) etcd.
// Each passes kvdbtest.Run, which is the contract in executable form.
package kvdb

import (
	"context"
	"errors"
)

// MaxOps is the largest number of operations of one transaction. It is below
// etcd's own default (128) so that a program written against one store runs
// against all.
const MaxOps = 100

var (
	// ErrConditions is returned by Txn when one of its conditions does not hold.
	ErrConditions = errors.New("kvdb: a condition of the transaction does not hold")
	// ErrCompacted is returned by a watch whose starting revision, or whose
	// next event, is no longer kept: list again and watch from there.
	ErrCompacted = errors.New("kvdb: the revision is compacted")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("kvdb: store is closed")
	// ErrTooManyOps is returned by Txn for more than MaxOps operations.
	ErrTooManyOps = errors.New("kvdb: too many operations in one transaction")
	// ErrKey is returned for an empty key or a transaction that writes one key twice.
	ErrKey = errors.New("kvdb: bad key")
)

// KeyValue is one stored value. Value must not be modified by the receiver.
type KeyValue struct {
	Key         string
	Value       []byte
	ModRevision int64 // revision of the transaction that wrote it, >= 1
}

// Cond is a condition of a transaction.
type Cond struct {
	Key         string
	ModRevision int64 // 0: the key must be absent
}

// Absent holds while key is not stored.
func Absent(key string) Cond { return Cond{Key: key} }

// AtRevision holds while key is stored and was last written at rev.
func AtRevision(key string, rev int64) Cond { return Cond{Key: key, ModRevision: rev} }

// Op is one write of a transaction.
type Op struct {
	Key    string
	Value  []byte
	Delete bool // Value is ignored
}

// Put stores value under key.
func Put(key string, value []byte) Op { return Op{Key: key, Value: value} }

// Delete removes key; removing what is not there is no error.
func Delete(key string) Op { return Op{Key: key, Delete: true} }

// Event is one change of one key, as a watch delivers it.
type Event struct {
	KeyValue // Value is nil for a deletion, ModRevision then that of the deletion
	Deleted  bool
}

// Watcher is an open watch.
type Watcher interface {
	// Events delivers batches in revision order; a batch is the changes of
	// exactly one transaction, ordered by key. The channel is closed
	// when the watch ends; Err then tells why.
	Events() <-chan []Event
	// Err is nil while the watch runs, and after its context ended or Close of the
	// Watcher closed it. It is ErrCompacted and ErrClosed as documented, and anything
	// else where the connection broke. After an error, list again.
	Err() error
	// Close ends the watch and waits for its goroutine.
	Close()
}

// Store is a key-value store of the cluster, or of one node.
type Store interface {
	// Get returns the value of key; found is false where there is none.
	Get(ctx context.Context, key string) (kv KeyValue, found bool, err error)
	// List returns every key that begins with one of prefixes, in order and
	// each once, as of one revision, which is returned for Watches that continue
	// from rev+1. The empty prefix is that of all keys; there are at most MaxOps.
	List(ctx context.Context, prefixes ...string) (kvs []KeyValue, rev int64, err error)
	// Txn applies all ops if all conds hold, else none and ErrConditions.
	// It returns the store's revision after the transaction, which is the same
	// as before where nothing has changed (no ops, or only deletions of what is
	// not there). More than MaxOps conditions or ops are ErrTooManyOps. Keys and
	// values together should stay below a megabyte: etcd takes no more.
	Txn(ctx context.Context, conds []Cond, ops []Op) (rev int64, err error)
	// Watch delivers every change of keys beginning with prefix from revision
	// fromRev on, that one included, also where fromRev is still to come.
	// fromRev 0 means from now on. If changes
	// at fromRev are no longer kept it fails (at once or through
	// Watcher.Err) with ErrCompacted.
	Watch(ctx context.Context, prefix string, fromRev int64) (Watcher, error)
	// Close ends all watches and frees the store. A second call does nothing.
	Close() error
}
