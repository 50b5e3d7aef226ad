// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// scenario returns the steps of a cluster: nodes come, go, and come again.
func scenario() []func(*server) {
	return []func(*server){
		func(s *server) { s.put("a"); s.put("b"); s.put("c", with("10.0.0.0/28", "fd00::/64")) },
		func(s *server) { s.remove("a"); s.put("a") },
		func(s *server) { s.remove("b") },
		func(s *server) { s.put("b"); s.put("d") },
		func(s *server) { s.remove("c"); s.put("e") },
	}
}

// play runs an allocator through the scenario. At the end it checks that every node has its
// CIDRs and that no other owner has a block.
func play(t *testing.T, s *server, change ...func(*Deps)) error {
	t.Helper()
	g := NewWithT(t)
	s.watch = func(s *server) {
		if err := s.overlaps(); err != nil {
			t.Errorf("after call %d: %v", s.calls, err)
		}
	}
	settings := ranges("10.0.0.0/24 28", "fd00::/60 64")
	b := newBench(t, newServer(), settings, change...)
	b.server, b.api, b.reports.api = s, s, s
	b.loaded = false
	for _, chapter := range scenario() {
		chapter(s)
		if err := b.lookUntilItWorks(t.Context()); err != nil {
			return err
		}
	}
	s.arrive()
	if err := b.lookUntilItWorks(t.Context()); err != nil {
		return err
	}
	cidrs := s.cidrs()
	for name, have := range cidrs {
		if len(have) != 2 {
			return fmt.Errorf("node %s has %v", name, have)
		}
	}
	g.Expect(b.held()).To(Equal(cidrs))
	stat := b.assigned.stat()
	for _, r := range stat.Ranges {
		if r.Used != uint64(len(cidrs)) {
			return fmt.Errorf("%d blocks of %s are in use by %d nodes", r.Used, r.Prefix, len(cidrs))
		}
	}
	if stat.Pending != 0 || len(b.Status().Problems) != 0 || len(b.Status().Waiting) != 0 {
		return fmt.Errorf("pending %d, %+v", stat.Pending, b.Status())
	}
	for name := range cidrs {
		s.remove(name)
	}
	if err := b.lookUntilItWorks(t.Context()); err != nil {
		return err
	}
	return leaked(b.assigned.stat())
}

// lookUntilItWorks reads the nodes, if that has not been done, and looks at all.
func (b *bench) lookUntilItWorks(ctx context.Context) error {
	for try := 0; ; try++ {
		err := b.load(ctx)
		if err == nil {
			err = b.look(ctx)
		}
		if err == nil {
			return nil
		}
		if try == 10 {
			return fmt.Errorf("it never ends: %w", err)
		}
	}
}

// leaked returns an error if blocks are in use after all nodes are gone.
func leaked(stat blocks.Stat) error {
	if stat.Owners+stat.Pending+stat.Foreign > 0 {
		return fmt.Errorf("all nodes are gone, and there is %+v", stat)
	}
	for _, r := range stat.Ranges {
		if r.Used > 0 || r.Blocks > 0 {
			return fmt.Errorf("all nodes are gone, and %[2]d blocks of %[1]s are in use", r.Prefix, r.Used)
		}
	}
	return nil
}

// withFence makes an allocator write down what nodes are about to get.
func withFence(d *Deps) { d.Fence = &fenced{} }

func withoutFence(*Deps) {}

func TestEveryFaultAtEveryStep(t *testing.T) {
	g := NewWithT(t)
	for _, fence := range []func(*Deps){withoutFence, withFence} {
		plain := newServer()
		g.Expect(play(t, plain, fence)).To(Succeed())
		for _, f := range []fault{fail, tear, refuse, conflict, delay} {
			for n := 1; n <= plain.calls; n++ {
				lags := []int{0}
				if f == delay {
					lags = []int{1, 2, 3, 5, 8, 1000}
				}
				for _, lag := range lags {
					s := newServer()
					s.fault, s.lag = at(n, f), lag
					g.Expect(play(t, s, fence)).To(Succeed(), "%s at call %d of %d, lag %d", f, n, plain.calls, lag)
				}
			}
		}
	}
}

func TestTwoFaultsInARow(t *testing.T) {
	g := NewWithT(t)
	plain := newServer()
	g.Expect(play(t, plain)).To(Succeed())
	for _, f := range []fault{fail, tear, delay} {
		for _, second := range []fault{fail, tear, delay} {
			for n := 1; n <= plain.calls; n++ {
				for _, more := range []int{1, 2, 3} {
					s := newServer()
					s.lag = 4
					s.fault = func(c call) fault {
						switch c.number {
						case n:
							return f
						case n + more:
							return second
						}
						return none
					}
					g.Expect(play(t, s)).To(Succeed(), "%s at call %d, %s at %d", f, n, second, n+more)
				}
			}
		}
	}
}

// Upstream takes every failed patch for one that was not applied, because its
// helper hides what kind of error it was, and gives the block to another node.
func TestAnUnknownOutcomeIsPending(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/27 28"))
	s.put("a")
	s.fault = func(c call) fault {
		switch {
		case c.node == "a" && c.what == "patch":
			return tear
		case c.node == "a":
			return fail // it cannot be read back, either
		}
		return none
	}
	g.Expect(b.look(t.Context(), "a")).NotTo(Succeed())
	g.Expect(b.assigned.stat().Pending).To(Equal(1))
	s.put("b")
	s.put("c")
	g.Expect(b.look(t.Context(), "b")).To(Succeed())
	g.Expect(b.look(t.Context(), "c")).To(MatchError(blocks.ErrExhausted))
	g.Expect(s.cidrs()).To(Equal(map[string][]string{"a": {"10.0.0.0/28"}, "b": {"10.0.0.16/28"}, "c": nil}))
	s.fault = nil
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(b.assigned.stat().Pending).To(BeZero())
}

func TestARefusedNodeKeepsItsOffer(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/24 28"))
	s.put("a")
	s.fault = func(c call) fault {
		if c.what == "patch" {
			return refuse
		}
		return none
	}
	for range 5 {
		g.Expect(b.look(t.Context(), "a")).NotTo(Succeed())
	}
	g.Expect(b.events.of(ReasonAssignmentFailed)).To(HaveLen(1), "it is told once")
	g.Expect(b.assigned.stat().Ranges[0].Used).To(Equal(uint64(1)), "retries do not take more")
	s.fault = nil
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(s.cidrs()["a"]).To(Equal([]string{"10.0.0.0/28"}))
	g.Expect(b.Status().Problems).To(BeEmpty())
}

// Upstream releases what the cache has last seen of a node: nothing, where its
// own patch is not in the cache yet; and nothing where the delete was missed.
func TestDeletesThatWereMissed(t *testing.T) {
	t.Run("the cache has never seen the CIDRs", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		b := newBench(t, s, ranges("10.0.0.0/28 28"))
		s.put("a")
		b.cache.refresh(s)
		g.Expect(b.sync(t.Context(), "a")).To(Succeed())
		s.remove("a")
		g.Expect(b.look(t.Context(), "a")).To(Succeed())
		g.Expect(b.held()).To(BeEmpty())
	})
	t.Run("made again under its name", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		b := newBench(t, s, ranges("10.0.0.0/27 28"))
		s.put("a")
		g.Expect(b.look(t.Context())).To(Succeed())
		for i := range 10 {
			s.remove("a")
			s.put("a")
			g.Expect(b.look(t.Context(), "a")).To(Succeed(), "time %d", i)
			g.Expect(s.cidrs()["a"]).To(HaveLen(1))
			g.Expect(b.assigned.stat().Ranges[0].Used).To(Equal(uint64(1)))
		}
	})
	t.Run("made again with the CIDR of the old one", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		b := newBench(t, s, ranges("10.0.0.0/27 28"))
		s.put("a", with("10.0.0.0/28"))
		g.Expect(b.look(t.Context())).To(Succeed())
		s.remove("a")
		s.put("a", with("10.0.0.0/28"))
		g.Expect(b.look(t.Context())).To(Succeed())
		g.Expect(b.held()).To(Equal(map[string][]string{"a": {"10.0.0.0/28"}}))
		g.Expect(b.events.events).To(BeEmpty())
	})
	t.Run("found by the audit", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("a", with("10.0.0.0/28"))
		b := newBench(t, s, ranges("10.0.0.0/27 28"))
		s.remove("a")
		b.cache.refresh(s) // no event ever comes
		b.queued()
		b.audit()
		g.Expect(b.queued()).To(Equal([]string{"a"}))
		g.Expect(b.sync(t.Context(), "a")).To(Succeed())
		g.Expect(b.held()).To(BeEmpty())
	})
}

// A relist may come from an API server that lags, and lack nodes that are there.
func TestWhatOnlyTheCacheMissesIsNotGone(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("a", with("10.0.0.0/28"))
	b := newBench(t, s, ranges("10.0.0.0/27 28"))
	b.cache.nodes = map[string]*v1.Node{}
	g.Expect(b.sync(t.Context(), "a")).To(Succeed())
	g.Expect(b.held()).To(Equal(map[string][]string{"a": {"10.0.0.0/28"}}))

	s.fault = func(call) fault { return fail }
	g.Expect(b.sync(t.Context(), "a")).NotTo(Succeed(), "who cannot ask frees nothing")
	g.Expect(b.held()).To(HaveLen(1))
	s.fault = nil

	old := s.node("a")
	s.remove("a")
	s.put("a")
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	b.cache.nodes["a"] = old // it is set back, to the object before
	g.Expect(b.sync(t.Context(), "a")).To(Succeed())
	g.Expect(b.held()["a"]).To(ContainElement(s.cidrs()["a"][0]))
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(b.held()).To(Equal(s.cidrs()))
}

// Upstream accepts two nodes with one CIDR, and gives it to a third when the
// first of them is gone.
func TestTwoNodesWithOneCIDR(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("a", with("10.0.0.0/28"))
	s.put("b", with("10.0.0.0/28"))
	b := newBench(t, s, ranges("10.0.0.0/27 28"))
	_ = b.look(t.Context())
	g.Expect(b.events.of(ReasonConflict)).To(HaveLen(2), "of both")
	g.Expect(b.events.of(ReasonConflict)[0]).To(ContainSubstring(`overlaps 10.0.0.0/28 of node "b"`))
	b.queued()
	s.remove("a")
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(b.queued()).To(Equal([]string{"b"}), "the other one is looked at")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.Status().Problems).To(BeEmpty())
	s.put("c")
	s.put("d")
	g.Expect(b.look(t.Context(), "c")).To(Succeed())
	g.Expect(s.cidrs()["c"]).To(Equal([]string{"10.0.0.16/28"}))
	g.Expect(b.look(t.Context(), "d")).To(MatchError(blocks.ErrExhausted))
}

// A second controller that gives CIDRs, as there was in some clusters.
func TestSomebodyElseGivesCIDRs(t *testing.T) {
	t.Run("others to the same node", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		b := newBench(t, s, ranges("10.0.0.0/27 28"))
		s.put("a")
		b.cache.refresh(s)
		s.edit("a", with("10.0.0.16/28"))
		g.Expect(b.sync(t.Context(), "a")).To(Succeed())
		g.Expect(b.held()).To(Equal(map[string][]string{"a": {"10.0.0.16/28"}}))
		g.Expect(b.assigned.stat().Ranges[0].Used).To(Equal(uint64(1)), "what was offered is free at once")
	})
	t.Run("what was offered, to another node", func(t *testing.T) {
		for _, lag := range []int{1, 1000} { // the offer is still under way
			g := NewWithT(t)
			s := newServer()
			s.put("a")
			b := newBench(t, s, ranges("10.0.0.0/24 28"))
			s.lag = lag
			s.fault = func(c call) fault {
				if c.what == "patch" {
					return delay
				}
				return fail
			}
			g.Expect(b.look(t.Context(), "a")).NotTo(Succeed())
			s.fault = nil
			s.put("b", with("10.0.0.0/28"))
			_ = b.look(t.Context(), "b")
			_ = b.look(t.Context(), "a")
			s.arrive()
			_ = b.look(t.Context())
			if lag == 1 { // it arrived: nothing could be done
				g.Expect(b.events.of(ReasonConflict)).NotTo(BeEmpty())
				continue
			}
			g.Expect(s.cidrs()).To(Equal(map[string][]string{"a": {"10.0.0.16/28"}, "b": {"10.0.0.0/28"}}))
			g.Expect(b.Status().Problems).To(BeEmpty(), "it is over")
			g.Expect(b.held()).To(Equal(s.cidrs()))
		}
	})
}

// An etcd that was restored from a backup.
func TestCIDRsThatWereLostAreWrittenAgain(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/24 28"))
	s.put("z")
	s.put("a")
	g.Expect(b.look(t.Context(), "z", "a")).To(Succeed())
	want := s.cidrs()
	s.edit("a", func(n *v1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = "", nil })
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(s.cidrs()).To(Equal(want))
}

func TestAFailedFamilyLosesNothing(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	settings := ranges("10.0.0.0/24 28", "fd00::/64 64")
	b := newBench(t, s, settings)
	s.put("a")
	s.put("b")
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	for range 50 {
		g.Expect(b.look(t.Context(), "b")).To(MatchError(blocks.ErrExhausted))
	}
	g.Expect(b.assigned.stat().Ranges[0].Used).To(Equal(uint64(1)))
	g.Expect(b.AddRange(blocks.Range{Prefix: pfx("fd01::/64"), Bits: 64, Pool: 1})).To(Succeed())
	g.Expect(b.look(t.Context(), "b")).To(Succeed())
	g.Expect(s.cidrs()["b"]).To(Equal([]string{"10.0.0.16/28", "fd01::/64"}))
}

func TestExhaustionIsToldOnce(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	settings := ranges("10.0.0.0/27 28")
	settings.Policy.CoolDown = time.Minute
	b := newBench(t, s, settings)
	for i := range 10 {
		s.put(fmt.Sprint("n", i))
	}
	for range 20 {
		_ = b.look(t.Context())
	}
	g.Expect(b.events.of(ReasonNotAvailable)).To(HaveLen(1))
	g.Expect(b.events.events).To(HaveLen(1))
	g.Expect(b.Status().Waiting).To(HaveLen(8))
	waiting := b.Status().Waiting[0]
	c := conditionOf(s.node(waiting), ConditionProblem)
	g.Expect(c.Status).To(Equal(v1.ConditionTrue))
	g.Expect(c.Reason).To(Equal(ReasonNotAvailable))
	g.Expect(c.Message).To(ContainSubstring("of 2 blocks 2 are in use"))
	conditions := len(s.writes)
	_ = b.look(t.Context())
	g.Expect(s.writes).To(HaveLen(conditions), "conditions are written once")

	g.Expect(b.AddRange(blocks.Range{Prefix: pfx("10.0.1.0/25"), Bits: 28})).To(Succeed())
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.Status().Waiting).To(BeEmpty())
	g.Expect(conditionOf(s.node(waiting), ConditionProblem).Status).To(Equal(v1.ConditionFalse))
	g.Expect(conditionOf(s.node(waiting), ConditionProblem).Reason).To(Equal(ReasonAssigned))
	s.put("late")
	g.Expect(b.look(t.Context())).To(MatchError(blocks.ErrExhausted))
	g.Expect(b.events.of(ReasonNotAvailable)).To(HaveLen(2), "and again, when it happens again")
	s.remove("late")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.Status().Waiting).To(BeEmpty())
}

func TestReleasedBlocksCoolDown(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	settings := ranges("10.0.0.0/28 28")
	settings.Policy.CoolDown = time.Minute
	b := newBench(t, s, settings)
	s.put("a")
	g.Expect(b.look(t.Context())).To(Succeed())
	s.remove("a")
	g.Expect(b.look(t.Context())).To(Succeed())
	s.put("b")
	err := b.look(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("1 are cooling, the next until 2026-01-01T00:01:00Z")))
	b.clock.advance(time.Minute)
	g.Expect(b.look(t.Context())).To(Succeed())
}

// A new leader does not know what cools. It goes on behind the newest node.
func TestANewLeaderGoesOn(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	old := func(n *v1.Node) { n.CreationTimestamp.Time = newClock().now.Add(-time.Hour) }
	young := func(n *v1.Node) { n.CreationTimestamp.Time = newClock().now }
	s.put("old", with("10.0.9.0/24"), old)
	s.put("young", with("10.0.5.0/24"), young)
	settings := ranges("10.0.0.0/16 24")
	settings.Policy.CoolDown = time.Minute
	b := newBench(t, s, settings)
	s.put("new")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(s.cidrs()["new"]).To(Equal([]string{"10.0.6.0/24"}))
}

func TestRangesChangeAtRuntime(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/27 28"))
	s.put("a")
	s.put("foreign", with("10.9.0.0/28"))
	_ = b.look(t.Context())
	g.Expect(b.events.of(ReasonOutOfRange)).To(HaveLen(1))
	g.Expect(b.AddRange(blocks.Range{Prefix: pfx("10.9.0.0/27"), Bits: 28})).To(Succeed())
	g.Expect(b.look(t.Context())).To(Succeed(), "what was foreign is of a range now")
	g.Expect(b.Status().Problems).To(BeEmpty())
	g.Expect(b.DrainRange(pfx("10.0.0.0/27"))).To(Succeed())
	s.put("b")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(s.cidrs()["b"]).To(Equal([]string{"10.9.0.16/28"}))
	g.Expect(b.RemoveRange(pfx("10.0.0.0/27"))).To(MatchError(blocks.ErrInUse))
	s.remove("a")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.RemoveRange(pfx("10.0.0.0/27"))).To(Succeed())
	s.put("c")
	g.Expect(b.look(t.Context())).To(MatchError(blocks.ErrExhausted))
	g.Expect(b.AddRange(blocks.Range{Prefix: pfx("10.0.0.0/27"), Bits: 28})).To(Succeed())
	g.Expect(b.ResizeRange(pfx("10.0.0.0/27"), 29)).To(Succeed())
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(s.cidrs()["c"]).To(Equal([]string{"10.0.0.0/29"}))
	g.Expect(b.ResumeRange(pfx("10.7.0.0/27"))).To(MatchError(blocks.ErrNoRange))
}

// A caller that asks before the nodes are known gets nothing.
func TestNoAllocationBeforeTheNodesAreRead(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("a", with("10.0.0.0/28"))
	b := newBench(t, newServer(), ranges("10.0.0.0/28 28"))
	b.server, b.api, b.reports.api, b.loaded = s, s, s, false
	s.fault = func(call) fault { return fail }
	node := s.put("b")
	g.Expect(b.AllocateOrOccupyCIDR(node)).To(MatchError(ContainSubstring("list the nodes")))
	g.Expect(b.ReleaseCIDR(node)).To(MatchError(ContainSubstring("list the nodes")))
	s.fault = nil
	g.Expect(b.AllocateOrOccupyCIDR(node)).To(MatchError(blocks.ErrExhausted))
}
