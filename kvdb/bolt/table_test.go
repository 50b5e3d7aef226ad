// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// richFile returns the path of a file with records of every kind. It has what a ledger
// writes, with its history, and a store from which a key was deleted. It also has a mirror,
// records of Docker and local values. Some values are empty.
func richFile(t *testing.T) string {
	t.Helper()
	g, path := NewWithT(t), filepath.Join(t.TempDir(), "cadastre.db")
	f := openFile(t, path, FileOptions{})
	ops := []kvdb.Op{
		kvdb.Put("M", []byte("boot-1")), kvdb.Put("Ppods", []byte("cool-down 30s")),
		kvdb.Put("Bpods\x0010.1.5.0/24", []byte("10.1.5.0/24 of pods")), kvdb.Put("H-entry-1", []byte("claimed")),
	}
	for i := range 5 {
		ops = append(ops, kvdb.Put("Lpods\x00\x0a\x01\x05"+string(rune(i)), fmt.Appendf(nil, "eth0 of container %d", i)))
	}
	g.Expect(f.Journal().Commit(t.Context(), ops)).To(Succeed())
	s, err := f.Store()
	g.Expect(err).NotTo(HaveOccurred())
	for _, op := range []kvdb.Op{
		kvdb.Put("node-id/1", []byte("record 1")), kvdb.Put("node-id/2", []byte("record 2")), kvdb.Put("node-id/3", nil),
		kvdb.Delete("node-id/2"),
	} {
		_, err := s.Txn(t.Context(), nil, []kvdb.Op{op})
		g.Expect(err).NotTo(HaveOccurred())
	}
	s.Close()
	g.Expect(f.Mirror().Replace(t.Context(), []kvdb.KeyValue{{Key: "a", Value: []byte("1")}, {Key: "b"}}, 7)).To(Succeed())
	g.Expect(f.Records("docker").Commit(t.Context(), map[string][]byte{"pool/a": []byte("x"), "network/b": {}}, nil)).To(Succeed())
	g.Expect(f.SetLocal("instance", "uuid")).To(Succeed())
	g.Expect(f.SetLocal("node-id", `{"id":5}`)).To(Succeed())
	g.Expect(f.Close()).To(Succeed())
	return path
}

// TestEveryByteOfEveryRecordCounts flips a bit of each byte of each record of each
// bucket, and removes each record. Opening the file refuses all these changes, but for
// those of the mirror, which its reader refuses.
func TestEveryByteOfEveryRecordCounts(t *testing.T) {
	g := NewWithT(t)
	path := richFile(t)
	all := everyRecord(t, path)
	counts := map[string]int{}
	for _, x := range all {
		counts[strings.Join(x.path, "/")]++
	}
	g.Expect(counts).To(Equal(map[string]int{
		"ledger": 8, "history": 1, "kvdb/keys": 2, "kvdb/meta": 1, "local": 2, "records-docker": 2,
		"mirror": 2, "mirror-meta": 1,
		"meta": 2 + 8 + 2, // the format number, the tallies, the identity of the last commit
	}))
	for _, x := range all {
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
	k, v []byte
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
			all = append(all, rawAt{path, bytes.Clone(k), bytes.Clone(v)})
			return nil
		})
	}
	g.Expect(db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(k []byte, b *bbolt.Bucket) error { return walk([]string{string(k)}, b) })
	})).To(Succeed())
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
		rawAt{path: []string{journalBucket}, k: keys[n]}.change(t, path, seal(keys[n], pair[1-n]))
	}
	g.Expect(refused(path, t)).To(MatchError(ErrDamaged))
}

// owner returns the value of a lease of some container.
func owner(rnd *rand.Rand) []byte {
	return fmt.Appendf(nil, "eth0 of container %016x%016x in 10.1.5.0/24", rnd.Uint64(), rnd.Uint64())
}
