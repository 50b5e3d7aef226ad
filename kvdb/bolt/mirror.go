// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// mirrorBucket has what the node has read of a cluster store elsewhere; its
// revision is in mirrorMeta.
const (
	mirrorBucket = "mirror"
	mirrorMeta   = "mirror-meta"
)

// Mirror is this node's copy of a part of the cluster store, to start from when
// that is away. One goroutine writes it.
type Mirror struct{ f *File }

// Mirror is the copy of the cluster store in the file.
func (f *File) Mirror() *Mirror { return &Mirror{f} }

// Damage returns what was wrong with the mirror when the file was opened, nil for nothing. A
// damaged mirror cannot be loaded; Replace writes it again.
func (m *Mirror) Damage() error { return m.f.mirror }

// Load returns the mirrored values and their revision, 0 if nothing was ever mirrored.
// A mirror with a damaged value is refused as a whole.
func (m *Mirror) Load(ctx context.Context) (kvs []kvdb.KeyValue, revision int64, err error) {
	err = m.f.view(func(tx *bbolt.Tx) (err error) {
		kvs = nil
		if err := openTable(tx, mirrorMeta).verify(); err != nil {
			return err
		}
		if revision, err = mirrorRevision(tx); err != nil || revision == 0 {
			return err
		}
		return openTable(tx, mirrorBucket).each(func(k, v []byte) error {
			if ctx.Err() != nil {
				return fmt.Errorf("load the mirror: %w", context.Cause(ctx))
			}
			kvs = append(kvs, kvdb.KeyValue{Key: string(k), Value: bytes.Clone(v)})
			return nil
		})
	})
	if err != nil {
		return nil, 0, fmt.Errorf("database %s: %w", m.f.path, err)
	}
	return kvs, revision, nil
}

// Replace makes the mirror what kvs are as of revision. Only what differs is
// written. A damaged mirror is dropped first.
func (m *Mirror) Replace(ctx context.Context, kvs []kvdb.KeyValue, revision int64) error {
	wanted := make(map[string]bool, len(kvs))
	for _, x := range kvs {
		wanted[x.Key] = true
	}
	return m.update(ctx, revision, func(tx *bbolt.Tx) error {
		gone, err := unwanted(tx, wanted)
		if err != nil {
			gone, err = nil, dropMirror(tx)
		}
		if err != nil {
			return err
		}
		t, err := createTable(tx, mirrorBucket)
		if err != nil {
			return err
		}
		for _, key := range gone {
			if err := t.delete(key); err != nil {
				return err
			}
		}
		for _, x := range kvs {
			if err := t.put(x.Key, x.Value); err != nil {
				return err
			}
		}
		return nil
	})
}

// unwanted returns the mirrored keys that are not wanted, or that the mirror is damaged.
func unwanted(tx *bbolt.Tx, wanted map[string]bool) (gone []string, err error) {
	if err := openTable(tx, mirrorMeta).verify(); err != nil {
		return nil, err
	}
	err = openTable(tx, mirrorBucket).each(func(k, _ []byte) error {
		if !wanted[string(k)] {
			gone = append(gone, string(k))
		}
		return nil
	})
	return gone, err
}

// Apply changes the mirror as events say and notes the revision.
func (m *Mirror) Apply(ctx context.Context, events []kvdb.Event, revision int64) error {
	return m.update(ctx, revision, func(tx *bbolt.Tx) error {
		t, err := createTable(tx, mirrorBucket)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Deleted {
				err = t.delete(ev.Key)
			} else {
				err = t.put(ev.Key, ev.Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *Mirror) update(ctx context.Context, revision int64, write func(*bbolt.Tx) error) error {
	err := m.f.commits.commit(ctx, func(tx *bbolt.Tx) (bool, error) {
		if err := write(tx); err != nil {
			return true, err
		}
		meta, err := createTable(tx, mirrorMeta)
		if err != nil {
			return true, err
		}
		return true, meta.put(revisionKey, binary.BigEndian.AppendUint64(nil, uint64(revision)))
	})
	if err != nil {
		return fmt.Errorf("write the mirror in %s: %w", m.f.path, err)
	}
	return nil
}

// mirrorRevision is 0 if nothing was ever mirrored.
func mirrorRevision(tx *bbolt.Tx) (int64, error) {
	v, err := openTable(tx, mirrorMeta).get(revisionKey)
	if err != nil || len(v) != revisionLen {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}

// dropMirror makes the mirror one that was never written.
func dropMirror(tx *bbolt.Tx) error {
	for _, name := range []string{mirrorBucket, mirrorMeta} {
		if _, err := openTable(tx, name).reset(tx); err != nil {
			return err
		}
	}
	return nil
}
