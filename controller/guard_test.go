// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// breaking is an event that calls fail in the method that is named.
type breaking struct {
	*event
	method string
	fail   func()
}

func (e breaking) in(method string) {
	if e.method == method {
		e.fail()
	}
}

func (e breaking) String() string                 { e.in("String"); return e.event.String() }
func (e breaking) Direction() UpdateDirectionType { e.in("Direction"); return e.event.Direction() }
func (e breaking) Deadline() time.Time            { e.in("Deadline"); return time.Now().Add(time.Hour) }
func (e breaking) Subject() Subject               { e.in("Subject"); return Subject{} }
func (e breaking) GroupKey() string               { e.in("GroupKey"); return e.name }
func (e breaking) Done(err error)                 { e.event.Done(err); e.in("Done") }

// TestACallThatEndsItsGoroutineIsAPanicOfItsEvent: whatever the loop calls may call
// runtime.Goexit, as t.FailNow does. The event, the events beside it and the loop end as
// they do after a panic in the same place.
func TestACallThatEndsItsGoroutineIsAPanicOfItsEvent(t *testing.T) {
	once := func(fail func()) func() {
		failed := false
		return func() {
			if !failed {
				failed = true
				fail()
			}
		}
	}
	places := map[string]func(c *crowd, x *breaking){
		"Update":    func(c *crowd, x *breaking) { c.b.update["x"] = func(UpdateOperations) error { x.fail(); return nil } },
		"Resync":    func(c *crowd, x *breaking) { c.b.resync = func(ResyncOperations) error { x.fail(); return nil } },
		"Revert":    func(c *crowd, x *breaking) { c.b.revert = func() error { x.fail(); return nil } },
		"Commit":    func(c *crowd, x *breaking) { c.saving.calls = x.fail },
		"sink":      func(c *crowd, x *breaking) { c.sink.Fault = func(Transaction) error { x.fail(); return nil } },
		"Observe":   func(c *crowd, x *breaking) { c.deps.Observe = func(*Record) { x.fail() } },
		"Done":      func(_ *crowd, x *breaking) { x.method = "Done" },
		"String":    func(_ *crowd, x *breaking) { x.method = "String" },
		"Subject":   func(_ *crowd, x *breaking) { x.method = "Subject" },
		"Deadline":  func(_ *crowd, x *breaking) { x.method = "Deadline" },
		"Direction": func(_ *crowd, x *breaking) { x.method = "Direction" },
		"GroupKey":  func(_ *crowd, x *breaking) { x.method = "GroupKey" },
	}
	type outcome struct {
		log     []string
		failed  bool // x
		y, z    []error
		healthy bool
		groups  []int
	}
	run := func(t *testing.T, place func(*crowd, *breaking), fail func()) (o outcome) {
		crowded(t, nil, func(g Gomega, c *crowd) {
			x := &breaking{event: &event{name: "x", txn: RevertOnFailure}, fail: once(fail)}
			y := &event{name: "y", txn: RevertOnFailure}
			z := &event{name: "z"}
			c.a.update["x"] = func(txn UpdateOperations) error { txn.Put("x", wrapperspb.Bool(true)); return nil }
			place(c, x)
			if c.b.revert != nil {
				c.c.update["x"] = failing(errors.New("revert it"))
			}
			c.log.clear()
			c.together(shared{y, &c.answers}, x)
			if c.b.resync != nil {
				c.push(&DBResync{})
			}
			c.wait(time.Minute)
			c.push(z)
			g.Expect(x.done()).To(HaveLen(1), "the producer is answered exactly once")
			o = outcome{c.log.get(), x.done()[0] != nil, y.done(), z.done(), c.Status().Healthy, c.groups()}
		})
		return o
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			panicked := run(t, place, func() { panic("oh") })
			g.Expect(panicked.z).To(Equal([]error{nil}), "the loop goes on")
			g.Expect(run(t, place, runtime.Goexit)).To(Equal(panicked))
		})
	}
}

// undoing is a committer whose Undo fails.
type undoing struct {
	staged
	fail func()
}

func (u *undoing) Undo() { u.fail() }

// TestACommitterThatCannotUndoEndsTheLoop: what it has staged is not known, so nothing is
// committed any more. All producers are answered.
func TestACommitterThatCannotUndoEndsTheLoop(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("oh") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, u := NewWithT(t), &undoing{fail: fail}
				r := startWith(g, nil, func(d *Deps) { d.Committers = []Committer{u} })
				r.sync()
				gate := make(chan struct{})
				r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
				r.b.update["x"] = failing(NewAbortEventError(errors.New("stop")))
				r.push(&event{name: "gate"})
				x, y := &event{name: "x", txn: RevertOnFailure}, &event{name: "y"}
				r.push(x)
				r.push(y)
				commits := u.commits
				close(gate)
				g.Expect(<-r.result).To(MatchError(ErrFatal))
				g.Expect(x.done()).To(HaveLen(1))
				g.Expect(x.done()[0]).To(HaveOccurred())
				g.Expect(y.done()).To(Equal([]error{ErrEventLoopIsAborting}))
				g.Expect(u.commits).To(Equal(commits+1), "that of the gate only")
				g.Expect(r.Close()).To(MatchError(ErrFatal))
			})
		})
	}
}

// TestTheLoopEndsWithItsGoroutine: the clock ends the goroutine of the loop itself.
func TestTheLoopEndsWithItsGoroutine(t *testing.T) {
	g := NewWithT(t)
	ends := false
	c := New(DefaultConfig(), Deps{Now: func() time.Time {
		if ends && !OnLoop() {
			runtime.Goexit()
		}
		return time.Now()
	}})
	g.Expect(c.Init()).To(Succeed())
	g.Expect(c.PushEvent(&DBResync{})).To(Succeed())
	ends = true
	g.Expect(c.AfterInit()).To(Succeed())
	<-c.Ended()
	g.Expect(c.Close()).To(MatchError(ErrFatal))
}

// TestOnLoop: a handler knows that the loop calls it, also after a call that has ended its
// goroutine.
func TestOnLoop(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		g.Expect(OnLoop()).To(BeFalse())
		on := false
		r.a.update["x"] = func(UpdateOperations) error { on = OnLoop(); runtime.Goexit(); return nil }
		for range 2 {
			on = false
			r.push(&event{name: "x"})
			g.Expect(on).To(BeTrue())
		}
		var err error
		r.a.update["y"] = func(UpdateOperations) error {
			err = r.PushEventWait(context.Background(), &event{name: "z"})
			return nil
		}
		r.push(&event{name: "y"})
		g.Expect(err).To(MatchError(ErrWaitInLoop))
	})
}
