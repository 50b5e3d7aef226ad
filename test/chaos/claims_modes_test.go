// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
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

// A cluster goes from podCIDRs to blocks that follow from node IDs. The claims of
// the podCIDRs end with their last leases, so that the nodes whose IDs imply the
// prefixes get them.
func TestFromPodCIDRsToNodeIDs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	store.assigns(t, "a", "uid-1", "10.1.0.64/27") // what ID 2 implies
	store.assigns(t, "b", "uid-2", "10.1.0.96/27")
	a := externalMember(t, "a", server)
	a.awaitFollowing(t)
	b := externalMember(t, "b", server)
	b.awaitFollowing(t)
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.0.66/27"))
	g.Expect(b.ask(t, Add, "old")).To(Equal("10.1.0.98/27"), "b keeps its ID")

	a.restartAs(t, byPodCIDR, byNodeID)
	a.awaitFollowing(t)
	b.restartAs(t, byPodCIDR, byNodeID)
	g.Consistently(func() string { return b.ask(t, Add, "pod") }, fresh, 100*time.Millisecond).ShouldNot(HavePrefix("10.1."), "a's pod is in the block of ID 2")
	g.Expect(a.ask(t, Del, "pod")).To(BeEmpty())
	b.awaitFollowing(t)
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))
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
