// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

const (
	byNodeID  = "ipamConfig: {podSubnetCIDR"
	byPodCIDR = "ipamConfig: {useExternalIPAM: true, podSubnetCIDR"
)

// restartAs starts the agent again with another source of its blocks.
func (m *member) restartAs(t *testing.T, from, to string) {
	t.Helper()
	m.kill()
	m.change(t, from, to)
	m.run(t)
}

// assignedMembers starts two nodes with podCIDRs. That of a, which a pod uses, is what the ID of
// b implies.
func assignedMembers(t *testing.T) (a, b *member) {
	t.Helper()
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	store.assigns(t, "a", "uid-1", "10.1.0.64/27") // what ID 2 implies
	store.assigns(t, "b", "uid-2", "10.1.0.96/27")
	a = externalMember(t, "a", server)
	a.awaitFollowing(t)
	b = externalMember(t, "b", server)
	b.awaitFollowing(t)
	NewWithT(t).Expect(a.ask(t, Add, "pod")).To(Equal("10.1.0.66/27"))
	return a, b
}

// A cluster goes from podCIDRs to blocks that follow from node IDs. The claims of
// the podCIDRs end with their last leases, so that the nodes whose IDs imply the
// prefixes get them.
func TestFromPodCIDRsToNodeIDs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a, b := assignedMembers(t)
	g.Expect(b.ask(t, Add, "old")).To(Equal("10.1.0.98/27"), "b keeps its ID")

	a.restartAs(t, byPodCIDR, byNodeID)
	a.awaitFollowing(t)
	b.waitForStore(t) // a start without the store does not see the claim of a
	b.restartAs(t, byPodCIDR, byNodeID)
	g.Consistently(func() string { return b.ask(t, Add, "pod") }, fresh, 100*time.Millisecond).ShouldNot(HavePrefix("10.1."), "a's pod is in the block of ID 2")
	g.Expect(a.ask(t, Del, "pod")).To(BeEmpty())
	b.awaitFollowing(t)
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))
}

// As above, but the store is away while b starts: its mirror does not tell that a has
// claimed what b's ID implies. b gives out nothing new until the store has confirmed the ID.
func TestFromPodCIDRsToNodeIDsWithoutTheStore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	a, b := assignedMembers(t)
	g.Expect(b.ask(t, Add, "old")).To(Equal("10.1.0.98/27"))

	a.restartAs(t, byPodCIDR, byNodeID)
	a.awaitFollowing(t)
	b.cut()
	b.restartAs(t, byPodCIDR, byNodeID)
	g.Eventually(b.mirrored, healing, 20*time.Millisecond).Should(Succeed())
	g.Expect(b.doubts()).To(Succeed())
	g.Expect(b.ask(t, Add, "pod")).To(ContainSubstring("until the store confirms it"), "a's pod has what b would give out")
	g.Expect(b.ask(t, Add, "old")).To(Equal("10.1.0.98/27"), "what b has stays")
	g.Expect(a.ask(t, Del, "pod")).To(BeEmpty())
	b.pass()
	b.awaitFollowing(t)
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))

	b.cut() // the store has confirmed it: without the store, b goes on as ever
	b.kill()
	b.run(t)
	g.Eventually(b.mirrored, healing, 20*time.Millisecond).Should(Succeed())
	g.Expect(b.ask(t, Add, "another")).To(HavePrefix("10.1.0."))
}

// mirrored is nil where the agent has started from its mirror of the store.
func (m *member) mirrored() error {
	s, err := m.status()
	if err == nil && s.StateFrom != "mirror" {
		err = fmt.Errorf("the state of %s is from %q", m.name, s.StateFrom)
	}
	return err
}

// A cluster goes from blocks that follow from node IDs to podCIDRs, which the Node
// objects had before, without use. The node that is restarted first gets no block
// from which another node still allocates by its ID.
func TestFromNodeIDsToPodCIDRs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	store.assigns(t, "a", "uid-1", "10.1.77.0/27")
	store.assigns(t, "b", "uid-2", "10.1.0.32/27") // what ID 1 implies
	all := newMembers(t, "a b", server)
	a, b := all[0], all[1]
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.0.34/27"))

	b.restartAs(t, byNodeID, byPodCIDR)
	g.Consistently(func() string { return b.ask(t, Add, "pod") }, 3*fresh, 100*time.Millisecond).ShouldNot(HavePrefix("10.1."), "a allocates from it")
	g.Expect(b.waits("a")).To(Succeed())
	a.restartAs(t, byNodeID, byPodCIDR)
	g.Eventually(a.subnet, healing, 20*time.Millisecond).Should(Equal("10.1.77.0/27"))
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.0.34/27"), "the pod keeps its address")
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("refused: "))
	g.Expect(a.ask(t, Del, "pod")).To(BeEmpty())
	b.awaitFollowing(t)
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))
}
