// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openNoSync opens a file that does not wait for the disk: what is tested here
// is not the disk.
func openNoSync(t *testing.T, path string) *File {
	t.Helper()
	return openFile(t, path, FileOptions{tune: func(o *bbolt.Options) { o.NoSync = true }})
}

func openStore(t *testing.T, f *File) *Store {
	t.Helper()
	s, err := newStore(f, "kvdb")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func makeStore(t *testing.T) *Store {
	t.Helper()
	return openStore(t, openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db")))
}

func put(t *testing.T, s kvdb.Store, key, value string) int64 {
	t.Helper()
	rev, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, []byte(value))})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return rev
}

func TestContract(t *testing.T) {
	kvdbtest.Run(t, func(t *testing.T) kvdb.Store { return makeStore(t) })
}

func TestContractWithNeighbours(t *testing.T) {
	// The keys of another bucket, and of another store, do not appear.
	kvdbtest.Run(t, func(t *testing.T) kvdb.Store {
		s := makeStore(t)
		NewWithT(t).Expect(s.f.db.Update(func(tx *bbolt.Tx) error {
			journal, err := tx.CreateBucket([]byte("journal"))
			if err != nil {
				return err
			}
			return journal.Put([]byte("a"), []byte("not yours"))
		})).To(Succeed())
		other, err := newStore(s.f, "other")
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { _ = other.Close() })
		put(t, other, "a", "not yours either")
		return s
	})
}

func TestRevisionsSurviveRestart(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openNoSync(t, path)
	s := openStore(t, f)
	put(t, s, "a", "1")
	put(t, s, "b", "1")
	gone, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete("b")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Close()).To(Succeed())
	g.Expect(f.view(func(*bbolt.Tx) error { return nil })).To(Succeed(), "the file is still its owner's")
	g.Expect(f.Close()).To(Succeed())

	s = openStore(t, openNoSync(t, path))
	kvs, rev, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rev).To(Equal(gone))
	g.Expect(kvs).To(Equal([]kvdb.KeyValue{{Key: "a", Value: []byte("1"), ModRevision: 1}}))

	for _, from := range []int64{1, gone} {
		_, err = s.Watch(t.Context(), "", from)
		g.Expect(err).To(MatchError(kvdb.ErrCompacted), "revision %d", from)
	}
	w, err := s.Watch(t.Context(), "", gone+1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(put(t, s, "b", "2")).To(Equal(gone + 1))
	g.Expect((<-w.Events())[0].ModRevision).To(Equal(gone + 1))
}

func TestOpeningWritesOnlyOnce(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	before := txid(t, s.f.db)
	_, err := newStore(s.f, "kvdb")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(txid(t, s.f.db)).To(Equal(before))
}

func TestForeignBucketIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	db := f.db
	g.Expect(db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("journal"))
		if err != nil {
			return err
		}
		return b.Put([]byte("entry"), nil)
	})).To(Succeed())
	before := txid(t, db)
	_, err := newStore(f, "journal")
	g.Expect(err).To(MatchError(errNoLayout))
	g.Expect(txid(t, db)).To(Equal(before))
	_, err = newStore(f, "")
	g.Expect(err).To(HaveOccurred())
}

func TestDamageIsReported(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	put(t, s, "good", "1")
	g.Expect(s.f.db.Update(func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		return l.keys.b.Put([]byte("bad"), []byte("short"))
	})).To(Succeed())
	_, _, err := s.Get(t.Context(), "bad")
	g.Expect(err).To(MatchError(ErrDamaged))
	_, _, err = s.List(t.Context(), "")
	g.Expect(err).To(MatchError(ErrDamaged))
	_, err = s.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("bad")}, []kvdb.Op{kvdb.Put("good", nil)})
	g.Expect(err).To(MatchError(ErrDamaged))
	put(t, s, "bad", "mended")
	_, found, err := s.Get(t.Context(), "bad")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
}

func TestDatabaseClosedTooEarly(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	w, err := s.Watch(t.Context(), "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.f.Close()).To(Succeed())
	_, _, err = s.Get(t.Context(), "a")
	g.Expect(err).To(HaveOccurred())
	_, err = s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("a", nil)})
	g.Expect(err).To(HaveOccurred())
	g.Expect(s.Close()).To(Succeed())
	g.Expect(w.Events()).To(BeClosed())
	g.Expect(w.Err()).To(MatchError(kvdb.ErrClosed))
}

// txid is the number of the database's last commit.
func txid(t *testing.T, db *bbolt.DB) (id int) {
	t.Helper()
	NewWithT(t).Expect(db.View(func(tx *bbolt.Tx) error {
		id = tx.ID()
		return nil
	})).To(Succeed())
	return id
}
