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
// that is away. Each value has a checksum, as in the journal. One goroutine
// writes it.
type Mirror struct{ f *File }

// Mirror is the copy of the cluster store in the file.
func (f *File) Mirror() *Mirror { return &Mirror{f} }

// Load is what is mirrored and the revision that it is of, 0 where nothing
// was ever mirrored. A mirror with a damaged value is refused as a whole.
func (m *Mirror) Load(ctx context.Context) (kvs []kvdb.KeyValue, revision int64, err error) {
	err = guard(func() error {
		return m.f.db.View(func(tx *bbolt.Tx) error {
			if revision = mirrorRevision(tx); revision == 0 || tx.Bucket([]byte(mirrorBucket)) == nil {
				return nil
			}
			return tx.Bucket([]byte(mirrorBucket)).ForEach(func(k, v []byte) error {
				if ctx.Err() != nil {
					return fmt.Errorf("load the mirror: %w", context.Cause(ctx))
				}
				if len(v) < checksumLen || !bytes.Equal(v[:checksumLen], checksum(k, v[checksumLen:])) {
					return fmt.Errorf("%w: mirrored value %q does not fit its checksum", ErrDamaged, k)
				}
				kvs = append(kvs, kvdb.KeyValue{Key: string(k), Value: bytes.Clone(v[checksumLen:])})
				return nil
			})
		})
	})
	if err != nil {
		return nil, 0, fmt.Errorf("database %s: %w", m.f.path, err)
	}
	return kvs, revision, nil
}

// Replace makes the mirror what kvs are as of revision. Only what differs is written.
func (m *Mirror) Replace(ctx context.Context, kvs []kvdb.KeyValue, revision int64) error {
	wanted := make(map[string]bool, len(kvs))
	for _, x := range kvs {
		wanted[x.Key] = true
	}
	return m.update(ctx, revision, func(b *bbolt.Bucket) error {
		var gone [][]byte
		if err := b.ForEach(func(k, _ []byte) error {
			if !wanted[string(k)] {
				gone = append(gone, bytes.Clone(k))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, k := range gone {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
		for _, x := range kvs {
			if err := mirrorPut(b, x); err != nil {
				return err
			}
		}
		return nil
	})
}

// Apply changes the mirror as events say and notes the revision.
func (m *Mirror) Apply(ctx context.Context, events []kvdb.Event, revision int64) error {
	return m.update(ctx, revision, func(b *bbolt.Bucket) error {
		for _, ev := range events {
			if ev.Deleted {
				if err := b.Delete([]byte(ev.Key)); err != nil {
					return err
				}
			} else if err := mirrorPut(b, ev.KeyValue); err != nil {
				return err
			}
		}
		return nil
	})
}

func (m *Mirror) update(ctx context.Context, revision int64, change func(*bbolt.Bucket) error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("write the mirror in %s: %w", m.f.path, context.Cause(ctx))
	}
	err := guard(func() error {
		return m.f.db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(mirrorBucket))
			if err != nil {
				return err
			}
			if err := change(b); err != nil {
				return err
			}
			meta, err := tx.CreateBucketIfNotExists([]byte(mirrorMeta))
			if err != nil {
				return err
			}
			return meta.Put([]byte("revision"), binary.BigEndian.AppendUint64(nil, uint64(revision)))
		})
	})
	if err != nil {
		return fmt.Errorf("write the mirror in %s: %w", m.f.path, err)
	}
	return nil
}

func mirrorPut(b *bbolt.Bucket, x kvdb.KeyValue) error {
	k := []byte(x.Key)
	v := append(checksum(k, x.Value), x.Value...)
	if bytes.Equal(b.Get(k), v) {
		return nil
	}
	return b.Put(k, v)
}

func mirrorRevision(tx *bbolt.Tx) int64 {
	if b := tx.Bucket([]byte(mirrorMeta)); b != nil {
		if v := b.Get([]byte("revision")); len(v) == 8 {
			return int64(binary.BigEndian.Uint64(v))
		}
	}
	return 0
}
