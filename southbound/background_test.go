// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
)

// attic is a part whose Delete leaves objects for Sweep.
type attic struct {
	part
	began time.Time

	mu     sync.Mutex
	left   int // detached objects
	errs   []error
	sweeps []string
}

func (a *attic) Sweep(context.Context) (more bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sweeps = append(a.sweeps, fmt.Sprint(time.Since(a.began), " of ", a.left))
	if len(a.errs) > 0 {
		err, a.errs = a.errs[0], a.errs[1:]
		return true, err
	}
	a.left = max(a.left-2, 0)
	return a.left > 0, nil
}

func (a *attic) leave(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left += n
}

func (a *attic) swept() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.sweeps
	a.sweeps = nil
	return all
}

// running calls f while Run runs, in simulated time.
func running(t *testing.T, s func() *Scheduler, f func(g Gomega, s *Scheduler)) {
	synctest.Test(t, func(t *testing.T) {
		s := s()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		f(NewWithT(t), s)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestSweeps(t *testing.T) {
	var a *attic
	scheduler := func() *Scheduler {
		a = &attic{part: part{newWorld(), "a/"}, began: time.Now()}
		return New(Options{}, kind(a))
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		ctx := t.Context()
		g.Expect(s.Commit(ctx, update(is("a/1", "x"), is("a/2", "x")))).To(Succeed())
		g.Expect(s.Commit(ctx, reverting(is("a/3", "x")))).To(Succeed())
		wait(time.Hour)
		g.Expect(a.swept()).To(BeEmpty(), "nothing was deleted")

		a.began = time.Now()
		a.leave(5)
		g.Expect(s.Commit(ctx, update(is("a/1", "")))).To(Succeed())
		g.Expect(s.Commit(ctx, update(is("a/2", "")))).To(Succeed())
		wait(time.Hour)
		g.Expect(a.swept()).To(Equal([]string{"50ms of 5", "50ms of 3", "50ms of 1"}), "once for the burst, batch by batch")

		a.began = time.Now()
		a.errs = []error{errors.New("busy"), errors.New("busy")}
		g.Expect(s.Commit(ctx, resync(is("a/3", "x")))).To(Succeed())
		wait(time.Hour)
		g.Expect(a.swept()).To(Equal([]string{"50ms of 0", "1.05s of 0", "3.05s of 0"}), "a resync finds what a crash has left")

		a.began = time.Now()
		a.fault = func(op, key string) error {
			if key == "a/5" {
				return errInjected
			}
			return nil
		}
		g.Expect(s.Commit(ctx, reverting(is("a/4", "x"), is("a/5", "x")))).To(MatchError(errInjected))
		wait(time.Hour)
		g.Expect(a.swept()).To(Equal([]string{"50ms of 0"}), "what is undone is swept too")
	})
}

// watched is a part whose changes by other programs a test announces.
type watched struct {
	part
	changes chan string
	fails   chan error
}

func (w watched) Watch(ctx context.Context, changed func(string)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.fails:
			return err
		case key := <-w.changes:
			changed(key)
		}
	}
}

func TestChangesByOtherProgramsAreRepaired(t *testing.T) {
	var w *world
	var a watched
	scheduler := func() *Scheduler {
		w = newWorld()
		a = watched{part{w, "a/"}, make(chan string), make(chan error)}
		return New(Options{}, kinds(a, part{w, "b/"}, part{w, "c/"})...)
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		values := []controller.Value{is("a/1", "x"), is("a/2", "x"), is("b/1", "y needs a/1"), is("b/2", "y needs a/2"), is("c/1", "z needs b/1")}
		g.Expect(s.Commit(t.Context(), resync(values...))).To(Succeed())
		want := w.clone()
		_ = w.lines()

		w.lose("a/1")
		a.changes <- "a/1"
		a.changes <- "a/1"
		wait(time.Hour)
		g.Expect(w.clone()).To(Equal(want))
		g.Expect(w.lines()).To(Equal([]string{"retrieve a/", "retrieve b/", "retrieve c/", "create a/1", "create b/1", "create c/1"}),
			"with what the kernel has removed together with it, and nothing else")

		a.changes <- "a/2"
		a.changes <- "a/9"
		wait(time.Hour)
		g.Expect(w.lines()).To(Equal([]string{"retrieve a/"}), "nothing differs")

		w.values["a/7"] = "stray"
		w.values["a/2"] = "other"
		a.changes <- ""
		wait(time.Hour)
		g.Expect(w.clone()).To(Equal(want))
		lines := w.lines()
		g.Expect(lines).To(ContainElements("delete a/7", "update a/2"))
		g.Expect(slices.Contains(lines, "create b/2")).To(BeFalse())

		w.lose("a/2")
		a.fails <- errors.New("too many messages")
		wait(time.Minute)
		g.Expect(w.clone()).To(Equal(want), "what changed while there was no watch")

		w.failing, w.calls = 1, 0 // the list fails
		w.lose("a/2")
		a.changes <- "a/2"
		wait(200 * time.Millisecond)
		g.Expect(w.clone()).NotTo(Equal(want))
		wait(time.Minute)
		g.Expect(w.clone()).To(Equal(want))
		g.Expect(w.wrong).To(BeEmpty())
	})
}

// A data plane announces changes before the agent knows what it wants: what an earlier agent
// has made stays until the first resync.
func TestNothingIsRepairedBeforeTheFirstResync(t *testing.T) {
	var w *world
	var a watched
	scheduler := func() *Scheduler {
		w = newWorld()
		a = watched{part{w, "a/"}, make(chan string), make(chan error)}
		return New(Options{}, kind(a))
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		w.values["a/1"], w.values["a/2"] = "x", "x" // of an earlier agent
		a.changes <- ""
		wait(time.Hour)
		g.Expect(w.lines()).To(BeEmpty())
		g.Expect(s.Commit(t.Context(), resync(is("a/1", "x")))).To(Succeed())
		g.Expect(w.lines()).To(Equal([]string{"retrieve a/", "delete a/2"}))
		w.lose("a/1")
		a.changes <- ""
		wait(time.Hour)
		g.Expect(w.clone()).To(HaveKey("a/1"))
	})
}

// TestARepairThatFailsIsRepeated as the last transaction says.
func TestARepairThatFailsIsRepeated(t *testing.T) {
	var w *world
	var a watched
	scheduler := func() *Scheduler {
		w = newWorld()
		a = watched{part{w, "a/"}, make(chan string), make(chan error)}
		return New(Options{}, kind(a))
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		txn := resync(is("a/1", "x"))
		txn.Retry = controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 5}
		g.Expect(s.Commit(t.Context(), txn)).To(Succeed())
		w.lose("a/1")
		w.calls, w.failing = 0, 2
		a.changes <- "a/1"
		wait(500 * time.Millisecond)
		g.Expect(s.Status().Failed).To(HaveLen(1))
		g.Expect(s.Status().Failed[0].Retry).To(Equal(time.Now().Add(600 * time.Millisecond)))
		wait(time.Second)
		g.Expect(s.Status()).To(Equal(Status{Made: 1}))
	})
}

// TestRunEndsWithTheScheduler closes it while values are to be repeated.
func TestRunEndsWithTheScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w := NewWithT(t), newWorld()
		s := New(Options{}, kind(watched{part{w, "a/"}, make(chan string), make(chan error)}))
		w.fault = func(string, string) error { return errInjected }
		txn := update(is("a/1", "x"))
		txn.Retry = controller.Retry{Enabled: true, Delay: time.Second, MaxAttempts: 5}
		g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errInjected))
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context()) }()
		synctest.Wait()
		g.Expect(s.Close()).To(Succeed())
		g.Expect(<-ended).To(Succeed())
		g.Expect(w.log).To(Equal([]string{"create a/1", "delete a/1"}))
		g.Expect(s.Commit(t.Context(), txn)).To(MatchError(errClosed))
	})
}

// inspected is a watched part whose values can be inspected one by one.
type inspected struct{ watched }

func (i inspected) Inspect(ctx context.Context, key string, m proto.Message) error {
	if err := i.call(ctx, "inspect", key); err != nil {
		return err
	}
	if i.values[key] != text(m) {
		return fmt.Errorf("it is %q", i.values[key])
	}
	return nil
}

// TestARepairOfAFewValuesDoesNotReadAll expects that a change of some values reads these
// alone, and that of many reads all of them once.
func TestARepairOfAFewValuesDoesNotReadAll(t *testing.T) {
	var w *world
	var a inspected
	scheduler := func() *Scheduler {
		w = newWorld()
		a = inspected{watched{part{w, "a/"}, make(chan string), make(chan error)}}
		return New(Options{}, kind(a))
	}
	running(t, scheduler, func(g Gomega, s *Scheduler) {
		var all []controller.Value
		for i := range 2 * inspections {
			all = append(all, is(fmt.Sprintf("a/%02d", i), "x"))
		}
		g.Expect(s.Commit(t.Context(), update(all...))).To(Succeed())
		want := w.clone()
		announce := func(values []controller.Value) {
			w.log = nil
			for _, v := range values {
				a.changes <- v.Key
			}
			wait(time.Second)
		}
		announce(all[:1])
		g.Expect(w.log).To(Equal([]string{"inspect a/00"}), "nothing differs")

		w.lose("a/01")
		w.values["a/02"] = "changed"
		announce(all[:3])
		g.Expect(w.log).To(ConsistOf("inspect a/00", "inspect a/01", "inspect a/02", "create a/01", "create a/02"))
		g.Expect(w.values).To(Equal(want))

		w.lose("a/03")
		announce(all)
		g.Expect(w.log).To(Equal([]string{"retrieve a/", "create a/03"}), "these are too many")
		g.Expect(w.values).To(Equal(want))
	})
}
