// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
)

// closing counts the calls of Close.
type closing struct {
	part
	closed *int
}

func (c closing) Close() error {
	*c.closed++
	return nil
}

// lateLab runs a Late in simulated time. Its Open fails with problem, if that is set.
type lateLab struct {
	*Late
	*world
	mu      sync.Mutex // Open learns of what a test has set
	problem error
	tries   int
	closed  int
	opened  []controller.ValueErrors
}

func (l *lateLab) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func withLate(t *testing.T, before map[string]string, f func(g Gomega, l *lateLab)) {
	synctest.Test(t, func(t *testing.T) {
		l := &lateLab{world: newWorld(), problem: errors.New("no such socket")}
		for k, v := range before {
			l.values[k] = v
		}
		l.Late = NewLate(Options{}, Opener{
			Name: "vpp",
			Open: func(context.Context) ([]Descriptor, error) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.tries++
				if l.problem != nil {
					return nil, l.problem
				}
				return append(l.parts(), closing{part{l.world, "d/"}, &l.closed}), nil
			},
			Opened: func(values controller.ValueErrors) { l.opened = append(l.opened, values) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		f(NewWithT(t), l)
		cancel()
		if err := errors.Join(<-ended, l.Close()); err != nil {
			t.Error(err)
		}
		if len(l.wrong) > 0 {
			t.Error(l.wrong)
		}
	})
}

// While the descriptors cannot be opened, values are pending, and a transaction that reverts
// fails: its caller takes success as the sign that the value is made.
func TestValuesWaitForTheirDescriptors(t *testing.T) {
	withLate(t, map[string]string{"a/1": "x", "a/old": "x"}, func(g Gomega, l *lateLab) {
		ctx := context.Background()
		g.Expect(l.Commit(ctx, resync(is("a/1", "x"), is("b/1", "y"), is("c/1", "z needs b/1")))).To(Succeed())
		err := l.Commit(ctx, reverting(is("a/2", "x")))
		g.Expect(err).To(MatchError(And(ContainSubstring("a/2"), ContainSubstring("open vpp: no such socket"))))
		_, values := errors.AsType[controller.ValueErrors](err)
		g.Expect(values).To(BeTrue())
		g.Expect(errors.Is(err, ErrNotOpen)).To(BeTrue())
		g.Expect(l.Commit(ctx, update(is("a/3", "x"), is("b/1", "y2")))).To(Succeed())
		g.Expect(l.Commit(ctx, reverting(is("a/1", "")))).To(Succeed(), "a DEL works")

		g.Expect(l.NotOpen()).To(MatchError(ErrNotOpen))
		g.Expect(l.Problem("node")).To(MatchError(ErrNotOpen))
		g.Expect(l.Inspect(ctx, "b/1")).To(MatchError(ErrNotOpen))
		_, err = l.Dump(ctx)
		g.Expect(err).To(MatchError(ErrNotOpen))
		st := l.Status()
		g.Expect(st.Made).To(BeZero())
		g.Expect(st.Notes).To(ConsistOf(ContainSubstring("no such socket")))
		g.Expect(st.Pending).To(Equal([]Pending{
			{"a/3", []string{"data plane vpp"}}, {"b/1", []string{"data plane vpp"}}, {"c/1", []string{"data plane vpp"}},
		}))
		g.Expect(l.world.values).To(HaveLen(2), "nothing was touched")

		l.set(func() { l.problem = nil })
		wait(time.Minute)
		g.Expect(l.tries).To(BeNumerically(">", 1))
		g.Expect(l.world.values).To(Equal(map[string]string{"a/3": "x", "b/1": "y2", "c/1": "z needs b/1"}))
		g.Expect(l.opened).To(HaveLen(1))
		g.Expect(l.opened[0]).To(BeEmpty())
		g.Expect(l.Commit(ctx, reverting(is("a/2", "x")))).To(Succeed())
		g.Expect(l.NotOpen()).To(Succeed())
		g.Expect(l.Problem("a/2")).To(Succeed())
		g.Expect(l.Inspect(ctx, "a/2")).To(Succeed())
		g.Expect(l.Dump(ctx)).To(HaveLen(4))
		g.Expect(l.Status().Made).To(Equal(4))
		tries := l.tries
		wait(time.Hour)
		g.Expect(l.tries).To(Equal(tries), "it is open")
	})
}

// Descriptors that open before the first resync remove nothing: what is wanted is not known.
func TestOpeningBeforeTheFirstResyncRemovesNothing(t *testing.T) {
	withLate(t, map[string]string{"a/1": "x", "a/old": "x"}, func(g Gomega, l *lateLab) {
		g.Expect(l.Commit(context.Background(), update(is("a/9", "x")))).To(Succeed())
		l.set(func() { l.problem = nil })
		wait(time.Minute)
		g.Expect(l.opened).To(HaveLen(1))
		g.Expect(l.world.values).To(HaveLen(2))
		g.Expect(l.Commit(context.Background(), resync(is("a/1", "x")))).To(Succeed())
		g.Expect(l.world.values).To(Equal(map[string]string{"a/1": "x"}))
	})
}

// Without the actual state nothing would be removed that is not wanted: the descriptors are
// closed and opened again. A value that fails does not close them.
func TestDescriptorsOpenWithTheActualState(t *testing.T) {
	withLate(t, map[string]string{"a/old": "x"}, func(g Gomega, l *lateLab) {
		g.Expect(l.Commit(context.Background(), resync(is("a/1", "x"), is("b/1", "y")))).To(Succeed())
		l.set(func() {
			l.fault = func(op, _ string) error {
				if op == "retrieve" {
					return errInjected
				}
				return nil
			}
		})
		l.set(func() { l.problem = nil })
		wait(time.Minute)
		g.Expect(l.opened).To(BeEmpty())
		g.Expect(l.closed).To(Equal(l.tries - 1))
		g.Expect(l.Problem("a/1")).To(MatchError(errInjected))
		g.Expect(l.world.values).To(HaveKey("a/old"))

		closed := l.closed
		l.set(func() {
			l.fault = func(_, key string) error {
				if key == "b/1" {
					return errInjected
				}
				return nil
			}
		})
		wait(time.Minute)
		g.Expect(l.closed).To(Equal(closed))
		g.Expect(l.opened).To(HaveLen(1))
		g.Expect(l.opened[0]).To(HaveKey("b/1"))
		g.Expect(l.world.values).To(Equal(map[string]string{"a/1": "x"}))
	})
}

// The first resync comes to descriptors that can read: if it failed, all events would wait.
func TestDescriptorsThatCannotReadAreNotOpen(t *testing.T) {
	withLate(t, map[string]string{"a/old": "x"}, func(g Gomega, l *lateLab) {
		l.set(func() { l.fault = func(string, string) error { return errInjected } })
		l.set(func() { l.problem = nil })
		wait(time.Minute)
		g.Expect(l.opened).To(BeEmpty())
		g.Expect(l.closed).To(Equal(l.tries - 1))
		g.Expect(l.Commit(context.Background(), resync(is("a/1", "x")))).To(Succeed())
		l.set(func() { l.fault = nil })
		wait(time.Minute)
		g.Expect(l.opened).To(HaveLen(1))
		g.Expect(l.world.values).To(Equal(map[string]string{"a/1": "x"}))
	})
}

func TestALateSchedulerThatIsClosedMakesNothing(t *testing.T) {
	withLate(t, nil, func(g Gomega, l *lateLab) {
		g.Expect(l.Close()).To(Succeed())
		g.Expect(l.Commit(context.Background(), resync())).To(MatchError(errClosed))
		l.set(func() { l.problem = nil })
		wait(time.Minute)
		g.Expect(l.closed).To(Equal(1), "what was opened too late is closed")
		g.Expect(l.opened).To(BeEmpty())
		tries := l.tries
		wait(time.Hour)
		g.Expect(l.tries).To(Equal(tries))
	})
}

func TestAPanicOfOpenIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		l := NewLate(Options{}, Opener{Name: "vpp", Open: func(context.Context) ([]Descriptor, error) { panic("oops") }})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Run(ctx) }()
		synctest.Wait()
		g.Expect(l.Problem("node")).To(MatchError(ContainSubstring("oops")))
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}
