// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

func TestARingIsASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		var r ring
		var naive []string
		for n := range rapid.IntRange(0, 200).Draw(t, "steps") {
			if len(naive) == 0 || rapid.IntRange(0, 2).Draw(t, "push") > 0 {
				name := fmt.Sprint(n)
				r.push(queued{Event: &event{name: name}})
				naive = append(naive, name)
				continue
			}
			i := rapid.IntRange(0, len(naive)-1).Draw(t, "take")
			x := r.take(i)
			g.Expect(x.GetName()).To(Equal(naive[i]))
			naive = slices.Delete(naive, i, i+1)
			g.Expect(r.n).To(Equal(len(naive)))
		}
		for i, name := range naive {
			g.Expect(r.at(i).GetName()).To(Equal(name))
		}
		kept := 0
		for _, x := range r.slots {
			if x.Event != nil {
				kept++
			}
		}
		g.Expect(kept).To(Equal(len(naive)), "nothing is held that has gone")
	})
}

func TestEverybodyWhoWaitsForRoomGetsIt(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 2 }, func(g Gomega, r *rig) {
		r.sync()
		gate := make(chan struct{})
		r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "gate"})
		var pushed atomic.Int32
		var wg sync.WaitGroup
		gone, leave := context.WithCancel(context.Background())
		for i := range 50 {
			ctx := context.Background()
			if i%5 == 0 {
				ctx = gone
			}
			wg.Go(func() {
				if r.PushEventWait(ctx, &event{name: fmt.Sprint(i)}) == nil {
					pushed.Add(1)
				}
			})
		}
		synctest.Wait()
		g.Expect(pushed.Load()).To(BeNumerically("==", 2))
		leave()
		synctest.Wait()
		close(gate)
		wg.Wait()
		synctest.Wait()
		g.Expect(pushed.Load()).To(BeNumerically(">=", 40))
		g.Expect(r.Status().Processed).To(BeNumerically("==", 2+pushed.Load()))
	})
}

func TestRoomIsGivenAsSoonAsThereIsAny(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 2 }, func(g Gomega, r *rig) {
		r.sync()
		gates := map[string]chan struct{}{"1": make(chan struct{}), "2": make(chan struct{})}
		for name, gate := range gates {
			r.a.update[name] = func(UpdateOperations) error { <-gate; return nil }
		}
		r.push(&event{name: "1"})
		r.push(&event{name: "2"})
		r.push(&event{name: "3"})
		pushed := make(chan error, 2)
		go func() { pushed <- r.PushEventWait(context.Background(), &event{name: "4"}) }()
		synctest.Wait()
		g.Expect(r.PushEventWait(context.Background(), &DBResync{})).To(Succeed(), "which needs no room")
		g.Expect(pushed).NotTo(Receive())
		close(gates["1"])
		synctest.Wait()
		g.Expect(pushed).NotTo(Receive(), "the resync is one too many")
		close(gates["2"])
		synctest.Wait()
		g.Expect(pushed).To(Receive(BeNil()))
		g.Expect(r.log.get()).To(ContainElement("c 4"))
	})
	loop(t, func(c *Config) { c.QueueSize = 2 }, func(g Gomega, r *rig) {
		r.sync()
		gates := map[string]chan struct{}{"1": make(chan struct{}), "2": make(chan struct{})}
		for name, gate := range gates {
			r.a.update[name] = func(UpdateOperations) error { <-gate; return nil }
		}
		r.push(&event{name: "1"})
		r.push(&event{name: "2"})
		r.push(&event{name: "3"})
		pushed := make(chan error, 2)
		go func() { pushed <- r.PushEventWait(context.Background(), &event{name: "4"}) }()
		synctest.Wait()
		close(gates["1"])
		synctest.Wait()
		g.Expect(pushed).To(Receive(BeNil()), "though the loop is busy with the next")
		close(gates["2"])
	})
}

func TestAWatchdogThatBarksLateIsNotHeard(t *testing.T) {
	loop(t, func(c *Config) { c.EventTimeout = time.Minute }, func(g Gomega, r *rig) {
		c := New(r.cfg, Deps{})
		c.watch(&Record{Name: "a"})
		w := c.watchdog
		r.wait(2 * time.Minute)
		g.Expect(c.Status().Stuck).To(BeTrue())
		c.unwatch()
		c.setStatus(func(s *Status) { s.Stuck = false })
		c.bark(w)
		g.Expect(c.Status().Stuck).To(BeFalse(), "nothing is processed")
		c.watch(&Record{Name: "b"})
		c.bark(w)
		g.Expect(c.Status().Stuck).To(BeFalse(), "it is not about this one")
		c.unwatch()
	})
}

func TestTheWatchdogServesManyEvents(t *testing.T) {
	var text bytes.Buffer
	log := func(d *Deps) { d.Log = slog.New(slog.NewTextHandler(&text, nil)) }
	loopWith(t, func(c *Config) { c.EventTimeout = time.Minute }, log, func(g Gomega, r *rig) {
		r.sync()
		takes := func(d time.Duration) func(UpdateOperations) error {
			return func(UpdateOperations) error { time.Sleep(d); return nil }
		}
		r.a.update["short"], r.a.update["long"] = takes(40*time.Second), takes(90*time.Second)
		for round := range 3 {
			text.Reset()
			r.push(&event{name: "short"})
			r.push(&event{name: "short"})
			r.wait(79 * time.Second)
			g.Expect(r.Status().Current).To(Equal("short"))
			g.Expect(r.Status().Stuck).To(BeFalse(), "each has a minute of its own")
			r.wait(time.Hour)
			g.Expect(text.String()).To(BeEmpty(), "nor does it bark while nothing is processed")
			r.push(&event{name: "long"})
			r.wait(59 * time.Second)
			g.Expect(r.Status().Stuck).To(BeFalse())
			r.wait(2 * time.Second)
			g.Expect(r.Status().Stuck).To(BeTrue(), "also in round %d", round)
			g.Expect(text.String()).To(And(ContainSubstring("event takes longer than its deadline"), ContainSubstring(fmt.Sprint("event=long seq=", 3*round+3, " "))))
			r.wait(time.Minute)
			g.Expect(r.Status().Stuck).To(BeFalse())
		}
	})
}

// lastContext is a committer that remembers what it was given.
type lastContext struct{ ctx context.Context }

func (l *lastContext) Commit(ctx context.Context) error { l.ctx = ctx; return nil }
func (l *lastContext) Undo()                            {}

func TestEachEventHasAContextOfItsOwn(t *testing.T) {
	l := &lastContext{}
	loopWith(t, func(c *Config) { c.EventTimeout = time.Minute }, func(d *Deps) { d.Committers = []Committer{l} }, func(g Gomega, r *rig) {
		r.sync()
		g.Expect(l.ctx.Err()).To(MatchError(context.Canceled), "it ends with the event")
		r.wait(time.Hour)
		began := time.Now()
		r.a.update["x"] = func(UpdateOperations) error { time.Sleep(10 * time.Second); return nil }
		x := l.ctx
		r.push(&event{name: "x"})
		r.wait(time.Minute)
		g.Expect(l.ctx).NotTo(BeIdenticalTo(x))
		at, ok := l.ctx.Deadline()
		g.Expect(ok).To(BeTrue())
		g.Expect(at).To(Equal(began.Add(time.Minute)), "counted from the beginning of the event")
	})
}

func TestAFullQueueDoesNotKeepTheLoopFromItsTimers(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 1000 }, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["fails"] = failing(fmt.Errorf("stop: %w", ErrAbort))
		slow := 0
		r.a.update["slow"] = func(UpdateOperations) error { slow++; time.Sleep(time.Second); return nil }
		healedAfter := -1
		r.b.resync = func(ResyncOperations) error { healedAfter = slow; return nil }
		gate := make(chan struct{})
		r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "gate"})
		r.push(&event{name: "fails"})
		for range 500 {
			r.push(&event{name: "slow"})
		}
		close(gate)
		r.wait(10 * time.Minute)
		g.Expect(healedAfter).To(BeZero(), "the healing at once comes before all that is queued")
		g.Expect(slow).To(Equal(500))
	})
}

func TestALoopThatIsStoppedLeavesTheQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, nil)
		r.sync()
		n := 0
		r.a.update["x"] = func(txn UpdateOperations) error {
			if n++; n == 3 {
				r.cancel()
				txn.Put("k", wrapperspb.Bool(true))
			}
			return nil
		}
		gate := make(chan struct{})
		r.a.update["gate"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "gate"})
		for range 100 {
			r.push(&event{name: "x"})
		}
		close(gate)
		g.Expect(<-r.result).To(Succeed())
		g.Expect(n).To(Equal(3))
		g.Expect(r.sink.dumped()).To(HaveKey("k"), "what has begun is finished")
		g.Expect(r.staged.ctxErrs).To(HaveEach(BeNil()), "the shutdown, too")
	})
}
