// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
)

// plugin is a loop of one handler that is not started.
func plugin() (*Controller, *handler) {
	h := &handler{name: "a", log: &lines[string]{}, update: map[string]func(UpdateOperations) error{}}
	return New(DefaultConfig(), Deps{Handlers: []EventHandler{h}}), h
}

func TestInitRefusesWhatTheLoopCannotUse(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*Config, *Deps)
		want   string
	}{
		"queue size":    {func(c *Config, _ *Deps) { c.QueueSize = 0 }, "init controller: QueueSize 0: want a number above 0"},
		"nil handler":   {func(_ *Config, d *Deps) { d.Handlers = []EventHandler{nil} }, "init controller: handler 0 is nil: want an EventHandler"},
		"typed nil":     {func(_ *Config, d *Deps) { d.Handlers = []EventHandler{(*handler)(nil)} }, "init controller: handler 0 is nil: want an EventHandler"},
		"nil committer": {func(_ *Config, d *Deps) { d.Committers = []Committer{nil} }, "init controller: committer 0 is nil: want a Committer"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cfg, deps := DefaultConfig(), Deps{}
			x.change(&cfg, &deps)
			c := New(cfg, deps)
			g.Expect(c.Init()).To(MatchError(x.want))
			g.Expect(c.Run(t.Context())).To(MatchError(x.want))
			g.Expect(c.AfterInit()).To(MatchError("start controller: call Init before"))
			g.Expect(c.Close()).To(Succeed())
		})
	}
}

func TestAPluginAgentStartsAndClosesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c, h := plugin()
		later := &handler{name: "b", log: h.log, update: h.update}
		c.AddHandlers(later)
		durable := &staged{}
		c.AddCommitters(durable)
		g.Expect(c.String()).To(Equal("controller"))
		g.Expect(c.Init()).To(Succeed())
		g.Expect(c.Init()).To(Succeed(), "a further call does nothing")
		g.Expect(c.AfterInit()).To(Succeed())
		g.Expect(c.AfterInit()).To(MatchError(errStarted))
		g.Expect(c.Run(t.Context())).To(MatchError(errStarted))
		g.Expect(c.PushEvent(&DBResync{})).To(Succeed())
		x := &event{name: "x"}
		g.Expect(c.PushEvent(x)).To(Succeed())
		synctest.Wait()
		g.Expect(x.done()).To(Equal([]error{nil}))
		g.Expect(h.log.get()).To(ContainElements("a x", "b x"))
		g.Expect(durable.commits).NotTo(BeZero())

		gate := make(chan struct{})
		h.update["slow"] = func(UpdateOperations) error { <-gate; return nil }
		slow, queued := &event{name: "slow"}, &event{name: "y"}
		g.Expect(c.PushEvent(slow)).To(Succeed())
		g.Expect(c.PushEvent(queued)).To(Succeed())
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		g.Expect(closed).NotTo(Receive(), "Close waits for the event under way")
		close(gate)
		g.Expect(<-closed).To(Succeed())
		g.Expect(slow.done()).To(Equal([]error{nil}))
		g.Expect(queued.done()).To(Equal([]error{ErrClosedController}))
		g.Expect(c.Status().Running).To(BeFalse())
		g.Expect(c.PushEvent(&event{name: "z"})).To(MatchError(ErrClosedController))
		g.Expect(c.Close()).To(Succeed(), "a further call does nothing")
	})
}

func TestCloseReturnsTheFatalErrorOfTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c, h := plugin()
		h.update["x"] = func(UpdateOperations) error { return NewFatalError(errors.New("broken")) }
		g.Expect(c.Init()).To(Succeed())
		g.Expect(c.AfterInit()).To(Succeed())
		g.Expect(c.PushEvent(&DBResync{})).To(Succeed())
		g.Expect(c.PushEvent(&event{name: "x"})).To(Succeed())
		synctest.Wait()
		g.Expect(c.Status().Fatal).To(ContainSubstring("broken"))
		for range 2 {
			g.Expect(c.Close()).To(MatchError(ErrFatal))
		}
	})
}

func TestCloseAnswersTheEventsOfALoopThatNeverRan(t *testing.T) {
	g := NewWithT(t)
	c, _ := plugin()
	x := &event{name: "x"}
	g.Expect(c.PushEvent(x)).To(Succeed())
	g.Expect(c.Close()).To(Succeed())
	g.Expect(x.done()).To(Equal([]error{ErrClosedController}))
	g.Expect(c.Init()).To(Succeed())
	g.Expect(c.AfterInit()).To(MatchError(errStarted))
}

// closingEvent closes the loop in Done.
type closingEvent struct {
	event
	close func() error
	got   error
}

func (e *closingEvent) Done(error) { e.got = e.close() }

func TestCloseInDoneOfALoopThatNeverRan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := New(DefaultConfig(), Deps{})
		e := &closingEvent{event: event{name: "x"}, close: c.Close}
		g.Expect(c.PushEvent(e)).To(Succeed())
		g.Expect(c.Close()).To(Succeed())
		g.Expect(e.got).To(MatchError(ErrWaitInLoop))
		g.Expect(c.Status().Running).To(BeFalse())
	})
}

func TestCloseEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c, h := plugin()
		var inLoop error
		h.update["x"] = func(UpdateOperations) error { inLoop = c.Close(); return nil }
		ended := make(chan error, 1)
		go func() { ended <- c.Run(context.Background()) }()
		g.Expect(c.PushEvent(&DBResync{})).To(Succeed())
		g.Expect(c.PushEvent(&event{name: "x"})).To(Succeed())
		time.Sleep(time.Second)
		synctest.Wait()
		g.Expect(inLoop).To(MatchError(ErrWaitInLoop))
		g.Expect(ended).NotTo(Receive())
		g.Expect(c.Close()).To(Succeed())
		g.Expect(<-ended).To(Succeed())
	})
}

// dumped returns the values of the sink.
func (s *MemorySink) dumped() map[string]proto.Message {
	values, _ := s.Dump(context.Background())
	return values
}

func TestAHostLearnsThatTheLoopHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		closed, _ := plugin()
		g.Expect(closed.Init()).To(Succeed())
		g.Expect(closed.AfterInit()).To(Succeed())
		synctest.Wait()
		g.Expect(closed.Ended()).NotTo(BeClosed(), "it waits for its first resync")
		g.Expect(closed.Close()).To(Succeed())
		g.Expect(closed.Ended()).To(BeClosed())
		g.Expect(closed.Status().Fatal).To(BeEmpty())

		failed, _ := plugin()
		g.Expect(failed.Init()).To(Succeed())
		g.Expect(failed.AfterInit()).To(Succeed())
		<-failed.Ended() // no resync comes before the deadline
		g.Expect(failed.Status().Fatal).To(ContainSubstring("no resync"))
		g.Expect(failed.Close()).To(MatchError(errNoResync))
	})
}
