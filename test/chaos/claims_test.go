// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
)

// assigns is a foreign controller: it writes Node objects into the store as the
// reflector of Kubernetes does, and knows nothing of claims.
func (r registry) assigns(t *testing.T, name, uid string, cidrs ...string) {
	t.Helper()
	value, err := proto.Marshal(&kv.Node{Name: name, Uid: uid, PodCidrs: cidrs})
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		_, err := r.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(kv.NodeKey(name), value)})
		return err
	}, patience, 20*time.Millisecond).Should(Succeed())
}

// externalMember makes a node whose pod subnet a controller assigns, and starts it.
func externalMember(t *testing.T, name string, server *etcdtest.Server) *member {
	t.Helper()
	m := newMember(t, name, server)
	m.change(t, "ipamConfig: {", "ipamConfig: {useExternalIPAM: true, ")
	m.run(t)
	return m
}

// waits is nil if the agent is not ready and says which node it waits for.
func (m *member) waits(node string) error {
	s, err := m.status()
	switch {
	case err != nil:
		return err
	case s.Ready:
		return fmt.Errorf("%s is ready", m.name)
	case !strings.Contains(s.ReadyError, "node "+node+" ") || !strings.Contains(s.ReadyError, "cadastre node release "+node):
		return fmt.Errorf("%s does not say that it waits for %s, and what ends that: %s", m.name, node, s.ReadyError)
	}
	return nil
}

// holds returns the nodes that publish an address.
func (r registry) holds(address string) (names []string, err error) {
	held, err := r.holders()
	for _, x := range held {
		for _, text := range x.IpAddresses {
			if p, err := netip.ParsePrefix(text); err == nil && p.Addr().String() == address {
				names = append(names, x.Name)
			}
		}
	}
	return names, err
}

// The Node object of a was re-created, so that the controller takes its old
// podCIDR for free. The controller assigns it to b while a pod of a still lives
// in it.
func TestAPodCIDRIsAssignedToASecondNode(t *testing.T) {
	attack.Begin(t, attack.PodCIDR).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	store.assigns(t, "a", "uid-1", "10.1.77.0/27")
	a := externalMember(t, "a", server)
	a.awaitFollowing(t)
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.77.2/27"))

	store.assigns(t, "a", "uid-2", "10.1.78.0/27")
	store.assigns(t, "b", "uid-3", "10.1.77.0/27")
	b := externalMember(t, "b", server)
	g.Eventually(func() error { return b.waits("a") }, healing, 20*time.Millisecond).Should(Succeed())
	g.Eventually(a.subnet, healing, 20*time.Millisecond).Should(Equal("10.1.78.0/27"))
	a.awaitFollowing(t)
	g.Expect(b.ask(t, Add, "pod")).To(And(HavePrefix("refused: "), ContainSubstring("node a holds 10.1.77.0/27")))
	g.Expect(a.ask(t, Add, "pod")).To(Equal("10.1.77.2/27"), "the pod keeps its address")
	g.Expect(a.ask(t, Add, "other")).To(Equal("10.1.78.2/27"))
	text, err := b.cadastre("status")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(MatchRegexp(`claim +10\.1\.77\.0/27 is waited for since .*: node a holds 10\.1\.77\.0/27; it was last seen at .*cadastre node release a`))

	b.kill()
	b.run(t) // a restart of the waiting node changes nothing
	g.Eventually(func() error { return b.waits("a") }, healing, 20*time.Millisecond).Should(Succeed())
	a.kill()
	a.join(t) // nor does one of the holder
	g.Expect(b.waits("a")).To(Succeed())

	g.Expect(a.ask(t, Del, "pod")).To(BeEmpty())
	b.awaitFollowing(t) // by itself, once the last lease there is gone
	g.Expect(b.ask(t, Add, "pod")).To(HavePrefix("10.1.77."))
	g.Expect(a.ask(t, Add, "pod")).To(HavePrefix("10.1.78."))
}

// Two nodes are assigned one podCIDR at the same time: one has it.
func TestTwoNodesWithOnePodCIDR(t *testing.T) {
	attack.Begin(t, attack.PodCIDR).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	var all []*member
	for _, name := range []string{"a", "b", "c"} {
		store.assigns(t, name, "uid-"+name, "10.1.77.0/27")
		all = append(all, externalMember(t, name, server))
	}
	ready := func() (ready []*member, err error) {
		for _, m := range all {
			s, err := m.status()
			if err != nil {
				return nil, err
			}
			if s.Ready {
				ready = append(ready, m)
			}
		}
		return ready, nil
	}
	g.Eventually(ready, healing, 20*time.Millisecond).Should(HaveLen(1))
	holders, err := ready()
	g.Expect(err).NotTo(HaveOccurred())
	for _, m := range all {
		if m != holders[0] {
			g.Eventually(func() error { return m.waits(holders[0].name) }, healing, 20*time.Millisecond).Should(Succeed())
		}
	}
	var leased []string
	for i := range 5 {
		for _, m := range all {
			if answer := m.ask(t, Add, fmt.Sprint(m.name, i)); strings.HasPrefix(answer, "10.1.77.") {
				g.Expect(m).To(BeIdenticalTo(holders[0]))
				leased = append(leased, answer)
			} else {
				g.Expect(answer).To(ContainSubstring("node " + holders[0].name + " holds 10.1.77.0/27"))
			}
		}
	}
	g.Expect(leased).To(HaveLen(5))
}

// A node with a pinned address and the node whose ID derives that address must
// not both publish it, whichever comes first.
func TestAPinnedAddressThatAnIDDerives(t *testing.T) {
	pinned := "192.168.16.2"
	pin := func(t *testing.T, m *member) {
		m.change(t, "cadastre:\n", "nodeConfig: [{nodeName: pinned, mainVPPInterface: {interfaceName: eth0, ip: "+pinned+"/24}}]\ncadastre:\n")
	}
	t.Run("the pinned one is first", func(t *testing.T) {
		attack.Begin(t, attack.Pinned).Add(1)
		t.Parallel()
		g := NewWithT(t)
		server := etcdtest.Start(t)
		store := newRegistry(t, server.Endpoint())
		m := newMember(t, "pinned", server)
		pin(t, m)
		m.join(t)
		g.Eventually(func() ([]string, error) { return store.holds(pinned) }, healing, 20*time.Millisecond).Should(ConsistOf("pinned"))
		b := newMembers(t, "b", server)[0]
		g.Expect(b.mustStatus(t).NodeID).To(BeNumerically("==", 3), "the ID whose address is pinned is skipped")
		g.Expect(store.holds(pinned)).To(ConsistOf("pinned"))
	})
	t.Run("the ID is first", func(t *testing.T) {
		attack.Begin(t, attack.Pinned).Add(1)
		t.Parallel()
		g := NewWithT(t)
		server := etcdtest.Start(t)
		store := newRegistry(t, server.Endpoint())
		newMembers(t, "a b", server)
		g.Eventually(func() ([]string, error) { return store.holds(pinned) }, healing, 20*time.Millisecond).Should(ConsistOf("b"))
		m := newMember(t, "pinned", server)
		pin(t, m)
		m.run(t)
		g.Eventually(func() error { return m.waits("b") }, healing, 20*time.Millisecond).Should(Succeed())
		g.Expect(store.holds(pinned)).To(ConsistOf("b"))
	})
}

// A node that was released while it cannot be reached may still allocate: its
// block is for no other node before its time is over.
func TestAReleasedNodeThatCannotBeReached(t *testing.T) {
	attack.Begin(t, attack.Released).Add(1)
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	const expire = 6 * time.Second
	join := func(name string) *member {
		m := newMember(t, name, server)
		m.change(t, "ipamConfig: {", "ipamConfig: {useExternalIPAM: true, ")
		m.change(t, "expire: 1h", "expire: "+expire.String())
		m.run(t)
		return m
	}
	store.assigns(t, "a", "uid-1", "10.1.77.0/27")
	a := join("a")
	a.awaitFollowing(t)
	store.assigns(t, "b", "uid-2", "10.1.77.0/27")
	b := join("b")
	g.Eventually(func() error { return b.waits("a") }, healing, 20*time.Millisecond).Should(Succeed())

	a.cut()
	text, err := b.cadastre("node", "release", "a", "--force")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(ContainSubstring("its agent may still run: other nodes get its addresses from "))
	allocated := 0
	g.Eventually(func() string { // a goes on allocating until it stops by itself
		if strings.HasPrefix(a.ask(t, Add, fmt.Sprint("a", allocated)), "10.1.77.") {
			allocated++
		}
		return b.ask(t, Add, "pod")
	}, healing, 100*time.Millisecond).Should(HavePrefix("10.1.77."), "b gets the block by itself")
	g.Expect(allocated).To(BeNumerically(">", 0), "the test needs an agent that allocates although it was released")
	g.Expect(a.ask(t, Add, "late")).To(ContainSubstring("refused: "), "it stopped by itself before b began")
}

// The store is wiped with all agents down, and a new node comes first: it
// allocates nothing that a pod of the old node still has.
func TestANewNodeComesFirstIntoAWipedStore(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store := newRegistry(t, server.Endpoint())
	old := newMembers(t, "old", server)[0]
	was := leases(t, []*member{old})
	old.kill()
	g.Expect(untilFree(server.Wipe)).To(Succeed())

	late := newMember(t, "late", server)
	late.change(t, "quarantine: 0s", "quarantine: 1h")
	late.run(t)
	g.Eventually(func() (string, error) { s, err := late.status(); return s.NodeIDProblem, err }, healing, 20*time.Millisecond).Should(
		ContainSubstring("the cluster store was new or wiped when this node claimed it"))
	g.Expect(late.ask(t, Add, "pod")).To(HavePrefix("refused: "))
	g.Expect(late.mustStatus(t).NodeID).To(BeNumerically("==", 1), "it is the ID of the old node")

	old.join(t)
	kept(t, was)
	store.mustHold(t, map[*member]uint32{old: 1})
	g.Eventually(func() bool { return late.agent.hasEnded() }, healing, 20*time.Millisecond).Should(BeTrue(), "its ID was taken back: it ends, and its supervisor starts it again")
	late.change(t, "quarantine: 1h", "quarantine: 0s")
	late.join(t)
	store.mustHold(t, map[*member]uint32{old: 1, late: 2})
	g.Expect(late.ask(t, Add, "pod")).To(HavePrefix("10.1.0."))
	g.Expect(late.ask(t, Add, "pod")).NotTo(Equal(was[old]))
}
