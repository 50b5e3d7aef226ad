// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// The names inside the store's bucket. A record is the ModRevision, 8 bytes
// big endian, and then the value; the revision is stored likewise.
const (
	keysBucket  = "keys"
	metaBucket  = "meta"
	revisionKey = "revision"
	revisionLen = 8
)

var (
	errNoLayout = errors.New("bucket holds no store")
	errDamaged  = errors.New("record is damaged")
)

// layout is the store's bucket within one bbolt transaction.
type layout struct{ keys, meta *bbolt.Bucket }

func openLayout(tx *bbolt.Tx, name []byte) (layout, error) {
	b := tx.Bucket(name)
	if b == nil {
		return layout{}, errNoLayout
	}
	l := layout{keys: b.Bucket([]byte(keysBucket)), meta: b.Bucket([]byte(metaBucket))}
	if l.keys == nil || l.meta == nil {
		return layout{}, errNoLayout
	}
	return l, nil
}

func createLayout(tx *bbolt.Tx, name []byte) error {
	b, err := tx.CreateBucketIfNotExists(name)
	if err != nil {
		return err
	}
	if key, _ := b.Cursor().First(); key != nil {
		return fmt.Errorf("%w, but something else: %q", errNoLayout, key)
	}
	var l layout
	if l.keys, err = b.CreateBucket([]byte(keysBucket)); err != nil {
		return err
	}
	if l.meta, err = b.CreateBucket([]byte(metaBucket)); err != nil {
		return err
	}
	return l.setRevision(0)
}

// prepare creates what is missing and answers the revision. It writes only
// where it must, for a write is a sync of the disk.
func (s *Store) prepare() (rev int64, err error) {
	read := func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err == nil {
			rev, err = l.revision()
		}
		return err
	}
	if err = s.db.View(read); errors.Is(err, errNoLayout) {
		err = s.db.Update(func(tx *bbolt.Tx) error { return createLayout(tx, s.bucket) })
	}
	return rev, err
}

func (l layout) revision() (int64, error) {
	raw := l.meta.Get([]byte(revisionKey))
	if len(raw) != revisionLen {
		return 0, fmt.Errorf("read revision of the store: %w", errDamaged)
	}
	return int64(binary.BigEndian.Uint64(raw)), nil
}

func (l layout) setRevision(rev int64) error {
	return l.meta.Put([]byte(revisionKey), binary.BigEndian.AppendUint64(nil, uint64(rev)))
}

// get answers a copy, for bbolt's memory is gone with its transaction.
func (l layout) get(key string) (kvdb.KeyValue, bool, error) {
	raw := l.keys.Get([]byte(key))
	if raw == nil {
		return kvdb.KeyValue{}, false, nil
	}
	kv, err := decode([]byte(key), raw)
	return kv, err == nil, err
}

func (l layout) list(prefix string) ([]kvdb.KeyValue, error) {
	var kvs []kvdb.KeyValue
	c := l.keys.Cursor()
	for key, raw := c.Seek([]byte(prefix)); bytes.HasPrefix(key, []byte(prefix)) && key != nil; key, raw = c.Next() {
		kv, err := decode(key, raw)
		if err != nil {
			return nil, err
		}
		kvs = append(kvs, kv)
	}
	return kvs, nil
}

// lookup is a txn.Lookup.
func (l layout) lookup(key string) (int64, error) {
	raw := l.keys.Get([]byte(key))
	switch {
	case raw == nil:
		return 0, nil
	case len(raw) < revisionLen:
		return 0, fmt.Errorf("read %q: %w", key, errDamaged)
	}
	return int64(binary.BigEndian.Uint64(raw)), nil
}

func (l layout) write(events []kvdb.Event) error {
	for _, e := range events {
		if e.Deleted {
			if err := l.keys.Delete([]byte(e.Key)); err != nil {
				return fmt.Errorf("delete %q: %w", e.Key, err)
			}
			continue
		}
		record := make([]byte, revisionLen, revisionLen+len(e.Value))
		binary.BigEndian.PutUint64(record, uint64(e.ModRevision))
		if err := l.keys.Put([]byte(e.Key), append(record, e.Value...)); err != nil {
			return fmt.Errorf("put %q: %w", e.Key, err)
		}
	}
	return nil
}

func decode(key, raw []byte) (kvdb.KeyValue, error) {
	if len(raw) < revisionLen {
		return kvdb.KeyValue{}, fmt.Errorf("read %q: %w", key, errDamaged)
	}
	return kvdb.KeyValue{
		Key:         string(key),
		Value:       bytes.Clone(raw[revisionLen:]),
		ModRevision: int64(binary.BigEndian.Uint64(raw)),
	}, nil
}
