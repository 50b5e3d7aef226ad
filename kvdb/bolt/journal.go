// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// Journal is the ledger's journal in a bucket of the file: plain records without
// revisions. Records whose keys begin with historyPrefix are the ledger's history; they
// are in a bucket of their own, which Load does not read.
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
		records, err := createTable(tx, journalBucket)
		if err != nil {
			return true, err
		}
		var history table
		for _, op := range ops {
			if op.Key == acceptKey {
				j.f.accept()
				continue
			}
			t := records
			if number, ok := strings.CutPrefix(op.Key, historyPrefix); ok {
				if history.b == nil {
					if history, err = createHistory(tx); err != nil {
						return true, err
					}
				}
				t, op.Key = history, number
			}
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
