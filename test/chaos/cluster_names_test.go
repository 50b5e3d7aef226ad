// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// twin is another machine with the name of m.
func twin(t *testing.T, m *member, server *etcdtest.Server) *member {
	t.Helper()
	return newMember(t, m.name, server)
}

// TestTwoAgentsOfOneName starts a second agent under a name while the first is
// there, and when it was not there for a while.
func TestTwoAgentsOfOneName(t *testing.T) {
	attack.Begin(t, attack.SameName).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	first := newMembers(t, "a", server)[0]
	address := first.ask(t, Add, "pod")
	second := twin(t, first, server)
	second.run(t)
	g.Expect(second.agent.mustEnd(t)).To(And(
		ContainSubstring("another instance has this node's name"), ContainSubstring(first.mustStatus(t).Instance)), "it says who has it")
	store := newRegistry(t, server.Endpoint())
	store.mustHold(t, map[*member]uint32{first: 1})
	g.Expect(store.list()).To(HaveLen(1), "the refused agent has left nothing")

	first.kill()
	g.Eventually(func() error { // refused for as long as the first may be alive
		second.run(t)
		g.Eventually(func() bool { return second.agent.hasEnded() || second.follows() == nil }, healing, 5*time.Millisecond).Should(BeTrue())
		return second.follows()
	}, healing, 100*time.Millisecond).Should(Succeed())
	store.mustHold(t, map[*member]uint32{second: 2})
	twos := second.ask(t, Add, "pod")
	g.Expect(twos).To(HavePrefix("10.1.0.6"), "of its own subnet")

	first.run(t) // it has an ID, but the name is the second one's now
	g.Eventually(first.doubts, healing, 20*time.Millisecond).Should(Succeed())
	g.Expect(first.mustStatus(t).NodeIDProblem).To(ContainSubstring("another instance has this node's name"))
	g.Expect(first.ask(t, Add, "new")).To(ContainSubstring("allocates no new address: node ID 1"))
	kept(t, map[*member]string{first: address, second: twos})
}

// TestTwoAgentsOfOneNameAtOnce starts both at the same moment.
func TestTwoAgentsOfOneNameAtOnce(t *testing.T) {
	tried := attack.Begin(t, attack.SameName)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	for i := range effort.Times(t, 5) {
		tried.Add(1)
		one := newMember(t, fmt.Sprint("n", i), server)
		two := twin(t, one, server)
		one.run(t)
		two.run(t)
		var winner, loser *member
		g.Eventually(func() bool {
			for _, pair := range [][2]*member{{one, two}, {two, one}} {
				if pair[0].follows() == nil && pair[1].agent.hasEnded() {
					winner, loser = pair[0], pair[1]
				}
			}
			return winner != nil
		}, healing, 5*time.Millisecond).Should(BeTrue(), "try %d: both go on, or none does", i)
		g.Expect(loser.agent.mustEnd(t)).To(ContainSubstring("another instance has this node's name"))
		store.mustHold(t, map[*member]uint32{winner: uint32(i + 1)})
		g.Expect(store.list()).To(HaveLen(i+1), "one record a name")
		winner.kill()
	}
}

// TestAgentThatIsSupersededWhileItIsCutOff is a network that hides an agent
// for longer than its beats are fresh: another one gets its name, but not its ID.
func TestAgentThatIsSupersededWhileItIsCutOff(t *testing.T) {
	attack.Begin(t, attack.SameName).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	all := newMembers(t, "a b", server)
	first := all[0]
	was := leases(t, all)
	first.cut()
	second := twin(t, first, server)
	g.Eventually(func() error {
		if !second.running() {
			second.run(t)
		}
		return second.follows()
	}, healing, 50*time.Millisecond).Should(Succeed())
	g.Expect(first.alone()).To(Succeed(), "it was not told")
	theirs := map[*member]string{second: second.ask(t, Add, "pod")}
	g.Expect(second.mustStatus(t).NodeID).To(BeEquivalentTo(3), "an ID of its own, not that of its name")
	alone := first.ask(t, Add, "alone")
	g.Expect(alone).To(HavePrefix("10.1.0."), "no other node has its ID")

	first.pass()
	g.Eventually(first.doubts, healing, 20*time.Millisecond).Should(Succeed())
	g.Expect(first.ask(t, Add, "late")).To(ContainSubstring("allocates no new address: node ID 1"))
	g.Expect(first.ask(t, Add, "pod")).To(Equal(was[first]), "every lease is served")
	g.Expect(first.ask(t, Add, "alone")).To(Equal(alone))
	records, err := newRegistry(t, server.Endpoint()).list()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records[0].SupersededBy).To(BeEquivalentTo(3))
	theirs[all[1]], theirs[first] = was[all[1]], was[first]
	kept(t, theirs)
	g.Expect(second.follows()).To(Succeed())
}

// TestPoolsChangeWhileAnAgentIsCutOff: what an agent has not heard of is not
// done without it.
func TestPoolsChangeWhileAnAgentIsCutOff(t *testing.T) {
	attack.Begin(t, attack.NoStore).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	all := newMembers(t, "a b", server)
	here, away := all[0], all[1]
	was := leases(t, all)
	away.cut()
	r, err := here.apply(twoPools)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(r.Changes).To(Equal(2))
	g.Eventually(here.subnet, healing, 20*time.Millisecond).Should(Equal("10.2.0.32/27"))
	g.Expect(here.ask(t, Add, "new")).To(HavePrefix("10.2.0.3"))
	g.Expect(here.ask(t, Del, "pod")).To(BeEmpty())
	g.Eventually(away.alone, healing, 20*time.Millisecond).Should(Succeed())
	old := away.ask(t, Add, "new")
	g.Expect(old).To(HavePrefix("10.1.0."), "it allocates from the block that no other node has")

	const removed = "pools: [{name: default, state: removed}]"
	refusal := func() string {
		var r localapi.ApplyResult
		status, err := post(here.socket(), localapi.PathApply, localapi.ApplyRequest{File: removed}, &r)
		if err == nil || status != 409 {
			return fmt.Sprintf("status %d, %v", status, err)
		}
		return err.Error()
	}
	g.Eventually(refusal, healing, 20*time.Millisecond).Should(And(ContainSubstring(`"node":"b"`), Not(ContainSubstring(`"node":"a"`))), "only the one that is away stands in the way")
	away.kill()
	away.run(t) // from its mirror, which is of the time before
	g.Eventually(away.alone, healing, 20*time.Millisecond).Should(Succeed())
	g.Expect(away.ask(t, Add, "new2")).To(HavePrefix("10.1.0."))
	g.Expect(refusal()).To(ContainSubstring(`"node":"b"`))

	away.pass()
	away.awaitFollowing(t)
	g.Eventually(away.subnet, healing, 20*time.Millisecond).Should(Equal("10.2.0.64/27"))
	g.Expect(away.ask(t, Add, "newer")).To(HavePrefix("10.2.0."))
	g.Expect(away.ask(t, Add, "pod")).To(Equal(was[away]))
	g.Eventually(refusal, healing, 20*time.Millisecond).Should(ContainSubstring("lease"), "its leases stand in the way")
	for _, id := range []string{"pod", "new", "new2"} {
		g.Expect(away.ask(t, Del, id)).To(BeEmpty())
	}
	g.Eventually(func() error { _, err := here.apply(removed); return err }, healing, 50*time.Millisecond).Should(Succeed())
	g.Expect(away.ask(t, Add, "newest")).To(HavePrefix("10.2.0."))
}

// TestNetworksThatHalfWork is about networks without resets: agents notice within seconds,
// allocate on, and are back soon after.
func TestNetworksThatHalfWork(t *testing.T) {
	for name, spoil := range map[string]func(*etcdtest.Proxy){
		"nothing arrives":  (*etcdtest.Proxy).Blackhole,
		"answers are lost": (*etcdtest.Proxy).Mute,
		"cut":              (*etcdtest.Proxy).Cut,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			attack.Begin(t, attack.NoStore).Add(1)
			g := NewWithT(t)
			server := etcdtest.Start(t)
			all := newMembers(t, "a b", server)
			a := all[0]
			was := leases(t, all)
			busy := keepAllocating(t, a)
			a.network(spoil)
			began := time.Now()
			g.Eventually(a.alone, 5*time.Second, 5*time.Millisecond).Should(Succeed(), "it notices within seconds")
			noticed := time.Since(began)
			a.pass()
			began = time.Now()
			a.awaitFollowing(t)
			t.Logf("noticed after %s, followed %s after all was well", noticed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
			g.Expect(busy.end()).To(Succeed())
			newRegistry(t, server.Endpoint()).mustHold(t, idsOf(all))
			kept(t, was)
		})
	}
	t.Run("slow", func(t *testing.T) {
		t.Parallel()
		attack.Begin(t, attack.NoStore).Add(1)
		g := NewWithT(t)
		server := etcdtest.Start(t)
		a := newMembers(t, "a", server)[0]
		a.network(func(p *etcdtest.Proxy) { p.Delay(100 * time.Millisecond) })
		busy := keepAllocating(t, a)
		g.Consistently(a.follows, 3*time.Second, 50*time.Millisecond).Should(Succeed(), "slow is not away")
		g.Expect(busy.end()).To(Succeed())
		b := newMember(t, "b", server)
		b.network(func(p *etcdtest.Proxy) { p.Delay(100 * time.Millisecond) })
		b.join(t)
		newRegistry(t, server.Endpoint()).mustHold(t, map[*member]uint32{a: 1, b: 2})
	})
}
