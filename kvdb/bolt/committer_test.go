// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/kvdb"
)

// waiters returns the number of changes in the queue of f.
func waiters(f *File) func() int {
	return func() int {
		f.commits.mu.Lock()
		defer f.commits.mu.Unlock()
		return len(f.commits.queue)
	}
}

// begin runs commit and waits until it is queued behind n others.
func begin(t *testing.T, f *File, n int, commit func() error) <-chan error {
	t.Helper()
	out := make(chan error, 1)
	go func() { out <- commit() }()
	NewWithT(t).Eventually(waiters(f), 5*time.Minute, time.Millisecond).Should(Equal(n + 1))
	return out
}

func TestAllPartsShareOneCommit(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	s := openStore(t, f)
	before := txid(t, f.db)
	release := occupy(t, f.db)
	ctx := t.Context()
	outs := []<-chan error{
		begin(t, f, 0, func() error { return f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("a", []byte("1"))}) }),
		begin(t, f, 1, func() error { return f.SetLocal("b", "2") }),
		begin(t, f, 2, func() error { return f.Records("part").Commit(ctx, map[string][]byte{"c": []byte("3")}, nil) }),
		begin(t, f, 3, func() error {
			return f.Mirror().Replace(ctx, []kvdb.KeyValue{{Key: "d", Value: []byte("4")}}, 1)
		}),
		begin(t, f, 4, func() error {
			_, err := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("e", []byte("5"))})
			return err
		}),
	}
	release()
	for _, out := range outs {
		g.Expect(<-out).To(Succeed())
	}
	g.Expect(txid(t, f.db)).To(Equal(before+1), "one commit for all")
}

func TestAChangeThatFailsAfterItWroteIsLeftOut(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	before := txid(t, f.db)
	release := occupy(t, f.db)
	reason := errors.New("a reason")
	first := begin(t, f, 0, func() error { return f.SetLocal("first", "1") })
	bad := begin(t, f, 1, func() error {
		return f.commits.commit(t.Context(), func(tx *bbolt.Tx) (bool, error) {
			b, err := tx.CreateBucket([]byte("half"))
			if err != nil {
				return true, err
			}
			return true, errors.Join(b.Put([]byte("k"), nil), reason)
		})
	})
	last := begin(t, f, 2, func() error { return f.SetLocal("last", "1") })
	release()
	g.Expect(<-first).To(Succeed())
	g.Expect(<-bad).To(MatchError(reason))
	g.Expect(<-last).To(Succeed())
	g.Expect(txid(t, f.db)).To(Equal(before + 1))
	g.Expect(f.view(func(tx *bbolt.Tx) error {
		g.Expect(tx.Bucket([]byte("half"))).To(BeNil())
		return nil
	})).To(Succeed())
	g.Expect(f.Local("last")).To(Equal("1"))
}

func TestAContextThatEndsWithdrawsAQueuedChange(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	release := occupy(t, f.db)
	ctx, cancel := context.WithCancel(t.Context())
	stays := begin(t, f, 0, func() error { return f.SetLocal("stays", "1") })
	leaves := begin(t, f, 1, func() error { return f.Journal().Commit(ctx, []kvdb.Op{kvdb.Put("a", nil)}) })
	cancel()
	g.Expect(<-leaves).To(And(MatchError(context.Canceled), MatchError(ContainSubstring("withdrawn"))))
	release()
	g.Expect(<-stays).To(Succeed())
	g.Expect(f.Journal().Load(t.Context(), func(kvdb.KeyValue) error { return errors.New("it was written") })).To(Succeed())
}

func TestAClosedFileRefusesChanges(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	g.Expect(f.Close()).To(Succeed())
	g.Expect(f.SetLocal("a", "1")).To(MatchError(errClosed))
}

// TestEveryCallerHasOneAnswer lets many callers commit, some of which fail.
func TestEveryCallerHasOneAnswer(t *testing.T) {
	g := NewWithT(t)
	f := openNoSync(t, filepath.Join(t.TempDir(), "cadastre.db"))
	const callers = 300
	reason := errors.New("a reason")
	outs := make(chan error, callers)
	for i := range callers {
		go func() {
			outs <- f.commits.commit(t.Context(), func(tx *bbolt.Tx) (bool, error) {
				b, err := tx.CreateBucketIfNotExists([]byte("many"))
				if err == nil {
					err = b.Put(fmt.Append(nil, i), nil)
				}
				if i%7 == 0 {
					err = reason
				}
				return true, err
			})
		}()
	}
	failed := 0
	for range callers {
		if err := <-outs; err != nil {
			g.Expect(err).To(MatchError(reason))
			failed++
		}
	}
	g.Expect(failed).To(Equal((callers + 6) / 7))
	g.Expect(f.view(func(tx *bbolt.Tx) error {
		g.Expect(tx.Bucket([]byte("many")).Stats().KeyN).To(Equal(callers - failed))
		return nil
	})).To(Succeed())
}
