// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// copyFormat1 returns the path of a copy of testdata/format-1.db, which the last
// program of format 1 wrote: five leases, a store at revision 4 with two keys, a
// mirror of revision 7, two records of Docker, an instance and a node ID.
func copyFormat1(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/format-1.db")
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(t.TempDir(), "cadastre.db")
	g.Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
	return path
}

// contents is all that a file holds, as its parts read it.
func contents(t *testing.T, f *File) map[string]string {
	t.Helper()
	g := NewWithT(t)
	all := map[string]string{}
	g.Expect(f.Journal().Load(t.Context(), func(x kvdb.KeyValue) error { all["journal/"+x.Key] = string(x.Value); return nil })).To(Succeed())
	g.Expect(f.Records("docker").Load(t.Context(), func(k string, v []byte) error { all["docker/"+k] = string(v); return nil })).To(Succeed())
	mirrored, revision, err := f.Mirror().Load(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	all["mirror revision"] = string(rune('0' + revision))
	for _, x := range mirrored {
		all["mirror/"+x.Key] = string(x.Value)
	}
	s, err := f.Store()
	g.Expect(err).NotTo(HaveOccurred())
	defer s.Close()
	kvs, revision, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	all["store revision"] = string(rune('0' + revision))
	for _, x := range kvs {
		all["store/"+x.Key] = string(rune('0'+x.ModRevision)) + string(x.Value)
	}
	for _, name := range []string{"instance", "node-id"} {
		all["local/"+name], err = f.Local(name)
		g.Expect(err).NotTo(HaveOccurred())
	}
	return all
}

func TestAFileOfFormat1IsMigrated(t *testing.T) {
	g := NewWithT(t)
	path := copyFormat1(t)
	f := openFile(t, path, FileOptions{})
	all := contents(t, f)
	g.Expect(all).To(HaveLen(7 + 2 + 3 + 3 + 2))
	g.Expect(all).To(And(
		HaveKeyWithValue("store revision", "4"), HaveKeyWithValue("store/cluster/node-id/1", "1record 1"), HaveKeyWithValue("store/cluster/node-id/3", "3record 3"),
		HaveKeyWithValue("mirror revision", "7"), HaveKeyWithValue("mirror/cluster/a", "1"), HaveKeyWithValue("docker/pool/a", "x"),
		HaveKeyWithValue("local/node-id", `{"id":5}`),
	))
	g.Expect(f.Close()).To(Succeed())
	old, err := os.ReadFile("testdata/format-1.db")
	g.Expect(err).NotTo(HaveOccurred())
	kept := openFormat1(t, path+".format-1")
	g.Expect(kept).To(Equal(openFormat1(t, copyFormat1(t))), "the copy is as the file was")
	g.Expect(old).NotTo(BeEmpty())
	g.Expect(contents(t, openFile(t, path, FileOptions{}))).To(Equal(all), "once")
}

func TestADowngradedFileIsOneOfFormat1(t *testing.T) {
	g := NewWithT(t)
	path := copyFormat1(t)
	before := openFormat1(t, path)
	f := openFile(t, path, FileOptions{})
	all := contents(t, f)
	_, err := Downgrade(t.Context(), path, FileOptions{})
	g.Expect(err).To(MatchError(errHeld), "not while a process has it")
	g.Expect(f.SetLocal("more", "yes")).To(Succeed())
	g.Expect(f.Close()).To(Succeed())

	kept, err := Downgrade(t.Context(), path, FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(contents(t, openFile(t, kept, FileOptions{}))).To(Equal(all))
	after := openFormat1(t, path)
	g.Expect(after).To(HaveKeyWithValue("local/more", "yes"))
	delete(after, "local/more")
	g.Expect(after).To(Equal(before), "nothing is lost, and nothing is left of a later format")
	g.Expect(contents(t, openFile(t, path, FileOptions{}))).To(Equal(all), "and up again")

	_, err = Downgrade(t.Context(), copyFormat1(t), FileOptions{})
	g.Expect(err).To(MatchError(ContainSubstring("it is of format 1 already")))
	_, err = Downgrade(t.Context(), filepath.Join(t.TempDir(), "none.db"), FileOptions{})
	g.Expect(err).To(MatchError(os.ErrNotExist))
}

// openFormat1 reads a file by the rules of format 1.
func openFormat1(t *testing.T, path string) map[string]string {
	t.Helper()
	g := NewWithT(t)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer db.Close()
	all := map[string]string{}
	bare := func(top string, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error { all[top+"/"+string(k)] = string(v); return nil })
	}
	sealed := func(top string, b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			table := crc32.MakeTable(crc32.Castagnoli)
			if len(v) < 4 || binary.BigEndian.Uint32(v) != crc32.Update(crc32.Checksum(k, table), table, v[4:]) {
				return errors.New("checksum")
			}
			all[top+"/"+string(k)] = string(v[4:])
			return nil
		})
	}
	g.Expect(db.View(func(tx *bbolt.Tx) error {
		g.Expect(tx.Bucket([]byte("meta")).Get([]byte("format"))).To(Equal([]byte{0, 0, 0, 0, 0, 0, 0, 1}))
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			switch string(name) {
			case "kvdb":
				return errors.Join(bare("kvdb/keys", b.Bucket([]byte("keys"))), bare("kvdb/meta", b.Bucket([]byte("meta"))))
			case "ledger", "mirror", "records-docker":
				return sealed(string(name), b)
			}
			return bare(string(name), b)
		})
	})).To(Succeed())
	return all
}

func TestADamagedFileOfFormat1IsNotMigrated(t *testing.T) {
	for _, c := range []struct{ bucket, key string }{{"ledger", "L"}, {"records-docker", "pool/a"}} {
		t.Run(c.bucket, func(t *testing.T) {
			g := NewWithT(t)
			path := copyFormat1(t)
			db, err := bbolt.Open(path, 0o600, nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(db.Update(func(tx *bbolt.Tx) error {
				b := tx.Bucket([]byte(c.bucket))
				k, v := b.Cursor().Seek([]byte(c.key))
				flipped := bytes.Clone(v)
				flipped[len(flipped)-1] ^= 1
				return b.Put(bytes.Clone(k), flipped)
			})).To(Succeed())
			g.Expect(db.Close()).To(Succeed())
			_, err = OpenFile(path, FileOptions{})
			g.Expect(err).To(MatchError(ErrDamaged))
			g.Expect(openBare(t, path)).To(Equal(uint64(1)))
		})
	}
}

// openBare returns the format number of a file.
func openBare(t *testing.T, path string) (format uint64) {
	t.Helper()
	g := NewWithT(t)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	g.Expect(err).NotTo(HaveOccurred())
	defer db.Close()
	g.Expect(db.View(func(tx *bbolt.Tx) error {
		format = binary.BigEndian.Uint64(tx.Bucket([]byte("meta")).Get([]byte("format")))
		return nil
	})).To(Succeed())
	return format
}
