// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// An ADD that wanted the address of an abandoned one, and then fails, leaves
// it to no caller: Serve ignores the result of addDone.
func TestAnAbandonedAddAndAFailedRepetition(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(g Gomega, a *agent, abandoned *call)
	}{
		{"because it wants another address", func(g Gomega, a *agent, abandoned *call) {
			r := request("ADD", "c1")
			r.Wanted = []string{"10.1.5.77"}
			again := a.begin(r)
			a.leaveInLoop(abandoned)
			a.drain()
			g.Expect(again.err).To(HaveOccurred())
		}},
		{"because the queue has no room", func(g Gomega, a *agent, abandoned *call) {
			a.loop.full = true
			again := a.begin(request("ADD", "c1"))
			a.leaveInLoop(abandoned) // while the other still waits for room
			a.loop.full = false      // for all but the one that waits already
			again.leave()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			slowly(t, func(g Gomega, a *agent) {
				c.do(g, a, a.begin(request("ADD", "c1")))
				a.drain()
				g.Expect(a.held()).To(BeEmpty())
			})
		})
	}
}

// A DEL that was accepted before an ADD, and reaches the loop after it, must
// not free the lease that the ADD's caller received. A later ADD is a new attachment.
func TestADelThatAnAddOvertakes(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		del := a.begin(request("DEL", "c1"))
		add := a.begin(request("ADD", "c1"))
		a.loop.step(1) // the ADD
		synctest.Wait()
		g.Expect(add.err).NotTo(HaveOccurred())
		a.drain()
		g.Expect(del.err).NotTo(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}

// The GC has found a lease; before it comes to the loop its attachment is
// added again, with success. It is not garbage any more.
func TestGCAndAnAddOfWhatItHasFound(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.begin(request("ADD", "c1"))
		a.drain()
		gc := a.begin(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
		add := a.begin(request("ADD", "c1"))
		a.loop.step(1) // the ADD
		synctest.Wait()
		a.drain()
		g.Expect(add.err).NotTo(HaveOccurred())
		g.Expect(gc.err).NotTo(HaveOccurred())
		g.Expect(a.held()).To(Equal([]string{"c1"}))
	})
}

// GC reports the number of leases that it freed.
func TestGCCountsWhatItFreed(t *testing.T) {
	slowly(t, func(g Gomega, a *agent) {
		a.begin(request("ADD", "c1"))
		a.drain()
		gc := a.begin(cni.Request{Command: "GC", Network: "pods", Attachments: []cni.Attachment{}})
		a.begin(request("DEL", "c1"))
		a.loop.step(1) // the DEL
		synctest.Wait()
		a.drain()
		g.Expect(gc.err).NotTo(HaveOccurred())
		g.Expect(a.freed).To(BeZero())
	})
}

// STATUS of a pool that ADD refuses must not say that ADD can be served.
func TestStatusOfAPoolThatIsNotForPods(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	r := request("ADD", "c1")
	r.Pool = ipam.HostPool
	_, err := a.serve(r)
	g.Expect(err).To(HaveOccurred())
	_, err = a.serve(cni.Request{Command: "STATUS", Network: "pods", Pool: ipam.HostPool})
	g.Expect(code(g, err)).To(BeNumerically("==", cni.CodeNotAvailable))
}

// The clock was set back between two sandboxes of a pod: a resync must find
// the same one to be the newest as the events did.
func TestTheNewestSandboxAndAClockThatJumps(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	now := time.Now()
	a.now = func() time.Time { return now }
	a.sandbox("old")
	now = now.Add(-time.Hour)
	a.sandbox("new")
	g.Expect(a.newest()).To(Equal("new"))
	a.resync()
	g.Expect(a.newest()).To(Equal("new"))
}

// A DEL that failed has ended nothing: the sandbox is still there.
func TestTheSandboxOfADelThatFails(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	a.sandbox("c1")
	a.journal.Plan = journal.At(a.journal.Commits()+1, journal.Fail)
	_, err := a.serve(request("DEL", "c1"))
	g.Expect(err).To(HaveOccurred())
	g.Expect(a.held()).To(Equal([]string{"c1"}))
	g.Expect(a.newest()).To(Equal("c1"))
}

// The commit southbound fails after the leases were committed: the event is
// reverted, and with it the sandbox.
func TestTheSandboxOfAnAddThatFailsSouthbound(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t, plain)
	sink := &controller.MemorySink{Fault: func(txn controller.Transaction) error {
		if txn.RevertOnFailure {
			return errors.New("no such device")
		}
		return nil
	}}
	loop := controller.New(controller.DefaultConfig(), controller.Deps{
		Sink: sink, Handlers: a.loop.handlers, Committers: []controller.Committer{a.loop.stage},
	})
	a.EventLoop = loop
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	g.Expect(loop.PushEvent(&controller.DBResync{})).To(Succeed())
	r := request("ADD", "c1")
	r.Pod.Name = "web"
	_, err := a.serve(r)
	g.Expect(err).To(MatchError(ContainSubstring("no such device")))
	g.Expect(a.held()).To(BeEmpty())
	g.Expect(a.newest()).To(BeEmpty())
}

// An event whose Void is asked when its producer is gone: see TestAReleaseWhoseProducerIsGone.
func TestTheLoopComesToAReleaseWhenTheAgentStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, plain)
		a.loop.manual = true
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		a.abandon("c1")
		cancel()
		<-ended
		release := a.loop.queue[0].(*podmanager.DeletePod)
		a.g.Expect(func() { release.Void() }).NotTo(Panic())
	})
}
