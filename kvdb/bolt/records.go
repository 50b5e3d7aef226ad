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
// that keeps its own book.
type Records struct {
	f      *File
	bucket string
}

// Records are those of one part of the program; each has a bucket of its own.
func (f *File) Records(part string) *Records { return &Records{f, "records-" + part} }

// Load calls fn for every record in the order of their keys.
func (r *Records) Load(ctx context.Context, fn func(key string, value []byte) error) error {
	err := r.f.view(func(tx *bbolt.Tx) error {
		return openTable(tx, r.bucket).each(func(k, v []byte) error {
			if ctx.Err() != nil {
				return fmt.Errorf("load %s: %w", r.bucket, context.Cause(ctx))
			}
			return fn(string(k), bytes.Clone(v))
		})
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", r.f.path, err)
	}
	return nil
}

// Commit puts and deletes all of these or none. It is durable when it returns.
func (r *Records) Commit(ctx context.Context, put map[string][]byte, del []string) error {
	err := r.f.commits.commit(ctx, func(tx *bbolt.Tx) (bool, error) {
		t, err := createTable(tx, r.bucket)
		if err != nil {
			return true, err
		}
		for key, value := range put {
			if err := t.put(key, value); err != nil {
				return true, err
			}
		}
		for _, key := range del {
			if err := t.delete(key); err != nil {
				return true, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("commit to %s: %w", r.f.path, err)
	}
	return nil
}
