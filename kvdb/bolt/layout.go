// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// The names inside the store's bucket. The value of a record is the ModRevision,
// 8 bytes big endian, and then the value; the revision is stored likewise.
const (
	keysBucket     = "keys"
	revisionBucket = "meta"
	revisionKey    = "revision"
	revisionLen    = 8
)

var errNoLayout = errors.New("bucket holds no store")

// layout is the store's bucket within one bbolt transaction.
type layout struct{ keys, meta table }

func openLayout(tx *bbolt.Tx, name string) (layout, error) {
	l := layout{keys: openTable(tx, name+"/"+keysBucket), meta: openTable(tx, name+"/"+revisionBucket)}
	if l.keys.b == nil || l.meta.b == nil {
		return layout{}, errNoLayout
	}
	return l, nil
}

func createLayout(tx *bbolt.Tx, name string) error {
	b, err := tx.CreateBucketIfNotExists([]byte(name))
	if err != nil {
		return err
	}
	if key, _ := b.Cursor().First(); key != nil {
		return fmt.Errorf("%w, but something else: %q", errNoLayout, key)
	}
	var l layout
	if l.keys, err = createTable(tx, name+"/"+keysBucket); err != nil {
		return err
	}
	if l.meta, err = createTable(tx, name+"/"+revisionBucket); err != nil {
		return err
	}
	if y, err := l.meta.tally(); err != nil || y.count > 0 {
		return errors.Join(damaged(fmt.Errorf("bucket %s is missing", name)), err)
	}
	return l.setRevision(0)
}

// prepare creates what is missing, reads every record, and returns the revision.
// It writes only if it must, because a write is a sync of the disk.
func (s *Store) prepare() (rev int64, err error) {
	read := func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		if rev, err = l.revision(); err != nil {
			return err
		}
		return errors.Join(l.keys.verify(), l.meta.verify())
	}
	if err = s.f.view(read); errors.Is(err, errNoLayout) {
		err = s.f.commits.commit(
			context.Background(),
			func(tx *bbolt.Tx) (bool, error) { return true, createLayout(tx, s.bucket) },
		)
	}
	return rev, err
}

func (l layout) revision() (int64, error) {
	raw, err := l.meta.get(revisionKey)
	if err == nil && len(raw) != revisionLen {
		err = damaged(errors.New("the store has no revision"))
	}
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(raw)), nil
}

func (l layout) setRevision(rev int64) error {
	return l.meta.put(revisionKey, binary.BigEndian.AppendUint64(nil, uint64(rev)))
}

// get returns a copy, because bbolt's memory is gone with its transaction.
func (l layout) get(key string) (kvdb.KeyValue, bool, error) {
	raw, err := l.keys.get(key)
	if err != nil || raw == nil {
		return kvdb.KeyValue{}, false, err
	}
	kv, err := decode([]byte(key), raw)
	return kv, err == nil, err
}

func (l layout) list(prefix string) ([]kvdb.KeyValue, error) {
	var kvs []kvdb.KeyValue
	c := l.keys.b.Cursor()
	for key, sealed := c.Seek([]byte(prefix)); bytes.HasPrefix(key, []byte(prefix)) && key != nil; key, sealed = c.Next() {
		raw, err := unseal(l.keys.name, key, sealed)
		if err != nil {
			return nil, err
		}
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
	raw, err := l.keys.get(key)
	switch {
	case err != nil || raw == nil:
		return 0, err
	case len(raw) < revisionLen:
		return 0, errNoRevision(key)
	}
	return int64(binary.BigEndian.Uint64(raw)), nil
}

func (l layout) write(events []kvdb.Event) error {
	for _, e := range events {
		if e.Deleted {
			if err := l.keys.delete(e.Key); err != nil {
				return err
			}
			continue
		}
		record := make([]byte, revisionLen, revisionLen+len(e.Value))
		binary.BigEndian.PutUint64(record, uint64(e.ModRevision))
		if err := l.keys.put(e.Key, append(record, e.Value...)); err != nil {
			return err
		}
	}
	return nil
}

func decode(key, raw []byte) (kvdb.KeyValue, error) {
	if len(raw) < revisionLen {
		return kvdb.KeyValue{}, errNoRevision(string(key))
	}
	return kvdb.KeyValue{
		Key:         string(key),
		Value:       bytes.Clone(raw[revisionLen:]),
		ModRevision: int64(binary.BigEndian.Uint64(raw)),
	}, nil
}

func errNoRevision(key string) error {
	return damaged(fmt.Errorf("record %q of the store has no revision", key))
}
