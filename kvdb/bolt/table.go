// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
)

// table is a bucket of records within one transaction. Each record carries a
// checksum over its key and its value. The bucket's tally, which is a record in
// the meta bucket, holds the number of the records and a sum over their checksums. So a
// record that is missing, or that came back from an older page, is noticed like one
// that has changed.
type table struct {
	name string        // the path of the bucket, "kvdb/keys"
	b    *bbolt.Bucket // nil: there is none
	meta *bbolt.Bucket // nil: there is none
}

// openTable returns the table of a bucket, which may be missing.
func openTable(tx *bbolt.Tx, name string) table {
	t := table{name: name, meta: tx.Bucket([]byte(metaBucket))}
	path := strings.Split(name, "/")
	t.b = tx.Bucket([]byte(path[0]))
	for _, part := range path[1:] {
		if t.b != nil {
			t.b = t.b.Bucket([]byte(part))
		}
	}
	return t
}

// createTable returns the table of a bucket, which it makes if it is missing.
func createTable(tx *bbolt.Tx, name string) (t table, err error) {
	t.name = name
	if t.meta, err = tx.CreateBucketIfNotExists([]byte(metaBucket)); err != nil {
		return t, err
	}
	path := strings.Split(name, "/")
	if t.b, err = tx.CreateBucketIfNotExists([]byte(path[0])); err != nil {
		return t, err
	}
	for _, part := range path[1:] {
		if t.b, err = t.b.CreateBucketIfNotExists([]byte(part)); err != nil {
			return t, err
		}
	}
	return t, nil
}

// get returns the value under key, nil for none. It is valid in the transaction.
func (t table) get(key string) ([]byte, error) {
	if t.b == nil {
		return nil, nil
	}
	raw := t.b.Get([]byte(key))
	if raw == nil {
		return nil, nil
	}
	return unseal(t.name, []byte(key), raw)
}

// put stores a value under key, unless it is there already.
func (t table) put(key string, value []byte) error {
	k := []byte(key)
	sealed := seal(k, value)
	old := t.b.Get(k)
	if bytes.Equal(old, sealed) {
		return nil
	}
	if err := t.recount(old, sealed); err != nil {
		return err
	}
	if err := t.b.Put(k, sealed); err != nil {
		return fmt.Errorf("put %q: %w", key, err)
	}
	return nil
}

// delete removes the record under key, if there is one.
func (t table) delete(key string) error {
	old := t.b.Get([]byte(key))
	if old == nil {
		return nil
	}
	if err := t.recount(old, nil); err != nil {
		return err
	}
	if err := t.b.Delete([]byte(key)); err != nil {
		return fmt.Errorf("delete %q: %w", key, err)
	}
	return nil
}

// each calls f for every record in the order of their keys, and compares them with
// the tally at the end. Until it returns nil f may have seen too little.
func (t table) each(f func(k, v []byte) error) error {
	var found tally
	var last []byte
	if t.b != nil {
		c := t.b.Cursor()
		for k, raw := c.First(); k != nil; k, raw = c.Next() {
			if last != nil && bytes.Compare(last, k) >= 0 {
				return damaged(fmt.Errorf("record %q of bucket %s is out of order", k, t.name))
			}
			last = k
			v, err := unseal(t.name, k, raw)
			if err != nil {
				return err
			}
			found.add(raw)
			if err := f(k, v); err != nil {
				return err
			}
		}
	}
	want, err := t.tally()
	if err == nil && want != found {
		err = damaged(
			fmt.Errorf(
				"bucket %s has %d records with the sum %x, it should have %d with %x",
				t.name,
				found.count,
				found.sum,
				want.count,
				want.sum,
			),
		)
	}
	return err
}

// verify reads every record.
func (t table) verify() error { return t.each(func(_, _ []byte) error { return nil }) }

// reset makes the table an empty one, whatever is in it.
func (t table) reset(tx *bbolt.Tx) (table, error) {
	if t.b != nil {
		if err := tx.DeleteBucket([]byte(t.name)); err != nil {
			return t, err
		}
	}
	if t.meta != nil {
		if err := t.meta.Delete(t.tallyKey()); err != nil {
			return t, err
		}
	}
	return createTable(tx, t.name)
}

// tables returns the names of all tables that the file has, or should have.
func tables(tx *bbolt.Tx) (names []string, err error) {
	err = tx.ForEach(func(top []byte, b *bbolt.Bucket) error {
		switch string(top) {
		case metaBucket:
			return b.ForEach(func(k, _ []byte) error {
				if name, ok := strings.CutPrefix(string(k), tallyPrefix); ok {
					names = append(names, name)
				}
				return nil
			})
		case storeBucket:
			return b.ForEachBucket(func(k []byte) error {
				names = append(names, storeBucket+"/"+string(k))
				return nil
			})
		default:
			names = append(names, string(top))
		}
		return nil
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// tallyPrefix begins the keys of the tallies in the meta bucket.
const tallyPrefix = "tally/"

// tally is the number of a table's records and the sum of their mixed checksums.
type tally struct{ count, sum uint64 }

func (y *tally) add(raw []byte) { y.count, y.sum = y.count+1, y.sum+mixed(raw) }

func (y *tally) remove(raw []byte) { y.count, y.sum = y.count-1, y.sum-mixed(raw) }

// mixed spreads the checksum of a record over 64 bits (the finalizer of SplitMix64).
// Checksums are linear: the plain sum often stays the same if two records exchange their
// values.
func mixed(raw []byte) uint64 {
	x := stored(raw) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// stored is the checksum that a record carries, right or wrong.
func stored(raw []byte) uint64 {
	if len(raw) < checksumLen {
		return 0
	}
	return uint64(binary.BigEndian.Uint32(raw))
}

func (t table) tallyKey() []byte { return []byte(tallyPrefix + t.name) }

func (t table) tally() (y tally, err error) {
	if t.meta == nil {
		return y, nil
	}
	raw := t.meta.Get(t.tallyKey())
	if raw == nil {
		return y, nil
	}
	v, err := unseal(metaBucket, t.tallyKey(), raw)
	if err == nil && len(v) != 16 {
		err = damaged(fmt.Errorf("record %q of bucket %s has %d bytes", t.tallyKey(), metaBucket, len(v)))
	}
	if err != nil {
		return y, err
	}
	return tally{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}

// recount replaces a record in the tally; nil is none.
func (t table) recount(old, sealed []byte) error {
	y, err := t.tally()
	if err != nil {
		return err
	}
	if old != nil {
		y.remove(old)
	}
	if sealed != nil {
		y.add(sealed)
	}
	return t.setTally(y)
}

func (t table) setTally(y tally) error {
	v := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, y.count), y.sum)
	return t.meta.Put(t.tallyKey(), seal(t.tallyKey(), v))
}

// checksumLen is the length of a checksum.
const checksumLen = 4

// checksum is over the key and the value, Castagnoli's polynomial.
func checksum(k, v []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli) // made once, by the library
	return crc32.Update(crc32.Checksum(k, castagnoli), castagnoli, v)
}

// seal returns a record: the checksum, and the value.
func seal(k, v []byte) []byte {
	raw := make([]byte, checksumLen, checksumLen+len(v))
	binary.BigEndian.PutUint32(raw, checksum(k, v))
	return append(raw, v...)
}

// unseal returns the value of a record of the named bucket.
func unseal(bucket string, k, raw []byte) ([]byte, error) {
	if len(raw) < checksumLen || binary.BigEndian.Uint32(raw) != checksum(k, raw[checksumLen:]) {
		return nil, damaged(fmt.Errorf("record %q of bucket %s does not fit its checksum", k, bucket))
	}
	return raw[checksumLen:], nil
}
