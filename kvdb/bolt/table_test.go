// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// TestEveryByteOfEveryRecordCounts flips a bit of each byte of each record of each
// bucket, and removes each record: opening the file refuses all of them, but for those of
// the mirror, which its reader refuses.
func TestEveryByteOfEveryRecordCounts(t *testing.T) {
	g := NewWithT(t)
	path := copyFormat1(t)
	f := openFile(t, path, FileOptions{})
	g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put("H-entry-1", []byte("claimed"))})).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	for _, x := range everyRecord(t, path) {
		for bit := -9; bit < 8*len(x.v); bit += 9 {
			data, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			bad := filepath.Join(t.TempDir(), "bad.db")
			if bit < 0 {
				g.Expect(os.WriteFile(bad, data, 0o600)).To(Succeed())
				x.change(t, bad, nil)
			} else {
				at := bytes.Index(data, append(bytes.Clone(x.k), x.v...))
				g.Expect(at).To(BeNumerically(">", 0))
				for ; at >= 0; at = next(data, at, x) { // bbolt may have old pages with the same record
					data[at+len(x.k)+bit/8] ^= 1 << (bit % 8)
				}
				g.Expect(os.WriteFile(bad, data, 0o600)).To(Succeed())
			}
			g.Expect(refused(bad, t)).To(MatchError(ErrDamaged), "bit %d of record %q in %s", bit, x.k, x.path)
		}
	}
}

// next returns where data has the record again after at, or -1.
func next(data []byte, at int, x rawAt) int {
	rest := bytes.Index(data[at+1:], append(bytes.Clone(x.k), x.v...))
	if rest < 0 {
		return -1
	}
	return at + 1 + rest
}

// refused returns why the file at path, or its mirror, is refused.
func refused(path string, t *testing.T) error {
	f, err := OpenFile(path, FileOptions{})
	if err != nil {
		return err
	}
	defer f.Close()
	_, _, err = f.Mirror().Load(t.Context())
	return err
}

// rawAt is a record as bbolt stores it.
type rawAt struct {
	path []string
	rawRecord
}

func everyRecord(t *testing.T, path string) (all []rawAt) {
	t.Helper()
	g := NewWithT(t)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer db.Close()
	var walk func(path []string, b *bbolt.Bucket) error
	walk = func(path []string, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return walk(append(path[:len(path):len(path)], string(k)), b.Bucket(k))
			}
			all = append(all, rawAt{path, rawRecord{bytes.Clone(k), bytes.Clone(v)}})
			return nil
		})
	}
	g.Expect(db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(k []byte, b *bbolt.Bucket) error { return walk([]string{string(k)}, b) })
	})).To(Succeed())
	g.Expect(len(all)).To(BeNumerically(">", 20), fmt.Sprint(all))
	return all
}

// change puts another value into the place of the record, or removes it.
func (x rawAt) change(t *testing.T, path string, value []byte) {
	t.Helper()
	g := NewWithT(t)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(x.path[0]))
		for _, part := range x.path[1:] {
			b = b.Bucket([]byte(part))
		}
		if value == nil {
			return b.Delete(x.k)
		}
		return b.Put(x.k, value)
	})).To(Succeed())
	g.Expect(db.Close()).To(Succeed())
}
