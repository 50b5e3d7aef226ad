// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// occupy keeps the database from being written until release.
func occupy(t *testing.T, db *bbolt.DB) (release func()) {
	t.Helper()
	tx, err := db.Begin(true)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	release = func() { _ = tx.Rollback() }
	t.Cleanup(release)
	return release
}

func queued(s *Store) func() int {
	return func() int {
		m := &s.f.commits
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.queue)
	}
}

type answer struct {
	rev int64
	err error
}

// send calls Txn and waits until it is queued behind n others.
func send(ctx context.Context, t *testing.T, s *Store, n int, conds []kvdb.Cond, ops ...kvdb.Op) <-chan answer {
	t.Helper()
	out := make(chan answer, 1)
	go func() {
		rev, err := s.Txn(ctx, conds, ops)
		out <- answer{rev, err}
	}()
	NewWithT(t).Eventually(queued(s), 5*time.Minute, time.Millisecond).Should(Equal(n + 1))
	return out
}

func TestWaitingTransactionsAreOneCommit(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	w, err := s.Watch(t.Context(), "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	before := txid(t, s.f.db)

	release := occupy(t, s.f.db)
	first := send(t.Context(), t, s, 0, []kvdb.Cond{kvdb.Absent("a")}, kvdb.Put("a", []byte("1")))
	loses := send(t.Context(), t, s, 1, []kvdb.Cond{kvdb.Absent("a")}, kvdb.Put("a", []byte("2")))
	empty := send(t.Context(), t, s, 2, nil)
	follows := send(t.Context(), t, s, 3, []kvdb.Cond{kvdb.AtRevision("a", 1)}, kvdb.Put("b", []byte("3")))
	release()

	g.Expect(<-first).To(Equal(answer{rev: 1}))
	g.Expect((<-loses).err).To(MatchError(kvdb.ErrConditions))
	g.Expect(<-empty).To(Equal(answer{rev: 1}))
	g.Expect(<-follows).To(Equal(answer{rev: 2}))
	g.Expect(txid(t, s.f.db)).To(Equal(before+1), "one commit for all")
	g.Expect((<-w.Events())[0].KeyValue).To(Equal(kvdb.KeyValue{Key: "a", Value: []byte("1"), ModRevision: 1}))
	g.Expect((<-w.Events())[0].KeyValue).To(Equal(kvdb.KeyValue{Key: "b", Value: []byte("3"), ModRevision: 2}))
}

func TestNothingWrittenIsNoCommit(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	put(t, s, "a", "1")
	before := txid(t, s.f.db)
	_, err := s.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("a")}, []kvdb.Op{kvdb.Put("a", nil)})
	g.Expect(err).To(MatchError(kvdb.ErrConditions))
	_, err = s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete("b")})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(txid(t, s.f.db)).To(Equal(before))
}

func TestGroupsAreBounded(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	before := txid(t, s.f.db)
	release := occupy(t, s.f.db)
	var answers []<-chan answer
	for i := range maxGroup + 5 {
		answers = append(answers, send(t.Context(), t, s, i, nil, kvdb.Put("a", nil)))
	}
	release()
	for _, a := range answers {
		g.Expect((<-a).err).NotTo(HaveOccurred())
	}
	g.Expect(txid(t, s.f.db)).To(Equal(before + 2))
}

func TestQueuedTransactionIsWithdrawn(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	release := occupy(t, s.f.db)
	reason := errors.New("a reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	stays := send(t.Context(), t, s, 0, nil, kvdb.Put("stays", nil))
	leaves := send(ctx, t, s, 1, nil, kvdb.Put("leaves", nil))
	cancel(reason)
	g.Expect((<-leaves).err).To(And(MatchError(reason), MatchError(ContainSubstring("withdrawn"))))
	release()
	g.Expect(<-stays).To(Equal(answer{rev: 1}))
	_, found, err := s.Get(t.Context(), "leaves")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse())
}

func TestTransactionBeingCommittedGoesOn(t *testing.T) {
	g := NewWithT(t)
	s := openStore(t, openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{tune: func(o *bbolt.Options) {
		o.InitialMmapSize, o.NoSync = 0, true
	}}))
	// To grow its map the commit must wait until no transaction reads.
	reader, err := s.f.db.Begin(false)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = reader.Rollback() })
	ctx, cancel := context.WithCancel(t.Context())
	value := []byte(strings.Repeat("x", 1<<20))
	out := make(chan error, 1)
	go func() {
		_, err := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("a", value)})
		out <- err
	}()
	taken := func() bool {
		m := &s.f.commits
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.busy && len(m.queue) == 0
	}
	g.Eventually(taken, 5*time.Minute, time.Millisecond).Should(BeTrue())
	cancel()
	g.Expect(<-out).To(And(MatchError(context.Canceled), MatchError(ContainSubstring("not known"))))
	clear(value) // the caller may reuse what it passed
	g.Expect(reader.Rollback()).To(Succeed())
	g.Expect(s.Close()).To(Succeed(), "which waits for the commit")

	s = openStore(t, s.f)
	kv, found, err := s.Get(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	g.Expect(strings.Count(string(kv.Value), "x")).To(Equal(1 << 20))
}

func TestCloseFailsWhatIsQueued(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	release := occupy(t, s.f.db)
	waits := send(t.Context(), t, s, 0, nil, kvdb.Put("a", nil))
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	g.Expect((<-waits).err).To(MatchError(kvdb.ErrClosed))
	release()
	g.Expect(<-closed).To(Succeed())
	_, found, err := openStore(t, s.f).Get(t.Context(), "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse())
}

func TestFailedCommitFailsTheGroup(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	f := openNoSync(t, path)
	put(t, openStore(t, f), "a", "1")
	g.Expect(f.Close()).To(Succeed())

	// A file that can be read only: all goes well until the commit.
	s := openStore(t, openFile(t, path, FileOptions{tune: func(o *bbolt.Options) {
		o.OpenFile = func(name string, _ int, mode os.FileMode) (*os.File, error) {
			return os.OpenFile(name, os.O_RDONLY, mode)
		}
	}}))
	release := occupy(t, s.f.db)
	first := send(t.Context(), t, s, 0, nil, kvdb.Put("a", []byte("2")))
	loses := send(t.Context(), t, s, 1, []kvdb.Cond{kvdb.AtRevision("a", 1)}, kvdb.Put("b", nil))
	release()
	for _, out := range []<-chan answer{first, loses} {
		err := (<-out).err
		g.Expect(err).To(MatchError(ContainSubstring("bad file descriptor")))
		g.Expect(err).NotTo(MatchError(kvdb.ErrConditions), "what it lost to is not stored")
	}
	kvs, rev, err := s.List(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rev).To(Equal(int64(1)))
	g.Expect(kvs).To(Equal([]kvdb.KeyValue{{Key: "a", Value: []byte("1"), ModRevision: 1}}))
}

func TestStoreRecoversFromFailedCommit(t *testing.T) {
	g := NewWithT(t)
	s := openStore(t, openFile(t, filepath.Join(t.TempDir(), "cadastre.db"), FileOptions{tune: func(o *bbolt.Options) { o.NoSync, o.MaxSize = true, 1<<20 }}))
	w, err := s.Watch(t.Context(), "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	put(t, s, "a", "1")
	_, err = s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("a", make([]byte, 4<<20))})
	g.Expect(err).To(HaveOccurred())
	g.Expect(put(t, s, "a", "2")).To(Equal(int64(2)))
	g.Expect(string((<-w.Events())[0].Value)).To(Equal("1"))
	g.Expect(string((<-w.Events())[0].Value)).To(Equal("2"))
}

func TestCommitThatWasOnlyReportedFailed(t *testing.T) {
	for name, after := range map[string]func(t *testing.T, s *Store){
		"noticed at once":         func(_ *testing.T, s *Store) { s.resync() },
		"noticed with the next":   func(t *testing.T, s *Store) { put(t, s, "a", "3") },
		"noticed, and then a put": func(t *testing.T, s *Store) { s.resync(); put(t, s, "a", "3") },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := makeStore(t)
			put(t, s, "a", "1")
			w, err := s.Watch(t.Context(), "", 0)
			g.Expect(err).NotTo(HaveOccurred())
			// What a failed sync of the meta page leaves behind, as far as the
			// store can tell: a revision that it has not published.
			g.Expect(s.f.db.Update(func(tx *bbolt.Tx) error {
				l, err := openLayout(tx, s.bucket)
				if err != nil {
					return err
				}
				return l.setRevision(2)
			})).To(Succeed())
			after(t, s)
			for range w.Events() {
				t.Error("a watch skipped a revision")
			}
			g.Expect(w.Err()).To(MatchError(kvdb.ErrCompacted))
		})
	}
}

func TestWatchFromNowIsTheDatabasesNow(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	// A group that is committed and can be read, but is not published yet.
	g.Expect(s.f.db.Update(func(tx *bbolt.Tx) error {
		l, err := openLayout(tx, s.bucket)
		if err != nil {
			return err
		}
		return l.setRevision(1)
	})).To(Succeed())
	w, err := s.Watch(t.Context(), "", 0)
	g.Expect(err).NotTo(HaveOccurred())
	s.log.Append(1, []kvdb.Event{{KeyValue: kvdb.KeyValue{Key: "a", ModRevision: 1}}})
	put(t, s, "b", "2")
	g.Expect((<-w.Events())[0].ModRevision).To(Equal(int64(2)))
}

func TestUnstorableFailsAlone(t *testing.T) {
	g := NewWithT(t)
	s := makeStore(t)
	release := occupy(t, s.f.db)
	good := send(t.Context(), t, s, 0, nil, kvdb.Put(strings.Repeat("k", bbolt.MaxKeySize), nil))
	_, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(strings.Repeat("k", bbolt.MaxKeySize+1), nil)})
	g.Expect(err).To(MatchError(kvdb.ErrKey))
	release()
	g.Expect(<-good).To(Equal(answer{rev: 1}))
}
