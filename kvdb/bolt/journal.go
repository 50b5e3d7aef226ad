// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// Journal is the ledger's journal in a bucket of the file: plain records
// without revisions, one bbolt transaction a commit. Each has a checksum over
// its key and its value: an address that a bad disk has changed must not be lent.
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
				if len(v) < checksumLen || !bytes.Equal(v[:checksumLen], checksum(k, v[checksumLen:])) {
					return damaged(fmt.Errorf("record %q does not fit its checksum", k))
				}
				return fn(kvdb.KeyValue{Key: string(k), Value: bytes.Clone(v[checksumLen:])})
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
					k := []byte(op.Key)
					err = b.Put(k, append(checksum(k, op.Value), op.Value...))
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

// checksumLen is the length of a checksum.
const checksumLen = 4

// checksum is over the key and the value, Castagnoli's polynomial.
func checksum(k, v []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli) // made once, by the library
	return binary.BigEndian.AppendUint32(nil, crc32.Update(crc32.Checksum(k, table), table, v))
}
