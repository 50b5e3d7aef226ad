// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

func TestEventsThatAreHandled(t *testing.T) {
	change := &controller.KubeStateChange{Resource: kubestate.Pods}
	for _, c := range []struct {
		name             string
		event            controller.Event
		derived, outside bool
	}{
		{"database resync", &controller.DBResync{}, true, true},
		{"healing", &controller.HealingResync{Type: controller.AfterError}, true, true},
		{"pod CIDR change", &ipam.PodCIDRChange{}, true, true},
		{"add pod", add("p1"), true, true},
		{"delete pod", &podmanager.DeletePod{}, true, true},
		{"node update", &nodesync.NodeUpdate{NodeName: "another"}, false, true},
		{"update of this node", &nodesync.NodeUpdate{NodeName: thisNode}, true, true},
		{"change of the cluster's state", change, false, false},
		{"shutdown", &controller.Shutdown{}, false, false},
	} {
		g := NewWithT(t)
		g.Expect(newNode(t, defaults, 5).HandlesEvent(c.event)).To(Equal(c.derived), c.name)
		g.Expect(newNode(t, external, 5).HandlesEvent(c.event)).To(Equal(c.outside), c.name)
	}
}

func TestAddPodFillsItsAddresses(t *testing.T) {
	g := NewWithT(t)
	n := running(t, dual, 5)
	ev := add("p1")
	ev.UID = "uid-1"
	_, err := n.update(ev)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(ev.Addresses)).To(Equal("[10.1.5.2/24 fd00:1:0:5::2/64]"))
	g.Expect(ev.Fresh).To(BeTrue())
	leases := n.Ledger.ByKey(key("p1"))
	g.Expect(leases).To(HaveLen(2))
	for _, l := range leases {
		g.Expect(l.Pod).To(Equal(ledger.Pod{Namespace: "default", Name: "p1", UID: "uid-1"}))
		g.Expect(l.Generation).To(Equal(ev.Generation))
		g.Expect(l.State).To(Equal(ledger.Held))
	}
}

func TestARepeatedAddPodHasTheSameAddress(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	first := n.add("p1")
	commits := n.journal.Commits()
	again := add("p1")
	_, err := n.update(again)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Fresh).To(BeFalse())
	g.Expect(again.Addresses[0].Addr().String()).To(Equal(first))
	g.Expect(n.journal.Commits()).To(Equal(commits))
	g.Expect(n.add("p2")).NotTo(Equal(first))
}

// A staged claim is not visible before it is committed.
func TestAddPodOnlyStages(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	commits := n.journal.Commits()
	_, err := n.Update(add("p1"), newTxn())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.journal.Commits()).To(Equal(commits))
	g.Expect(n.Ledger.ByKey(key("p1"))).To(BeEmpty())
	g.Expect(n.Stage.Empty()).To(BeFalse())
	n.Stage.Undo()
	g.Expect(n.add("p2")).To(Equal("10.1.5.3"), "the next one in order, for any outcome of the first")
}

func TestAddPodIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		ev     func() *podmanager.AddPod
		is     error
		saying string
	}{
		{"a pool of another purpose", func() *podmanager.AddPod { ev := add("x"); ev.Pool = ipam.HostPool; return ev }, ledger.ErrNoPool, ipam.HostPool},
		{"an unknown pool", func() *podmanager.AddPod { ev := add("x"); ev.Pool = "blue"; return ev }, ledger.ErrNoPool, "blue"},
		{"an address outside all blocks", func() *podmanager.AddPod { return add("x", "10.1.6.9") }, ledger.ErrOutside, "10.1.6.9"},
		{"the gateway", func() *podmanager.AddPod { return add("x", "10.1.5.1") }, ledger.ErrTaken, "10.1.5.1"},
		{"the NAT loopback", func() *podmanager.AddPod { return add("x", "10.1.5.254") }, ledger.ErrTaken, "10.1.5.254"},
		{"the broadcast address", func() *podmanager.AddPod { return add("x", "10.1.5.255") }, ledger.ErrOutside, "10.1.5.255"},
		{"another pod's address", func() *podmanager.AddPod { return add("x", "10.1.5.2") }, ledger.ErrTaken, "default/p1"},
		{"one of two that is taken", func() *podmanager.AddPod { return add("x", "10.1.5.77", "10.1.5.2") }, ledger.ErrTaken, "10.1.5.2"},
		{"another address than it has", func() *podmanager.AddPod { return add("p1", "10.1.5.77") }, ledger.ErrKeyHeld, "10.1.5.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, defaults, 5)
			n.add("p1")
			commits := n.journal.Commits()
			_, err := n.update(c.ev())
			g.Expect(err).To(MatchError(c.is))
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
			g.Expect(n.journal.Commits()).To(Equal(commits))
			g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{"10.1.5.2"}))
			n.sound()
		})
	}
}

func TestAddPodWithAWantedAddress(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	ev := add("p1", "10.1.5.77")
	_, err := n.update(ev)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(ev.Addresses)).To(Equal("[10.1.5.77/24]"))
	again := add("p1", "10.1.5.77")
	_, err = n.update(again)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Fresh).To(BeFalse())
}

func TestDeletePodFreesItsOwnLeaseOnly(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a, b := n.add("p1"), n.add("p2")
	g.Expect(n.del("unknown")).To(BeEmpty())
	g.Expect(fmt.Sprint(n.del("p1"))).To(Equal("[" + a + "]"))
	g.Expect(n.del("p1")).To(BeEmpty(), "it is gone already")
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{b}))

	old := n.Ledger.ByKey(key("p2"))[0].Generation
	n.del("p2")
	n.add("p2")
	late := &podmanager.DeletePod{Key: key("p2"), Generation: old}
	_, err := n.update(late)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(late.Freed).To(BeEmpty(), "the claim that it means is over")
	g.Expect(n.Ledger.ByKey(key("p2"))).To(HaveLen(1))
}

// A sandbox of the same pod that went before must not take the new one's address along.
func TestALateDeleteOfAnOldSandbox(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	for _, container := range []string{"old", "new"} {
		ev := add("web-0")
		ev.Key = key(container)
		_, err := n.update(ev)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(n.del("old")).To(HaveLen(1))
	g.Expect(n.Ledger.ByKey(key("new"))).To(HaveLen(1))
}

// What an event took is given back when it is reverted, and nothing else.
func TestRevert(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name      string
		before    bool // the attachment has an address already
		committed bool // the event's commit has succeeded
		held      []string
		cooling   []string
	}{
		{"before the commit", false, false, nil, nil},
		{"after the commit", false, true, nil, []string{"10.1.5.2"}},
		{"a repetition, before the commit", true, false, []string{"10.1.5.2"}, nil},
		{"a repetition, after the commit", true, true, []string{"10.1.5.2"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, defaults, 5)
			if c.before {
				n.add("p1")
			}
			ev := add("p1")
			_, err := n.Update(ev, newTxn())
			g.Expect(err).NotTo(HaveOccurred())
			if c.committed {
				g.Expect(n.Stage.Commit(ctx)).To(Succeed())
			}
			g.Expect(n.Revert(ev)).To(Succeed())
			g.Expect(n.Stage.Commit(ctx)).To(Succeed())
			g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal(c.held))
			g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(Equal(c.cooling))
			g.Expect(n.Revert(ev)).To(Succeed(), "reverting twice gives nothing more back")
			g.Expect(n.Stage.Empty()).To(BeTrue())
			n.sound()
		})
	}
}

// The attachment was deleted and added again before a late revert, which must not release the new lease.
func TestARevertKnowsItsClaim(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	ev := add("p1")
	_, err := n.update(ev)
	g.Expect(err).NotTo(HaveOccurred())
	n.del("p1")
	now := n.add("p1")
	g.Expect(n.Revert(ev)).To(Succeed())
	g.Expect(n.Stage.Commit(context.Background())).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{now}))
}

func TestReverting(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	n.add("p1")
	for _, ev := range []controller.Event{&podmanager.DeletePod{Key: key("p1")}, &controller.DBResync{}, &nodesync.NodeUpdate{}} {
		g.Expect(n.Revert(ev)).To(Succeed())
		g.Expect(n.Stage.Empty()).To(BeTrue(), ev.GetName())
	}
}
