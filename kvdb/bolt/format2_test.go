// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// asFormat2 makes a closed file one of format 2, after damage to its buckets.
func asFormat2(t *testing.T, path string, damage func(g Gomega, tx *bbolt.Tx)) {
	t.Helper()
	g := NewWithT(t)
	db, err := bbolt.Open(path, 0o600, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(db.Update(func(tx *bbolt.Tx) error {
		names, err := tables(tx)
		g.Expect(err).NotTo(HaveOccurred())
		for _, name := range names {
			table, y := openTable(tx, name), tally{}
			g.Expect(table.b.ForEach(func(_, raw []byte) error {
				y = tally{y.count + 1, y.sum + stored(raw)}
				return nil
			})).To(Succeed())
			g.Expect(table.setTally(y)).To(Succeed())
		}
		if damage != nil {
			damage(g, tx)
		}
		return writeFormat(tx, 2)
	})).To(Succeed())
	g.Expect(db.Close()).To(Succeed())
}

func TestAFileOfFormat2IsMigrated(t *testing.T) {
	g := NewWithT(t)
	path := copyFormat1(t)
	f := openFile(t, path, FileOptions{})
	all := contents(t, f)
	g.Expect(f.Close()).To(Succeed())
	asFormat2(t, path, nil)
	g.Expect(contents(t, openFile(t, path, FileOptions{}))).To(Equal(all))
	g.Expect(path + ".format-2").To(BeAnExistingFile())
	g.Expect(openBare(t, path+".format-2")).To(Equal(uint64(2)))
}

func TestADamagedFileOfFormat2IsNotMigrated(t *testing.T) {
	lose := func(bucket string) func(g Gomega, tx *bbolt.Tx) {
		return func(g Gomega, tx *bbolt.Tx) {
			b := tx.Bucket([]byte(bucket))
			k, _ := b.Cursor().First()
			g.Expect(b.Delete(bytes.Clone(k))).To(Succeed())
		}
	}
	for _, bucket := range []string{journalBucket, nodeBucket, "records-docker"} {
		t.Run(bucket, func(t *testing.T) {
			g := NewWithT(t)
			path := copyFormat1(t)
			g.Expect(openFile(t, path, FileOptions{}).Close()).To(Succeed())
			asFormat2(t, path, lose(bucket))
			_, err := OpenFile(path, FileOptions{})
			g.Expect(err).To(MatchError(ErrDamaged))
			g.Expect(openBare(t, path)).To(Equal(uint64(2)))
		})
	}
	t.Run("a mirror is only a copy", func(t *testing.T) {
		g := NewWithT(t)
		path := copyFormat1(t)
		g.Expect(openFile(t, path, FileOptions{}).Close()).To(Succeed())
		asFormat2(t, path, lose(mirrorBucket))
		_, revision, err := openFile(t, path, FileOptions{}).Mirror().Load(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(revision).To(BeZero())
	})
}

// Two leases exchange their owners, and each record has a checksum that is right: the sum
// of the checksums is often the same, the tally is not.
func TestRecordsThatExchangeTheirValues(t *testing.T) {
	g := NewWithT(t)
	plain := 0
	var pair [2][]byte // owners whose exchange the plain sum does not notice
	keys := [2][]byte{[]byte("Lpods\x00\x0a\x01\x05\x02"), []byte("Lpods\x00\x0a\x01\x05\x03")}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 120_000 {
		values := [2][]byte{owner(rnd), owner(rnd)}
		var before, after tally
		var sums [2]uint64
		for n := range keys {
			here, there := seal(keys[n], values[n]), seal(keys[n], values[1-n])
			before.add(here)
			after.add(there)
			sums[0], sums[1] = sums[0]+stored(here), sums[1]+stored(there)
		}
		if sums[0] == sums[1] {
			plain, pair = plain+1, values
		}
		g.Expect(after).NotTo(Equal(before), "%s", values)
	}
	g.Expect(plain).To(BeNumerically(">", 0))

	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openFile(t, path, FileOptions{})
	g.Expect(f.Journal().Commit(t.Context(), []kvdb.Op{kvdb.Put(string(keys[0]), pair[0]), kvdb.Put(string(keys[1]), pair[1])})).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	for n := range keys {
		rawAt{[]string{journalBucket}, rawRecord{k: keys[n]}}.change(t, path, seal(keys[n], pair[1-n]))
	}
	g.Expect(refused(path, t)).To(MatchError(ErrDamaged))
}

// owner returns the value of a lease of some container.
func owner(rnd *rand.Rand) []byte {
	return fmt.Appendf(nil, "eth0 of container %016x%016x in 10.1.5.0/24", rnd.Uint64(), rnd.Uint64())
}
