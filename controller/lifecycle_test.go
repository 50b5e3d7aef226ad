// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, nil)
		x := &event{name: "x"}
		r.push(x)
		g.Expect(r.stop()).To(Succeed(), "before the first resync")
		g.Expect(x.done()).To(Equal([]error{ErrClosedController}))
		g.Expect(r.log.get()).To(BeEmpty())

		r = start(g, nil)
		r.sync()
		gate := make(chan struct{})
		r.a.update["x"] = func(txn UpdateOperations) error { <-gate; return txn.FollowUp(&event{name: "f"}) }
		x, y := &event{name: "x"}, &event{name: "y"}
		r.push(x)
		r.push(y)
		r.cancel()
		close(gate)
		g.Expect(<-r.result).To(Succeed())
		g.Expect(x.done()).To(Equal([]error{nil}), "what has begun is finished")
		g.Expect(y.done()).To(Equal([]error{ErrClosedController}))
		g.Expect(r.last()).To(Equal("c Shutdown"))
	})
}

func TestDoneIsCalledExactlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		r := start(g, func(c *Config) { c.QueueSize = 8 })
		r.sync()
		var mu sync.Mutex
		var all []*event
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		for i := range 32 {
			wg.Go(func() {
				for n := 0; ; n++ {
					e := &event{name: fmt.Sprint(i, "/", n), blocking: true, then: make(chan error, 2)}
					if err := r.PushEventWait(ctx, e); err != nil {
						g.Expect(err).To(MatchError(ErrClosedController))
						g.Expect(e.done()).To(BeEmpty())
						return
					}
					<-e.then
					mu.Lock()
					all = append(all, e)
					if len(all) == 2000 {
						r.cancel()
					}
					mu.Unlock()
				}
			})
		}
		g.Expect(<-r.result).To(Succeed())
		wg.Wait()
		cancel()
		for _, e := range all {
			g.Expect(e.done()).To(HaveLen(1))
		}
	})
}

func TestBackpressure(t *testing.T) {
	loop(t, func(c *Config) { c.QueueSize = 2 }, func(g Gomega, r *rig) {
		r.sync()
		gate := make(chan struct{})
		r.a.update["x"] = func(UpdateOperations) error { <-gate; return nil }
		r.push(&event{name: "x"})
		r.push(&event{name: "1"})
		r.push(&event{name: "2"})
		g.Expect(r.PushEvent(&event{name: "3"})).To(MatchError(ErrEventQueueFull))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		g.Expect(r.PushEventWait(ctx, &event{name: "3"})).To(MatchError(context.DeadlineExceeded))
		pushed := make(chan error, 1)
		go func() { pushed <- r.PushEventWait(context.Background(), &event{name: "4"}) }()
		synctest.Wait()
		g.Expect(pushed).NotTo(Receive())
		close(gate)
		g.Expect(<-pushed).To(Succeed())
		synctest.Wait()
		g.Expect(r.log.get()).To(ContainElement("c 4"))
		g.Expect(r.log.get()).NotTo(ContainElement("a 3"))
	})
}

func TestDeadlineAndWatchdog(t *testing.T) {
	loop(t, func(c *Config) { c.EventTimeout = time.Minute }, func(g Gomega, r *rig) {
		r.sync()
		r.a.update["x"] = func(UpdateOperations) error { time.Sleep(2 * time.Minute); return nil }
		late := &event{name: "late", deadline: time.Now().Add(time.Second)}
		r.push(&event{name: "x"})
		r.push(expiring{late})
		g.Expect(r.Status().Current).To(Equal("x"))
		time.Sleep(61 * time.Second)
		synctest.Wait()
		g.Expect(r.Status().Stuck).To(BeTrue())
		time.Sleep(time.Minute)
		synctest.Wait()
		g.Expect(r.Status().Stuck).To(BeFalse())
		g.Expect(late.done()).To(HaveLen(1))
		g.Expect(late.done()[0]).To(MatchError(ErrExpired))
		rs, _ := r.Events(2)
		g.Expect(rs[0].Error).To(ContainSubstring("not processed before its deadline"))
		g.Expect(r.log.get()).NotTo(ContainElement("a late"))
	})
}

func TestWantedStateAndDownstreamResync(t *testing.T) {
	loop(t, func(c *Config) { c.EnablePeriodicHealing = true }, func(g Gomega, r *rig) {
		r.a.resync = func(txn ResyncOperations) error { txn.Put("k", wrapperspb.String("1")); return nil }
		r.sync()
		r.b.update["x"] = func(txn UpdateOperations) error {
			g.Expect(proto.Equal(txn.Get("k"), wrapperspb.String("1"))).To(BeTrue())
			txn.Delete("k")
			g.Expect(txn.Get("k")).To(BeNil())
			txn.Put("l", wrapperspb.String("2"))
			return nil
		}
		r.push(&event{name: "x"})
		r.sink.Commit(context.Background(), Transaction{Method: FullResync}) // it is wiped
		r.log.clear()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		g.Expect(r.log.get()).To(BeEmpty(), "no handler is called")
		dump, _ := r.sink.Dump(context.Background())
		g.Expect(dump).To(HaveLen(1))
		g.Expect(dump).To(HaveKey("l"))
	})
}

func TestKubeStateIsPatchedBeforeHandlersSeeIt(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.push(&DBResync{KubeState: KubeStateData{"pod": {"a": wrapperspb.String("1")}}})
		r.push(&KubeStateChange{Resource: "node", Key: "n", New: wrapperspb.String("2")})
		r.push(&KubeStateChange{Resource: "pod", Key: "a", Prev: wrapperspb.String("1")})
		g.Expect(r.kubeState["pod"]).To(BeEmpty())
		g.Expect(r.kubeState["node"]).To(HaveKey("n"))
		g.Expect(r.last()).To(Equal("a Kubernetes State Change"), "reverse, since it is removed")
	})
}

func TestHistoryIsBounded(t *testing.T) {
	loop(t, func(c *Config) {
		c.historySize, c.PermanentlyRecordedInitPeriod, c.EventHistoryAgeLimit = 10, time.Second, time.Minute
	}, func(g Gomega, r *rig) {
		r.sync()
		_, more := r.Events(0)
		time.Sleep(2 * time.Second)
		for i := range 30 {
			r.push(&event{name: fmt.Sprint(i)})
		}
		g.Expect(more).To(BeClosed())
		rs, _ := r.Events(0)
		g.Expect(rs).To(HaveLen(11))
		g.Expect(rs[0].Name).To(Equal("Database Resync"), "the first ones are kept")
		g.Expect(rs[10].SeqNum).To(BeNumerically("==", 30))
		time.Sleep(2 * time.Minute)
		r.push(&event{name: "later"})
		rs, _ = r.Events(0)
		g.Expect(rs).To(HaveLen(2))
	})
}

func TestAnUpdateWithoutTheMethodsIsAnError(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		e := &event{name: "x"}
		r.push(struct{ Event }{e})
		g.Expect(e.done()).To(HaveLen(1))
		g.Expect(e.done()[0]).To(MatchError(errNotUpdateEvent))
	})
}

func TestAPanickingDoneHarmsNobody(t *testing.T) {
	loop(t, nil, func(g Gomega, r *rig) {
		r.sync()
		r.push(&DBResync{OnDone: func(error) { panic("oh") }})
		x := &event{name: "x"}
		r.push(x)
		g.Expect(x.done()).To(Equal([]error{nil}))
	})
}
