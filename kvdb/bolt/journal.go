// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// Journal is the ledger's journal in a bucket of the file: plain records without
// revisions.
type Journal struct{ f *File }

// Journal is the ledger's journal. Only the ledger writes to it.
func (f *File) Journal() *Journal { return &Journal{f} }

// Load calls fn for every record in the order of their keys. Until it returns nil
// fn may have seen records of a damaged file.
func (j *Journal) Load(ctx context.Context, fn func(kvdb.KeyValue) error) error {
	err := j.f.view(func(tx *bbolt.Tx) error {
		return openTable(tx, journalBucket).each(func(k, v []byte) error {
			if ctx.Err() != nil {
				return fmt.Errorf("load the journal: %w", context.Cause(ctx))
			}
			return fn(kvdb.KeyValue{Key: string(k), Value: bytes.Clone(v)})
		})
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", j.f.path, err)
	}
	return nil
}

// Commit applies all ops in one transaction, which other callers may share.
func (j *Journal) Commit(ctx context.Context, ops []kvdb.Op) error {
	err := j.f.commits.commit(ctx, func(tx *bbolt.Tx) (bool, error) {
		t, err := createTable(tx, journalBucket)
		if err != nil {
			return true, err
		}
		for _, op := range ops {
			if op.Delete {
				err = t.delete(op.Key)
			} else {
				err = t.put(op.Key, op.Value)
			}
			if err != nil {
				return true, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("commit to %s: %w", j.f.path, err)
	}
	return nil
}
