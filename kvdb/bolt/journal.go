// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// Journal is the ledger's journal in a bucket of the file: plain records
// without revisions, one bbolt transaction a commit.
type Journal struct{ f *File }

// Journal is the ledger's journal. Only the ledger writes to it.
func (f *File) Journal() *Journal { return &Journal{f} }

// Load calls fn for every record in the order of their keys.
func (j *Journal) Load(ctx context.Context, fn func(kvdb.KeyValue) error) error {
	err := guard(func() error {
		return j.f.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(JournalBucket))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, v []byte) error {
				if ctx.Err() != nil {
					return fmt.Errorf("load the journal: %w", context.Cause(ctx))
				}
				return fn(kvdb.KeyValue{Key: string(k), Value: append([]byte{}, v...)})
			})
		})
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", j.f.path, err)
	}
	return nil
}

// Commit applies all ops in one transaction.
func (j *Journal) Commit(ctx context.Context, ops []kvdb.Op) error {
	if ctx.Err() != nil {
		return fmt.Errorf("commit to %s: %w", j.f.path, context.Cause(ctx))
	}
	revision := 0
	err := guard(func() error {
		return j.f.db.Update(func(tx *bbolt.Tx) error {
			revision = tx.ID()
			b, err := tx.CreateBucketIfNotExists([]byte(JournalBucket))
			if err != nil {
				return err
			}
			for _, op := range ops {
				if op.Delete {
					err = b.Delete([]byte(op.Key))
				} else {
					err = b.Put([]byte(strings.Clone(op.Key)), op.Value)
				}
				if err != nil {
					return fmt.Errorf("record %q: %w", op.Key, err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("commit to %s: %w", j.f.path, err)
	}
	j.f.level.note(revision)
	return nil
}
