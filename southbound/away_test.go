// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
)

// errNoSocket is the error of each call while the data plane is away.
var errNoSocket = fmt.Errorf("%w: no such socket", ErrAway)

// awayLab is a scheduler in simulated time, over a world that comes and goes.
type awayLab struct {
	*Scheduler
	*world
}

// set changes the world while Run runs.
func (l *awayLab) set(f func()) {
	l.Scheduler.mu.Lock()
	defer l.Scheduler.mu.Unlock()
	f()
}

// leave lets the data plane go, and come back with come.
func (l *awayLab) leave() {
	l.failing(func(string, string) error { return errNoSocket })
}
func (l *awayLab) come() { l.failing(nil) }

func (l *awayLab) failing(fault func(op, key string) error) { l.set(func() { l.fault = fault }) }

// called returns the number of calls since the last time.
func (l *awayLab) called() (calls int) {
	l.set(func() { calls, l.calls, l.log = l.calls, 0, nil })
	return calls
}

func withAway(t *testing.T, before map[string]string, f func(g Gomega, l *awayLab)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for k, v := range before {
			w.values[k] = v
		}
		l := &awayLab{New(Options{}, w.parts()...), w}
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

// While the data plane is away from the start, values are pending, and a transaction that
// reverts fails: its caller takes success as the sign that the value is made.
func TestValuesWaitForTheDataPlane(t *testing.T) {
	withAway(t, map[string]string{"a/1": "x", "a/old": "x"}, func(g Gomega, l *awayLab) {
		ctx := context.Background()
		l.leave()
		g.Expect(l.Commit(ctx, resync(is("a/1", "x"), is("b/1", "y"), is("c/1", "z needs b/1")))).To(Succeed())
		err := l.Commit(ctx, reverting(is("a/2", "x")))
		g.Expect(err).To(MatchError(And(ContainSubstring("a/2"), ContainSubstring("no such socket"))))
		_, values := errors.AsType[controller.ValueErrors](err)
		g.Expect(values).To(BeTrue())
		g.Expect(err).To(MatchError(ErrPending))
		g.Expect(l.Commit(ctx, update(is("a/3", "x"), is("b/1", "y2")))).To(Succeed())
		g.Expect(l.Commit(ctx, reverting(is("a/1", "")))).To(Succeed(), "a DEL works")

		g.Expect(l.Away()).To(MatchError(errNoSocket))
		g.Expect(l.Problem("b/1")).To(MatchError(ErrAway))
		g.Expect(l.Inspect(ctx, "b/1")).To(MatchError(ErrAway))
		_, err = l.Dump(ctx)
		g.Expect(err).To(MatchError(ErrAway))
		st := l.Status()
		g.Expect(st.Made).To(BeZero())
		g.Expect(st.Failed).To(BeEmpty())
		g.Expect(st.Notes).To(ConsistOf(ContainSubstring("no such socket")))
		why := []string{"retrieve the values of a/: the data plane is away: no such socket"}
		g.Expect(st.Pending).To(Equal([]Pending{{"a/3", why}, {"b/1", why}, {"c/1", why}}))
		g.Expect(l.clone()).To(HaveLen(2), "nothing was touched")
		l.called()
		wait(time.Hour)
		g.Expect(l.called()).To(BeNumerically("~", 65, 10), "it is asked each minute, by the reading of one kind")

		l.come()
		wait(longestPause)
		g.Expect(l.clone()).To(Equal(map[string]string{"a/3": "x", "b/1": "y2", "c/1": "z needs b/1"}))
		g.Expect(l.Commit(ctx, reverting(is("a/2", "x")))).To(Succeed())
		g.Expect(l.Away()).To(Succeed())
		g.Expect(l.Problem("a/2")).To(Succeed())
		g.Expect(l.Inspect(ctx, "a/2")).To(Succeed())
		g.Expect(l.Dump(ctx)).To(HaveLen(4))
		g.Expect(l.Status()).To(Equal(Status{Made: 4}))
		l.called()
		wait(time.Hour)
		g.Expect(l.called()).To(BeZero(), "it is there")
	})
}

// If the data plane goes while a pod is connected, a failed ADD may leave something. It is
// removed before the next one.
func TestADataPlaneThatGoesDuringAChange(t *testing.T) {
	for _, torn := range []bool{false, true} {
		withAway(t, nil, func(g Gomega, l *awayLab) {
			ctx := context.Background()
			l.set(func() { l.halfway = true })
			g.Expect(l.Commit(ctx, resync(is("a/1", "x"), is("b/1", "y needs a/1")))).To(Succeed())
			l.failing(func(op, key string) error {
				if key == "c/1" || op != "create" {
					return errNoSocket
				}
				return nil
			})
			l.set(func() { l.tearAway = torn })
			err := l.Commit(ctx, reverting(is("c/0", "z"), is("c/1", "z needs b/1")))
			g.Expect(err).To(MatchError(errNoSocket))
			_, remains := errors.AsType[*controller.RemainError](err)
			g.Expect(remains).To(BeFalse(), "nothing is made before it is read")
			l.leave()
			g.Expect(l.Commit(ctx, update(is("a/1", ""), is("b/1", "")))).To(Succeed())
			g.Expect(l.Commit(ctx, reverting(is("c/2", "z")))).To(MatchError(ErrPending))
			g.Expect(l.Status().Pending).To(BeEmpty(), "nothing is wanted")
			l.come()
			wait(longestPause)
			g.Expect(l.clone()).To(BeEmpty())
			g.Expect(l.Commit(ctx, reverting(is("c/2", "z")))).To(Succeed())
		})
	}
}

// A data plane that comes back before the first resync loses nothing: what is wanted is not known.
func TestComingBackBeforeTheFirstResyncRemovesNothing(t *testing.T) {
	withAway(t, map[string]string{"a/1": "x", "a/old": "x"}, func(g Gomega, l *awayLab) {
		l.leave()
		l.changed(l.kinds[0], "")
		wait(time.Minute)
		l.come()
		wait(time.Hour)
		g.Expect(l.clone()).To(HaveLen(2))
		g.Expect(l.Commit(context.Background(), resync(is("a/1", "x")))).To(Succeed())
		g.Expect(l.clone()).To(Equal(map[string]string{"a/1": "x"}))
	})
}

// What the data plane has lost meanwhile is made again, and what fails then is repeated.
func TestADataPlaneThatComesBackEmpty(t *testing.T) {
	withAway(t, nil, func(g Gomega, l *awayLab) {
		ctx := context.Background()
		txn := resync(is("a/1", "x"), is("b/1", "y needs a/1"), is("c/1", "z"))
		txn.Retry = controller.Retry{Enabled: true, Delay: time.Minute, MaxAttempts: 3}
		g.Expect(l.Commit(ctx, txn)).To(Succeed())
		l.leave()
		l.changed(l.kinds[1], "b/1")
		wait(time.Minute)
		g.Expect(l.Away()).To(MatchError(errNoSocket))
		g.Expect(l.Status().Pending).To(HaveLen(3))
		for _, key := range []string{"a/1", "c/1"} {
			l.lose(key)
		}
		l.failing(func(op, key string) error {
			if op == "create" && key == "a/1" {
				return errInjected
			}
			return nil
		})
		l.changed(l.kinds[1], "") // its Watch says that it is back
		wait(2 * repairDelay)
		g.Expect(l.clone()).To(Equal(map[string]string{"c/1": "z"}))
		g.Expect(l.Status().Failed).To(HaveLen(1))
		l.come()
		wait(time.Hour)
		g.Expect(l.clone()).To(HaveLen(3))
	})
}
