// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller_test

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
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cadastre/cadastre/controller"
)

// change is an update event of a producer.
type change struct {
	name     string
	txn      controller.UpdateTransactionType
	method   controller.EventMethodType
	blocking bool
	nameless bool // GetName panics
	done     chan error
}

func newChange(name string) *change {
	return &change{name: name, method: controller.Update, done: make(chan error, 2)}
}

func (e *change) GetName() string {
	if e.nameless {
		panic("no name")
	}
	return e.name
}
func (e *change) String() string                                    { return e.GetName() }
func (e *change) Method() controller.EventMethodType                { return e.method }
func (e *change) TransactionType() controller.UpdateTransactionType { return e.txn }
func (e *change) Direction() controller.UpdateDirectionType         { return controller.Forward }
func (e *change) IsBlocking() bool                                  { return e.blocking }
func (e *change) Done(err error)                                    { e.done <- err }

// recorder is a handler that lists what it is asked, and does as the test says.
type recorder struct {
	name   string
	mu     sync.Mutex
	calls  []string
	update func(ev controller.Event, txn controller.UpdateOperations) error
	revert func() error
}

func (h *recorder) String() string                     { return h.name }
func (h *recorder) HandlesEvent(controller.Event) bool { return true }

func (h *recorder) add(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call)
}

func (h *recorder) list() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

func (h *recorder) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	h.add("resync")
	return nil
}

func (h *recorder) Update(ev controller.Event, txn controller.UpdateOperations) (string, error) {
	h.add(ev.GetName())
	if h.update != nil {
		return "", h.update(ev, txn)
	}
	return "", nil
}

func (h *recorder) Revert(ev controller.Event) error {
	h.add("revert " + ev.GetName())
	if h.revert != nil {
		return h.revert()
	}
	return nil
}

// inLoop runs a loop in simulated time around the test, after its first resync.
func inLoop(t *testing.T, queue int, deps controller.Deps, test func(g Gomega, c *controller.Controller, result <-chan error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cfg := controller.DefaultConfig()
		cfg.QueueSize = queue
		c := controller.New(cfg, deps)
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		var running sync.WaitGroup
		running.Go(func() { result <- c.Run(ctx) })
		defer func() { cancel(); running.Wait() }()
		g.Expect(c.PushEvent(&controller.DBResync{})).To(Succeed())
		synctest.Wait()
		test(g, c, result)
	})
}

// gated is a handler that stops at the event "gate" until it is let go.
func gated(gate *chan struct{}) *recorder {
	h := &recorder{name: "h"}
	h.update = func(ev controller.Event, _ controller.UpdateOperations) error {
		if ev.GetName() == "gate" {
			<-*gate
		}
		return nil
	}
	return h
}

func TestProducersThatWaitAreServedInTheOrderOfTheirArrival(t *testing.T) {
	var gate chan struct{}
	h := gated(&gate)
	inLoop(t, 1, controller.Deps{Handlers: []controller.EventHandler{h}}, func(g Gomega, c *controller.Controller, _ <-chan error) {
		gate = make(chan struct{})
		g.Expect(c.PushEvent(newChange("gate"))).To(Succeed())
		synctest.Wait()
		want := []string{"resync", "gate"}
		var producers sync.WaitGroup
		impatient, leave := context.WithCancel(context.Background())
		defer leave()
		for i := range 20 {
			name, ctx, outcome := fmt.Sprint(i), context.Background(), Succeed()
			if i%7 == 3 {
				ctx, outcome = impatient, MatchError(context.Canceled)
			} else {
				want = append(want, name)
			}
			producers.Go(func() { g.Expect(c.PushEventWait(ctx, newChange(name))).To(outcome) })
			synctest.Wait() // it waits before the next one comes
		}
		leave()
		synctest.Wait()
		g.Expect(c.PushEvent(newChange("hasty"))).To(MatchError(controller.ErrEventQueueFull))
		close(gate)
		producers.Wait()
		synctest.Wait()
		g.Expect(h.list()).To(Equal(want))
	})
}

func TestAProducerThatWaitsWhenTheLoopEndsGetsAnError(t *testing.T) {
	var gate chan struct{}
	h := gated(&gate)
	h.update = func(ev controller.Event, _ controller.UpdateOperations) error {
		<-gate
		return controller.NewFatalError(errors.New("broken"))
	}
	inLoop(t, 1, controller.Deps{Handlers: []controller.EventHandler{h}}, func(g Gomega, c *controller.Controller, result <-chan error) {
		gate = make(chan struct{})
		g.Expect(c.PushEvent(newChange("gate"))).To(Succeed())
		synctest.Wait()
		queued, waits, pushed := newChange("queued"), newChange("waits"), make(chan error, 1)
		g.Expect(c.PushEvent(queued)).To(Succeed())
		go func() { pushed <- c.PushEventWait(context.Background(), waits) }()
		synctest.Wait()
		close(gate)
		g.Expect(<-result).To(MatchError(controller.ErrFatal))
		g.Expect(<-queued.done).To(MatchError(controller.ErrEventLoopIsAborting))
		g.Expect(<-pushed).To(MatchError(controller.ErrClosedController))
		g.Expect(waits.done).NotTo(Receive(), "it was not accepted")
	})
}

func TestAHandlerThatFollowsUpForEverStarvesNoProducer(t *testing.T) {
	h := &recorder{name: "h"}
	h.update = func(ev controller.Event, txn controller.UpdateOperations) error {
		switch ev.GetName() {
		case "endless":
			_ = txn.FollowUp(newChange("endless")) // a handler that does not look at the error
		case "wide":
			for range 100 {
				if err := txn.FollowUp(newChange("narrow")); err != nil {
					return err
				}
			}
		}
		return nil
	}
	deps := controller.Deps{Handlers: []controller.EventHandler{h}}
	inLoop(t, 10, deps, func(g Gomega, c *controller.Controller, _ <-chan error) {
		next := newChange("next")
		g.Expect(c.PushEvent(newChange("endless"))).To(Succeed())
		g.Expect(c.PushEvent(next)).To(Succeed())
		synctest.Wait()
		g.Expect(next.done).To(Receive(BeNil()))
		s := c.Status()
		g.Expect(s.FollowUps).To(BeZero(), "the chain has ended")
		g.Expect(s.Healthy).To(BeFalse())
		g.Expect(s.LastError).To(ContainSubstring(controller.ErrFollowUpDepth.Error()))
		time.Sleep(time.Minute)
		synctest.Wait()
		g.Expect(c.Status().Healthy).To(BeTrue(), "healed")
	})
	h.calls = nil
	inLoop(t, 10, deps, func(g Gomega, c *controller.Controller, _ <-chan error) {
		for _, name := range []string{"wide", "first", "second"} {
			g.Expect(c.PushEvent(newChange(name))).To(Succeed())
		}
		synctest.Wait()
		calls := h.list()
		g.Expect(calls).To(HaveLen(104))
		first, second := slices.Index(calls, "first"), slices.Index(calls, "second")
		g.Expect(first).To(And(BeNumerically(">", 2), BeNumerically("<", 50)), "after some follow-ups, before the others")
		g.Expect(second - first).To(And(BeNumerically(">", 1), BeNumerically("<", 50)))
		g.Expect(c.Status().Healthy).To(BeTrue())
	})
}

// lateness is an event whose deadline cannot be read.
type lateness struct{ *change }

func (lateness) Deadline() time.Time { panic("no deadline") }

func TestAMalformedEventFailsAlone(t *testing.T) {
	value := map[string]proto.Message{"": wrapperspb.Bool(true)}
	with := func(set func(*change)) func(*change) controller.Event {
		return func(x *change) controller.Event { set(x); return x }
	}
	for name, test := range map[string]struct {
		event  func(x *change) controller.Event
		pushed bool // the error comes with Done, otherwise at once
	}{
		"nil":             {func(*change) controller.Event { return nil }, false},
		"nil of a type":   {func(*change) controller.Event { return (*change)(nil) }, false},
		"nil resync":      {func(*change) controller.Event { return (*controller.DBResync)(nil) }, false},
		"GetName panics":  {with(func(x *change) { x.nameless = true }), true},
		"unknown method":  {with(func(x *change) { x.method = 7 }), true},
		"negative method": {with(func(x *change) { x.method = -1 }), true},
		"Deadline panics": {func(x *change) controller.Event { return lateness{x} }, true},
		"no key":          {func(*change) controller.Event { return &controller.KubeStateChange{Resource: "pod", New: value[""]} }, true},
		"no resource":     {func(*change) controller.Event { return &controller.KubeStateChange{Key: "a", New: value[""]} }, true},
		"new is a typed nil": {func(*change) controller.Event {
			return &controller.KubeStateChange{Resource: "pod", Key: "a", New: (*wrapperspb.BoolValue)(nil)}
		}, true},
		"prev is a typed nil": {func(*change) controller.Event {
			return &controller.KubeStateChange{Resource: "pod", Key: "a", Prev: (*wrapperspb.BoolValue)(nil), New: value[""]}
		}, true},
		"external change": {func(x *change) controller.Event {
			return &controller.ExternalConfigChange{Source: "x", Values: value, OnDone: x.Done}
		}, true},
		"external resync": {func(x *change) controller.Event {
			return &controller.ExternalConfigResync{Source: "x", ExternalConfig: value, OnDone: x.Done}
		}, true},
		"no source": {func(x *change) controller.Event { return &controller.ExternalConfigChange{OnDone: x.Done} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &recorder{name: "h"}
			inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{h}}, func(g Gomega, c *controller.Controller, result <-chan error) {
				x := newChange("x")
				err := c.PushEvent(test.event(x))
				synctest.Wait()
				if test.pushed {
					g.Expect(err).NotTo(HaveOccurred())
					rs, _ := c.Events(1)
					g.Expect(rs).To(HaveLen(1))
					g.Expect(rs[0].Error).To(ContainSubstring(controller.ErrMalformedEvent.Error()))
				} else {
					g.Expect(err).To(MatchError(controller.ErrMalformedEvent))
					g.Expect(c.PushEventWait(context.Background(), test.event(x))).To(MatchError(controller.ErrMalformedEvent))
				}
				select {
				case err := <-x.done:
					g.Expect(err).To(MatchError(controller.ErrMalformedEvent))
				default:
				}
				g.Expect(x.done).NotTo(Receive(), "Done is called once")
				next := newChange("next")
				g.Expect(c.PushEvent(next)).To(Succeed())
				synctest.Wait()
				g.Expect(next.done).To(Receive(BeNil()))
				g.Expect(h.list()).To(Equal([]string{"resync", "next"}), "no handler sees it, and nothing needs healing")
				g.Expect(c.Status().Healthy).To(BeTrue())
			})
		})
	}
}

func TestASnapshotLosesOnlyWhatHasNoKey(t *testing.T) {
	seen := controller.KubeStateData{}
	h := &snapshots{seen: seen}
	inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{h}}, func(g Gomega, c *controller.Controller, _ <-chan error) {
		done := make(chan error, 1)
		good := wrapperspb.String("a")
		g.Expect(c.PushEvent(&controller.DBResync{OnDone: func(err error) { done <- err }, KubeState: controller.KubeStateData{
			"pod": {"": good, "a": good, "b": nil, "c": (*wrapperspb.StringValue)(nil)}, "": {"d": good},
		}})).To(Succeed())
		g.Expect(<-done).To(MatchError(controller.ErrMalformedEvent))
		synctest.Wait()
		g.Expect(c.PushEvent(&controller.DBResync{OnDone: func(err error) { done <- err }, KubeState: controller.KubeStateData{"pod": {"a": good}},
			ExternalConfig: map[string]proto.Message{"": good, "route": good}})).To(Succeed())
		g.Expect(<-done).To(And(MatchError(controller.ErrMalformedEvent), MatchError(ContainSubstring("empty key"))))
		synctest.Wait()
		rs, _ := c.Events(2)
		g.Expect(rs).To(HaveExactElements(HaveField("External", HaveExactElements("db: put route"))))
		g.Expect(seen["pod"]).To(And(HaveLen(1), HaveKey("a")))
		g.Expect(c.Status().Healthy).To(BeTrue())
	})
}

// snapshots is a handler that copies the cluster's state.
type snapshots struct {
	recorder
	seen controller.KubeStateData
}

func (h *snapshots) Resync(_ controller.Event, data controller.KubeStateData, _ int, _ controller.ResyncOperations) error {
	for resource, values := range data {
		h.seen[resource] = values
	}
	return nil
}

func TestTheMapsOfAProducerAreLeftAlone(t *testing.T) {
	h := &snapshots{seen: controller.KubeStateData{}}
	inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{h}}, func(g Gomega, c *controller.Controller, _ <-chan error) {
		pods := map[string]proto.Message{"a": wrapperspb.String("a")}
		data := controller.KubeStateData{"pod": pods}
		g.Expect(c.PushEvent(&controller.DBResync{KubeState: data})).To(Succeed())
		for _, ev := range []*controller.KubeStateChange{
			{Resource: "pod", Key: "b", New: wrapperspb.String("b")},
			{Resource: "pod", Key: "a", Prev: pods["a"]},
			{Resource: "node", Key: "n", New: wrapperspb.String("n")},
		} {
			g.Expect(c.PushEvent(ev)).To(Succeed())
		}
		synctest.Wait()
		g.Expect(data).To(And(HaveLen(1), HaveKey("pod")))
		g.Expect(pods).To(And(HaveLen(1), HaveKey("a")), "neither the inner maps")
		delete(pods, "a") // nor does what the producer does later reach the loop
		pods["z"] = wrapperspb.String("z")
		g.Expect(h.seen["pod"]).To(And(HaveLen(1), HaveKey("b")))
	})
}

func TestAHandlerThatWouldWaitForItsOwnLoopGetsAnErrorAtOnce(t *testing.T) {
	var c *controller.Controller
	var outcomes []error
	blocking := newChange("blocking")
	blocking.blocking = true
	push := func() error {
		outcomes = append(outcomes,
			c.PushEventWait(context.Background(), newChange("wait")),
			c.PushEvent(blocking),
			c.PushEvent(newChange("later")))
		return nil
	}
	var deep func(calls int) error
	deep = func(calls int) error { // the push may be far from the handler's method
		if calls > 0 {
			return errors.Join(deep(calls-1), nil)
		}
		return push()
	}
	h := &recorder{name: "h"}
	h.update = func(ev controller.Event, _ controller.UpdateOperations) error {
		if ev.GetName() == "x" {
			return errors.Join(deep(200), errors.New("no"))
		}
		return nil
	}
	first := &recorder{name: "first", revert: push}
	inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{first, h}}, func(g Gomega, loop *controller.Controller, _ <-chan error) {
		c = loop
		ev := newChange("x")
		ev.txn = controller.RevertOnFailure
		g.Expect(c.PushEvent(ev)).To(Succeed())
		synctest.Wait()
		refused := MatchError(controller.ErrWaitInLoop)
		g.Expect(outcomes).To(HaveExactElements(refused, refused, BeNil(), refused, refused, BeNil()))
		g.Expect(h.list()).To(Equal([]string{"resync", "x", "later", "later"}))
		outcomes = nil
		g.Expect(c.PushEvent(&controller.DBResync{OnDone: func(error) { _ = push() }})).To(Succeed())
		synctest.Wait()
		g.Expect(outcomes).To(HaveExactElements(refused, refused, BeNil()), "Done is called from the loop")
		g.Expect(c.PushEventWait(context.Background(), newChange("outside"))).To(Succeed())
	})
}

func TestAHandlerThatPutsAValueWithoutAKeyHasFailed(t *testing.T) {
	first, h := &recorder{name: "first"}, &recorder{name: "h"}
	h.update = func(_ controller.Event, txn controller.UpdateOperations) error {
		txn.Put("", wrapperspb.Bool(true))
		return nil
	}
	inLoop(t, 10, controller.Deps{Handlers: []controller.EventHandler{first, h}}, func(g Gomega, c *controller.Controller, _ <-chan error) {
		ev := newChange("x")
		ev.txn = controller.RevertOnFailure
		g.Expect(c.PushEvent(ev)).To(Succeed())
		synctest.Wait()
		g.Expect(ev.done).To(Receive(MatchError(ContainSubstring("empty key"))))
		g.Expect(h.list()).To(Equal([]string{"resync", "x", "revert x"}), "it has finished, and is reverted")
		g.Expect(first.list()).To(Equal([]string{"resync", "x", "revert x"}))
	})
}
