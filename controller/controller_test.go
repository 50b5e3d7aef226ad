// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// event is a scripted update event.
type event struct {
	name     string
	txn      UpdateTransactionType
	dir      UpdateDirectionType
	blocking bool
	deadline time.Time
	then     chan error
	outcomes lines[error]
}

// lines is a list that the loop writes and the test reads.
type lines[T any] struct {
	mu  sync.Mutex
	all []T
}

func (l *lines[T]) add(x T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, x)
}

func (l *lines[T]) get() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]T{}, l.all...)
}

func (l *lines[T]) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

func (e *event) done() []error { return e.outcomes.get() }

func (e *event) GetName() string                        { return e.name }
func (e *event) String() string                         { return e.name }
func (e *event) Method() EventMethodType                { return Update }
func (e *event) TransactionType() UpdateTransactionType { return e.txn }
func (e *event) Direction() UpdateDirectionType         { return e.dir }
func (e *event) IsBlocking() bool                       { return e.blocking }
func (e *event) Done(err error) {
	e.outcomes.add(err)
	if e.then != nil {
		e.then <- err
	}
}

type expiring struct{ *event }

func (e expiring) Deadline() time.Time { return e.deadline }

// handler writes down what it is asked and does as scripted, by event name.
type handler struct {
	name   string
	log    *lines[string]
	update map[string]func(UpdateOperations) error
	resync func(ResyncOperations) error
	revert func() error
}

func (h *handler) String() string          { return h.name }
func (h *handler) HandlesEvent(Event) bool { return true }

func (h *handler) Resync(ev Event, _ KubeStateData, n int, txn ResyncOperations) error {
	h.log.add(fmt.Sprintf("%s resync %d", h.name, n))
	if h.resync != nil {
		return h.resync(txn)
	}
	return nil
}

func (h *handler) Update(ev Event, txn UpdateOperations) (string, error) {
	h.log.add(h.name + " " + ev.GetName())
	if f := h.update[ev.GetName()]; f != nil {
		return "tried", f(txn)
	}
	return "", nil
}

func (h *handler) Revert(ev Event) error {
	h.log.add(h.name + " revert " + ev.GetName())
	if h.revert != nil {
		return h.revert()
	}
	return nil
}

// staged is a Committer that counts.
type staged struct {
	commits, undos int
	fail           error
	ctxErrs        []error
	panics         bool
	calls          func() // by Commit, if set
}

func (s *staged) Commit(ctx context.Context) error {
	if s.panics {
		panic("committer")
	}
	if s.calls != nil {
		s.calls()
	}
	s.commits++
	s.ctxErrs = append(s.ctxErrs, ctx.Err())
	return s.fail
}

func (s *staged) Undo() { s.undos++ }

// rig is a running loop of three handlers in simulated time.
type rig struct {
	*Controller
	g       Gomega
	a, b, c *handler
	log     lines[string]
	sink    *MemorySink
	staged  *staged
	cancel  context.CancelFunc
	result  chan error
}

func start(g Gomega, change func(*Config)) *rig { return startWith(g, change, nil) }

func startWith(g Gomega, change func(*Config), more func(*Deps)) *rig {
	r := &rig{g: g, sink: &MemorySink{}, staged: &staged{}, result: make(chan error, 1)}
	mk := func(name string) *handler {
		return &handler{name: name, log: &r.log, update: map[string]func(UpdateOperations) error{}}
	}
	r.a, r.b, r.c = mk("a"), mk("b"), mk("c")
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	deps := Deps{Handlers: []EventHandler{r.a, r.b, r.c}, Sink: r.sink, Committers: []Committer{r.staged}}
	if more != nil {
		more(&deps)
	}
	r.Controller = New(cfg, deps)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.result <- r.Run(ctx) }()
	return r
}

func (r *rig) sync() {
	r.g.Expect(r.PushEvent(&DBResync{})).To(Succeed())
	synctest.Wait()
	r.log.clear()
}

func (r *rig) push(ev Event) {
	r.g.Expect(r.PushEvent(ev)).To(Succeed())
	synctest.Wait()
}

// wait lets simulated time pass.
func (r *rig) wait(d time.Duration) {
	r.Status() // its lock is what orders, for the race detector, what the test has written before what a timer starts
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) last() string { all := r.log.get(); return all[len(all)-1] }

func (r *rig) stop() error {
	r.cancel()
	return <-r.result
}

func loop(t *testing.T, change func(*Config), f func(g Gomega, r *rig)) {
	t.Helper()
	loopWith(t, change, nil, f)
}

func loopWith(t *testing.T, change func(*Config), more func(*Deps), f func(g Gomega, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := startWith(g, change, more)
		defer r.stop()
		f(g, r)
	})
}

func failing(err error) func(UpdateOperations) error {
	return func(UpdateOperations) error { return err }
}

func put(key string) func(UpdateOperations) error {
	return func(txn UpdateOperations) error { txn.Put(key, wrapperspb.String(key)); return nil }
}

func TestOrderAndDirection(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.push(&event{name: "x"})
		g.Expect(r.log.get()).To(Equal([]string{"a x", "b x", "c x"}))
		r.log.clear()
		r.push(&event{name: "y", dir: Reverse})
		g.Expect(r.log.get()).To(Equal([]string{"c y", "b y", "a y"}))
	})
}

func TestEventsBeforeTheFirstResyncWait(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		x, y := &event{name: "x"}, &event{name: "y"}
		r.push(x)
		r.push(y)
		g.Expect(r.log.get()).To(BeEmpty())
		r.push(&DBResync{})
		g.Expect(r.log.get()).To(Equal([]string{"a resync 1", "b resync 1", "c resync 1", "a x", "b x", "c x", "a y", "b y", "c y"}))
		g.Expect(x.done()).To(Equal([]error{nil}))
	})
}

func TestWhatWaitsForTheFirstResyncKeepsItsPlaceInABoundedQueue(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 3 }, func(g Gomega, r *rig) {
		for _, name := range []string{"1", "2", "3"} {
			r.push(&event{name: name})
		}
		g.Expect(r.PushEvent(&event{name: "4"})).To(MatchError(ErrEventQueueFull))
		g.Expect(r.Status().Queued).To(Equal(3))
		r.push(&DBResync{})
		g.Expect(r.log.get()[3:]).To(Equal([]string{"a 1", "b 1", "c 1", "a 2", "b 2", "c 2", "a 3", "b 3", "c 3"}))
	})
}

func TestARevertHasADeadlineOfItsOwn(t *testing.T) {
	loop(t, func(c *Config) { c.EventTimeout = time.Minute }, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = put("k")
		slow := true
		r.sink.Fault = func(Transaction) error {
			if slow {
				slow = false
				time.Sleep(2 * time.Minute)
				return errors.New("too late")
			}
			return nil
		}
		r.push(&event{name: "x", txn: RevertOnFailure})
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		g.Expect(r.staged.ctxErrs).To(Equal([]error{nil, nil, nil}), "resync, event, revert")
	})
}

func TestPanicsAnywhereAreErrors(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.staged.panics = true
		x := &event{name: "x", txn: RevertOnFailure}
		r.push(x)
		g.Expect(x.done()).To(HaveLen(1))
		g.Expect(x.done()[0]).To(MatchError(ContainSubstring("panic: committer")))
		r.staged.panics = false
		y := &event{name: "y"}
		r.push(y)
		g.Expect(y.done()).To(Equal([]error{nil}))
	})
}

func TestBestEffortGoesOnAndHeals(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = put("k")
		r.b.update["x"] = failing(errors.New("no"))
		x := &event{name: "x", txn: BestEffort}
		r.push(x)
		g.Expect(r.log.get()).To(Equal([]string{"a x", "b x", "c x"}))
		g.Expect(x.done()).To(HaveLen(1))
		g.Expect(x.done()[0]).To(MatchError("b: x: no"))
		g.Expect(r.sink.Dump(context.Background())).To(HaveKey("k"))
		g.Expect(r.staged.commits).To(Equal(2))
		g.Expect(r.Status().Healthy).To(BeFalse())
		r.log.clear()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		g.Expect(r.log.get()).To(Equal([]string{"a resync 2", "b resync 2", "c resync 2"}))
		g.Expect(r.Status().Healthy).To(BeTrue())
	})
}

func TestBestEffortIgnoreErrorsDoesNotHeal(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.b.update["x"] = failing(errors.New("no"))
		r.push(&event{name: "x", txn: BestEffortIgnoreErrors})
		r.log.clear()
		time.Sleep(time.Hour)
		g.Expect(r.log.get()).To(BeEmpty())
	})
}

func TestRevertOnFailure(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(txn UpdateOperations) error {
			g.Expect(txn.FollowUp(&event{name: "follow"})).To(Succeed())
			return put("k")(txn)
		}
		r.c.update["x"] = failing(errors.New("no"))
		before := r.staged.commits
		r.push(&event{name: "x", txn: RevertOnFailure})
		g.Expect(r.log.get()).To(Equal([]string{"a x", "b x", "c x", "b revert x", "a revert x"}), "not the one that failed, and nothing follows")
		g.Expect(r.sink.Dump(context.Background())).To(BeEmpty())
		g.Expect(r.staged.commits).To(Equal(before))
		g.Expect(r.staged.undos).To(Equal(1))
		r.log.clear()
		time.Sleep(time.Hour)
		g.Expect(r.log.get()).To(BeEmpty(), "what was reverted needs no healing")

		r.a.revert = func() error { return errors.New("cannot") }
		r.push(&event{name: "x", txn: RevertOnFailure})
		r.log.clear()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		g.Expect(r.log.get()).To(HaveLen(3), "what could not be reverted does")
	})
}

// remaining is an event that is told if something remains of it.
type remaining struct {
	event
	told func(error)
}

func (e *remaining) Remains(err error) { e.told(err) }

// What the southbound cannot undo may still use what the handlers have given: the event is told
// before they revert, and a resync restores it.
func TestWhatTheSinkCannotUndo(t *testing.T) {
	for where, fault := range map[string]func() error{
		"it says so": func() error {
			return errors.Join(errors.New("disk full"), &RemainError{"k", errors.New("disk still full")})
		},
		"it panics": func() error { panic("disk full") },
		"it can":    func() error { return errors.New("disk full") },
	} {
		t.Run(where, func(t *testing.T) {
			loop(t, nil, func(g Gomega, r *rig) {
				r.sync()
				r.a.update["x"] = put("k")
				r.sink.Fault = func(txn Transaction) error {
					if txn.RevertOnFailure {
						return fault()
					}
					return nil
				}
				r.log.clear()
				x := &remaining{event{name: "x", txn: RevertOnFailure}, func(error) { r.log.add("told") }}
				g.Expect(r.PushEvent(x)).To(Succeed())
				synctest.Wait()
				update, revert := []string{"a x", "b x", "c x"}, []string{"c revert x", "b revert x", "a revert x"}
				if where == "it can" {
					g.Expect(r.log.get()).To(Equal(slices.Concat(update, revert)))
				} else {
					g.Expect(r.log.get()).To(Equal(slices.Concat(update, []string{"told"}, revert)))
				}
				r.log.clear()
				time.Sleep(time.Minute)
				synctest.Wait()
				healed := 0
				if where != "it can" {
					healed = 3
				}
				g.Expect(r.log.get()).To(HaveLen(healed), "a resync of each handler")
			})
		})
	}
}

func TestAFailedCommitReverts(t *testing.T) {
	for _, where := range []string{"staged", "sink", "sink panic"} {
		t.Run(where, func(t *testing.T) {
			loop(t, nil, func(g Gomega, r *rig) {
				r.sync()
				r.a.update["x"] = put("k")
				switch where {
				case "staged":
					r.staged.fail = errors.New("disk full")
				case "sink":
					r.sink.Fault = func(Transaction) error { return errors.New("disk full") }
				case "sink panic":
					r.sink.Fault = func(Transaction) error { panic("disk full") }
				}
				x := &event{name: "x", txn: RevertOnFailure, dir: Reverse}
				r.push(x)
				g.Expect(r.log.get()).To(Equal([]string{"c x", "b x", "a x", "a revert x", "b revert x", "c revert x"}))
				g.Expect(x.done()).To(HaveLen(1))
				g.Expect(x.done()[0]).To(MatchError(ContainSubstring("disk full")))
				g.Expect(r.sink.Dump(context.Background())).To(BeEmpty())
				if where != "staged" {
					g.Expect(r.staged.commits).To(Equal(3), "what Revert has staged is committed")
				}
				rs, _ := r.Events(1)
				g.Expect(rs[0].Handlers).To(HaveLen(6))
			})
		})
	}
}

func TestAPanicIsAnErrorWithItsStack(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.b.update["x"] = func(UpdateOperations) error { panic("oh") }
		x := &event{name: "x", txn: RevertOnFailure}
		r.push(x)
		var p *panicError
		g.Expect(errors.As(x.done()[0], &p)).To(BeTrue())
		g.Expect(p.value).To(Equal("oh"))
		g.Expect(string(p.stack)).To(ContainSubstring("controller_test.go"))
		r.push(&event{name: "y"})
		g.Expect(r.log.get()).To(ContainElement("c y"), "the loop goes on")
	})
}

func TestAbortStopsTheEventAndResyncs(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.b.update["x"] = failing(fmt.Errorf("wrapped: %w", NewAbortEventError(errors.New("stop"))))
		x := &event{name: "x", txn: BestEffort}
		r.push(x)
		g.Expect(r.log.get()).To(Equal([]string{"a x", "b x", "a resync 2", "b resync 2", "c resync 2"}), "a best-effort event is not reverted")
		var abort *AbortEventError
		g.Expect(errors.As(x.done()[0], &abort)).To(BeTrue())
		g.Expect(r.staged.undos).To(Equal(1))
	})
}

func TestAFatalErrorEndsTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, nil)
		r.sync()
		gate := make(chan struct{})
		r.a.update["x"] = func(UpdateOperations) error { <-gate; return NewFatalError(errors.New("broken")) }
		x, y := &event{name: "x", txn: RevertOnFailure}, &event{name: "y"}
		r.push(x)
		r.push(y)
		close(gate)
		g.Expect(<-r.result).To(MatchError(ErrFatal))
		g.Expect(r.log.get()).To(Equal([]string{"a x"}), "no revert, no shutdown")
		g.Expect(x.done()[0]).To(MatchError(ContainSubstring("broken")))
		g.Expect(y.done()).To(Equal([]error{ErrEventLoopIsAborting}))
		g.Expect(r.PushEvent(&event{name: "z"})).To(MatchError(ErrClosedController))
		g.Expect(r.Status().Fatal).To(ContainSubstring("broken"))
	})
}

func TestFollowUpsOvertakeTheQueue(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		gate := make(chan struct{})
		r.a.update["x"] = func(txn UpdateOperations) error {
			<-gate
			g.Expect(txn.FollowUp(&event{name: "f1"})).To(Succeed())
			g.Expect(txn.FollowUp(&event{name: "f2"})).To(Succeed())
			g.Expect(txn.FollowUp(&event{name: "f3", blocking: true})).To(MatchError(errBlockingFollowUp))
			return nil
		}
		r.push(&event{name: "x"})
		r.push(&event{name: "y"})
		close(gate)
		synctest.Wait()
		g.Expect(strings.Join(r.log.get(), ",")).To(Equal("a x,b x,c x,a f1,b f1,c f1,a f2,b f2,c f2,a y,b y,c y"))
		rs, _ := r.Events(2)
		g.Expect(rs[0].IsFollowUp).To(BeTrue())
		g.Expect(rs[0].FollowUpTo).To(BeNumerically("==", 1))
		g.Expect(rs[2].IsFollowUp).To(BeFalse())
	})
}

func TestAFailedResyncHealsWithBackoffAndThenIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, func(c *Config) { c.MaxHealingAttempts, c.HealingBackoffLimit = 4, 15*time.Second })
		r.b.resync = func(txn ResyncOperations) error { return errors.New("no") }
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", wrapperspb.Bool(true)); return nil }
		began := time.Now()
		waiting := &event{name: "x"}
		r.push(waiting)
		r.push(&DBResync{})
		g.Expect(r.sink.Commits()).To(BeZero(), "nothing goes south of a resync that failed")
		g.Expect(<-r.result).To(MatchError(ContainSubstring("4 healing resyncs in a row have failed")))
		g.Expect(r.staged.commits).To(BeZero(), "nor is what they staged committed")
		g.Expect(r.staged.undos).To(Equal(5))
		g.Expect(time.Since(began)).To(Equal((5 + 10 + 15 + 15) * time.Second))
		g.Expect(waiting.done()).To(Equal([]error{ErrEventLoopIsAborting}))
	})
}

func TestAFailedFirstResyncThatHealsReplaysWhatWaited(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		n := 0
		r.b.resync = func(ResyncOperations) error {
			if n++; n < 3 {
				return errors.New("not yet")
			}
			return nil
		}
		x := &event{name: "x"}
		r.push(x)
		r.push(&DBResync{})
		g.Expect(x.done()).To(BeEmpty())
		time.Sleep(time.Minute)
		synctest.Wait()
		g.Expect(n).To(Equal(3))
		g.Expect(x.done()).To(Equal([]error{nil}))
	})
}

func TestNoResyncBeforeTheDeadlineIsFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, nil)
		x := &event{name: "x"}
		r.push(x)
		g.Expect(<-r.result).To(MatchError(errNoResync))
		g.Expect(x.done()).To(Equal([]error{ErrEventLoopIsAborting}))
	})
}
