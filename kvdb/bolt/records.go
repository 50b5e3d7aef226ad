// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"fmt"

	"go.etcd.io/bbolt"
)

// Records are named values in a bucket of the file, for a part of the program
// that keeps its own book: one bbolt transaction a commit, a checksum a value.
type Records struct {
	f      *File
	bucket string
}

// Records are those of one part of the program; each has a bucket of its own.
func (f *File) Records(part string) *Records { return &Records{f, "records-" + part} }

// Load calls fn for every record in the order of their keys.
func (r *Records) Load(ctx context.Context, fn func(key string, value []byte) error) error {
	err := guard(func() error {
		return r.f.db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(r.bucket))
			if b == nil {
				return nil
			}
			return b.ForEach(func(k, v []byte) error {
				if ctx.Err() != nil {
					return fmt.Errorf("load %s: %w", r.bucket, context.Cause(ctx))
				}
				if len(v) < checksumLen || !bytes.Equal(v[:checksumLen], checksum(k, v[checksumLen:])) {
					return damaged(fmt.Errorf("record %q of %s does not fit its checksum", k, r.bucket))
				}
				return fn(string(k), bytes.Clone(v[checksumLen:]))
			})
		})
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", r.f.path, err)
	}
	return nil
}

// Commit puts and deletes all of these or none. It is durable when it returns.
func (r *Records) Commit(ctx context.Context, put map[string][]byte, del []string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("commit to %s: %w", r.f.path, context.Cause(ctx))
	}
	revision := 0
	err := guard(func() error {
		return r.f.db.Update(func(tx *bbolt.Tx) error {
			revision = tx.ID()
			b, err := tx.CreateBucketIfNotExists([]byte(r.bucket))
			if err != nil {
				return err
			}
			for key, value := range put {
				k := []byte(key)
				if err := b.Put(k, append(checksum(k, value), value...)); err != nil {
					return fmt.Errorf("record %q: %w", key, err)
				}
			}
			for _, key := range del {
				if err := b.Delete([]byte(key)); err != nil {
					return fmt.Errorf("record %q: %w", key, err)
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("commit to %s: %w", r.f.path, err)
	}
	r.f.level.note(revision)
	return nil
}
