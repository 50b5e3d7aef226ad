// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faulty_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/kvdbtest"
	"github.com/cadastre/cadastre/kvdb/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContractWithoutFaults(t *testing.T) {
	kvdbtest.Run(t, func(*testing.T) kvdb.Store { return faulty.New(mem.New()) })
}

func TestContractWithUncutWatches(t *testing.T) {
	kvdbtest.Run(t, func(*testing.T) kvdb.Store {
		return faulty.New(mem.New(), faulty.Always(faulty.Watch, faulty.Cut(1<<30)))
	})
}

// newStore answers a store in which "a" is stored, and its counts start anew.
func newStore(t *testing.T, plans ...faulty.Plan) (*faulty.Store, kvdb.Store) {
	t.Helper()
	inner := mem.New()
	s := faulty.New(inner)
	t.Cleanup(func() { _ = s.Close() })
	NewWithT(t).Expect(put(t, s, "a", "1")).To(Succeed())
	s.Reset(plans...)
	return s, inner
}

func put(t *testing.T, s kvdb.Store, key, value string) error {
	t.Helper()
	_, err := s.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, []byte(value))})
	return err
}

func value(t *testing.T, s kvdb.Store, key string) string {
	t.Helper()
	kv, _, err := s.Get(t.Context(), key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return string(kv.Value)
}

// each calls every kind of operation once.
func each(ctx context.Context, s kvdb.Store) map[string]error {
	_, _, get := s.Get(ctx, "a")
	_, _, list := s.List(ctx, "")
	_, txn := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("a", []byte("2"))})
	w, watch := s.Watch(ctx, "", 0)
	if watch == nil {
		w.Close()
	}
	return map[string]error{faulty.Get: get, faulty.List: list, faulty.Txn: txn, faulty.Watch: watch}
}

func TestFaultsReachEveryOperation(t *testing.T) {
	reason := errors.New("a reason")
	ops := []string{faulty.Get, faulty.List, faulty.Txn, faulty.Watch}
	for name, c := range map[string]struct {
		fault faulty.Fault
		want  error
		after string // the value, if the transaction met the fault
	}{
		"fail":      {faulty.Fail(), faulty.ErrInjected, "1"},
		"fail with": {faulty.FailWith(reason), reason, "1"},
		"tear":      {faulty.Tear(), faulty.ErrInjected, "2"},
		"tear with": {faulty.TearWith(reason), reason, "2"},
	} {
		for k, op := range ops {
			t.Run(name+" "+op, func(t *testing.T) {
				g := NewWithT(t)
				s, inner := newStore(t, faulty.At(k+1, c.fault))
				for done, err := range each(t.Context(), s) {
					if done == op {
						g.Expect(err).To(MatchError(c.want))
					} else {
						g.Expect(err).NotTo(HaveOccurred(), done)
					}
				}
				if op == faulty.Txn {
					g.Expect(value(t, inner, "a")).To(Equal(c.after))
				}
				g.Expect(s.Count()).To(Equal(4))
			})
		}
	}
}

func TestTearLosesRefusalsToo(t *testing.T) {
	g := NewWithT(t)
	s, _ := newStore(t, faulty.At(1, faulty.Tear()))
	_, err := s.Txn(t.Context(), []kvdb.Cond{kvdb.Absent("a")}, nil)
	g.Expect(err).To(And(MatchError(faulty.ErrInjected), Not(MatchError(kvdb.ErrConditions))))
}

func TestPlans(t *testing.T) {
	g := NewWithT(t)
	s, _ := newStore(t,
		faulty.On(faulty.Txn, 2, faulty.Fail()),
		faulty.At(1, faulty.Tear()),
		func(op string, n int) faulty.Fault {
			if op == faulty.Get && n > 4 {
				return faulty.Fail()
			}
			return faulty.Fault{}
		})
	g.Expect(put(t, s, "a", "torn")).To(MatchError(faulty.ErrInjected))
	g.Expect(value(t, s, "a")).To(Equal("torn"))
	g.Expect(put(t, s, "a", "failed")).To(MatchError(faulty.ErrInjected))
	g.Expect(value(t, s, "a")).To(Equal("torn"))
	g.Expect(put(t, s, "a", "done")).To(Succeed())
	_, _, err := s.Get(t.Context(), "a")
	g.Expect(err).To(MatchError(faulty.ErrInjected))
	g.Expect(s.Count()).To(Equal(6))
	s.Reset()
	g.Expect(value(t, s, "a")).To(Equal("done"))
	g.Expect(s.Count()).To(Equal(1))
}

func TestDelayHeedsTheContext(t *testing.T) {
	g := NewWithT(t)
	s, inner := newStore(t, faulty.Always(faulty.Txn, faulty.Delay(time.Hour)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Txn(ctx, nil, []kvdb.Op{kvdb.Put("a", []byte("2"))})
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(value(t, inner, "a")).To(Equal("1"))

	s.Reset(faulty.At(1, faulty.Delay(time.Millisecond)))
	g.Expect(put(t, s, "a", "2")).To(Succeed())
	g.Expect(value(t, inner, "a")).To(Equal("2"))
}

func TestHold(t *testing.T) {
	g := NewWithT(t)
	release := make(chan struct{})
	s, inner := newStore(t, faulty.On(faulty.Txn, 1, faulty.Hold(release)))
	done := make(chan error)
	go func() { done <- put(t, s, "a", "held") }()
	g.Eventually(s.Count).Should(Equal(1))
	g.Expect(put(t, s, "a", "2")).To(Succeed(), "only the first is held")
	g.Expect(value(t, inner, "a")).To(Equal("2"))
	close(release)
	g.Expect(<-done).To(Succeed())
	g.Expect(value(t, inner, "a")).To(Equal("held"))
}

func TestCloseReleases(t *testing.T) {
	g := NewWithT(t)
	s, _ := newStore(t, faulty.Always(faulty.Txn, faulty.Hold(make(chan struct{}))))
	done := make(chan error)
	go func() { done <- put(t, s, "a", "held") }()
	g.Eventually(s.Count).Should(Equal(1))
	g.Expect(s.Close()).To(Succeed())
	g.Expect(<-done).To(MatchError(kvdb.ErrClosed))
	s.Reset(faulty.At(1, faulty.Fail()))
	g.Expect(put(t, s, "a", "2")).To(MatchError(kvdb.ErrClosed), "there are no faults after Close")
}

func TestCut(t *testing.T) {
	for name, c := range map[string]struct {
		fault   faulty.Fault
		batches int
		want    error
	}{
		"at once":         {faulty.Cut(0), 0, faulty.ErrInjected},
		"after two":       {faulty.Cut(2), 2, faulty.ErrInjected},
		"as if compacted": {faulty.CutWith(1, kvdb.ErrCompacted), 1, kvdb.ErrCompacted},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s, _ := newStore(t, faulty.On(faulty.Watch, 1, c.fault))
			w, err := s.Watch(t.Context(), "", 1)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(put(t, s, "b", "1")).To(Succeed())
			g.Expect(put(t, s, "c", "1")).To(Succeed())
			got := 0
			for batch := range w.Events() {
				got++
				g.Expect(batch[0].ModRevision).To(Equal(int64(got)))
			}
			g.Expect(got).To(Equal(c.batches))
			g.Expect(w.Err()).To(MatchError(c.want))
			w.Close()

			again, err := s.Watch(t.Context(), "", int64(got)+1)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect((<-again.Events())[0].ModRevision).To(Equal(int64(got+1)), "nothing is lost by it")
		})
	}
}

func TestCutWatchEndsWithTheStore(t *testing.T) {
	g := NewWithT(t)
	s, inner := newStore(t, faulty.Always(faulty.Watch, faulty.Cut(5)))
	unread, err := s.Watch(t.Context(), "", 1)
	g.Expect(err).NotTo(HaveOccurred())
	idle, err := s.Watch(t.Context(), "b", 1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(inner.Close()).To(Succeed())
	g.Expect(<-idle.Events()).To(BeNil())
	g.Expect(idle.Err()).To(MatchError(kvdb.ErrClosed))
	g.Expect(s.Close()).To(Succeed())
	g.Expect(unread.Events()).To(BeClosed())
	g.Expect(unread.Err()).To(MatchError(kvdb.ErrClosed))
}

func TestConcurrentOperationsMeetOneFault(t *testing.T) {
	g := NewWithT(t)
	s, _ := newStore(t, faulty.At(10, faulty.Fail()))
	var callers sync.WaitGroup
	failed := make(chan error, 40)
	for range 4 {
		callers.Go(func() {
			for range 10 {
				if err := put(t, s, "a", "2"); err != nil {
					failed <- err
				}
			}
		})
	}
	callers.Wait()
	g.Expect(failed).To(HaveLen(1))
	g.Expect(s.Count()).To(Equal(40))
}

// A fake of a test's own has a Planner: the n-th call of one kind fails before its
// effect, or after it.
func TestPlannerOfAFake(t *testing.T) {
	g := NewWithT(t)
	var p faulty.Planner
	effects := 0
	patch := func() error {
		return p.Do(t.Context(), "patch", func() error {
			effects++
			return nil
		})
	}
	g.Expect(patch()).To(Succeed(), "the zero Planner plans nothing")
	p.Reset(faulty.On("patch", 2, faulty.Tear()), faulty.On("patch", 3, faulty.Fail()), faulty.Always("get", faulty.Fail()))
	g.Expect(patch()).To(Succeed())
	g.Expect(patch()).To(MatchError(faulty.ErrInjected))
	g.Expect(effects).To(Equal(3), "a torn call has its effect")
	g.Expect(patch()).To(MatchError(faulty.ErrInjected))
	g.Expect(effects).To(Equal(3), "a failed call has none")
	g.Expect(p.Do(t.Context(), "get", patch)).To(MatchError(faulty.ErrInjected))
	g.Expect(p.Count()).To(Equal(4))
}
