// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// The node's own addresses are taken before any pod can have them.
func TestTheNodesOwnAddressesAreTakenFirst(t *testing.T) {
	g := NewWithT(t)
	n := running(t, dual, 5)
	var own []string
	for _, l := range n.Ledger.Leases() {
		g.Expect(l.Purpose).To(Equal(ledger.ForInfra))
		own = append(own, l.Pool+" "+l.Addr.String()+" "+l.Key.IfName)
	}
	g.Expect(own).To(ConsistOf(
		ipam.PodPool+" 10.1.5.1 gateway", ipam.PodPool+" 10.1.5.254 natloopback",
		ipam.PodPool+" fd00:1:0:5::1 gateway", ipam.PodPool+" fd00:1:0:5:ffff:ffff:ffff:fffe natloopback",
		ipam.HostPool+" 172.30.5.1 vpp", ipam.HostPool+" 172.30.5.2 linux",
		ipam.HostPool+" fd00:2:0:5::1 vpp", ipam.HostPool+" fd00:2:0:5::2 linux"))
	n.sound()
}

// An own address that a pod reports and that is not leased is not allocated.
func TestUnknownAddressesInUseAreQuarantined(t *testing.T) {
	for _, c := range []struct {
		name      string
		addresses []string
		change    func(*kv.Pod)
		want      []string
	}{
		{"a running pod's", []string{"10.1.5.2"}, nil, []string{"10.1.5.2"}},
		{"a pending pod's", []string{"10.1.5.2"}, func(p *kv.Pod) { p.Phase = "Pending" }, []string{"10.1.5.2"}},
		{"as an IPv6 address with an IPv4 one in it", []string{"::ffff:10.1.5.2"}, nil, []string{"10.1.5.2"}},
		{"several of one pod", []string{"10.1.5.2", "10.1.5.9"}, nil, []string{"10.1.5.2", "10.1.5.9"}},
		{"of the host's network", []string{"10.1.5.2"}, func(p *kv.Pod) { p.HostNetwork = true }, nil},
		{"of a pod that succeeded", []string{"10.1.5.2"}, func(p *kv.Pod) { p.Phase = "Succeeded" }, nil},
		{"of a pod that failed", []string{"10.1.5.2"}, func(p *kv.Pod) { p.Phase = "Failed" }, nil},
		{"of another node's range", []string{"10.1.6.2"}, nil, nil},
		{"outside all ranges", []string{"192.0.2.1", "2001:db8::1"}, nil, nil},
		{"none", nil, nil, nil},
		{"garbage beside a good one", []string{"10.1.5", "", "10.1.5.3"}, nil, []string{"10.1.5.3"}},
		{"the gateway's, which is known", []string{"10.1.5.1"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, defaults, 5)
			n.reports("stranger", c.change, c.addresses...)
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(Equal(c.want))
			given := n.add("p1")
			g.Expect(c.want).NotTo(ContainElement(given))
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(Equal(c.want), "and not more of them the second time")
			n.sound()
		})
	}
}

// The text of a quarantined address names its reason.
func TestQuarantineSaysWhy(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.reports("stranger", func(p *kv.Pod) { p.Uid = "uid-7" }, "10.1.5.2")
	g.Expect(n.resync()).To(Succeed())
	l, ok := n.Ledger.Lookup(ipam.PodPool, mustAddr("10.1.5.2"))
	g.Expect(ok).To(BeTrue())
	g.Expect(l.Pod).To(Equal(ledger.Pod{Namespace: "default", Name: "stranger", UID: "uid-7"}))
	g.Expect(l.Reason).To(ContainSubstring("default/stranger"))
	g.Expect(n.GetPodIP(pod("stranger"))).To(BeNil(), "it was never given to it")
}

// Pods that report the addresses they were given are as they should be.
func TestKnownAddressesAreNotQuarantined(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a, b := n.add("p1"), n.allocate("p2")
	n.reports("p1", nil, a)
	n.reports("p2", nil, b)
	n.reports("thief", nil, a)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a, b}))
	g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(BeEmpty())
}

// Absence of evidence frees nothing, whichever resync it is.
func TestAResyncForgetsNoLease(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.reports("stranger", nil, "10.1.5.9")
	g.Expect(n.resync()).To(Succeed())
	a, b := n.add("p1"), n.allocate("p2")
	n.kube = controller.KubeStateData{}
	for _, ev := range []controller.Event{
		&controller.DBResync{}, &controller.DBResync{Local: true}, &controller.HealingResync{Type: controller.AfterError}, &ipam.PodCIDRChange{},
	} {
		g.Expect(n.Resync(ev, n.kube, 2, newTxn())).To(Succeed())
		g.Expect(n.Stage.Commit(t.Context())).To(Succeed())
		g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a, b}), ev.GetName())
		g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(Equal([]string{"10.1.5.9"}), ev.GetName())
	}
}

// The hundredth resync costs what the second did: nothing.
func TestAResyncThatChangesNothingWritesNothing(t *testing.T) {
	for name, conf := range map[string]string{"derived": dual, "external": external, "static": "cadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/28]}"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, conf, 5)
			n.podCIDRs("10.1.5.0/24")
			n.reports("stranger", nil, "10.1.5.77", "10.9.0.7")
			g.Expect(n.resync()).To(Succeed())
			n.add("p1")
			n.reports("p1", nil, "10.1.5.2")
			commits, leases := n.journal.Commits(), fmt.Sprint(n.Ledger.Leases())
			for range 100 {
				g.Expect(n.resync()).To(Succeed())
			}
			g.Expect(n.journal.Commits()).To(Equal(commits))
			g.Expect(fmt.Sprint(n.Ledger.Leases())).To(Equal(leases))
			n.sound()
		})
	}
}

// A resync applies everything or nothing, and the next one repairs it.
func TestAResyncIsAllOrNothing(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	g.Expect(n.Resync(&controller.DBResync{}, n.kube, 1, newTxn())).To(Succeed())
	n.Stage.Undo()
	g.Expect(n.Ledger.Leases()).To(BeEmpty())
	_, err := n.AllocatePodIP(pod("p1"), "", "")
	g.Expect(err).To(HaveOccurred())
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.allocate("p1")).To(Equal("10.1.5.2"))
	n.sound()
}

// A restart finds everything in the journal, before the first resync.
func TestARestart(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.reports("stranger", nil, "10.1.5.9")
	g.Expect(n.resync()).To(Succeed())
	a := n.add("p1")
	before := fmt.Sprint(n.Ledger.Leases())
	n.start(defaults)
	g.Expect(fmt.Sprint(n.Ledger.Leases())).To(Equal(before))
	commits := n.journal.Commits()
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.journal.Commits()).To(Equal(commits))
	again := add("p1")
	_, err := n.update(again)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Addresses[0].Addr().String()).To(Equal(a))
	g.Expect(n.add("p2")).NotTo(BeElementOf(a, "10.1.5.9"))
}

// A reboot ends the sandboxes, and nothing else.
func TestAReboot(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a, b := n.add("p1"), n.allocate("p2")
	n.boot = "boot 2"
	n.start(defaults)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(Equal([]string{a}))
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{b}))
	g.Expect(n.leases(ledger.ForInfra, ledger.Held)).To(HaveLen(2))
	g.Expect(n.add("p1")).NotTo(BeElementOf(a, b))
}

// The node has another ID, or the cluster other networks: live pods keep what they have.
func TestTheNodesSubnetsMove(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a := n.add("p1")
	n.nodes.id = 6
	n.start(defaults)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.blocks()).To(Equal("10.1.5.0/24 draining, 10.1.6.0/24 active"))
	g.Expect(n.add("p2")).To(Equal("10.1.6.2"))
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a, "10.1.6.2"}))
	n.reports("stranger", nil, "10.1.5.9")
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(Equal([]string{"10.1.5.9"}), "the old block is still ours")
	n.sound()
}

// An unknown source of blocks is an error that names it.
func TestAnUnknownSourceOfBlocks(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.ContivConf = elsewhere{n.ContivConf}
	err := n.resync()
	g.Expect(errors.Is(err, controller.ErrFatal)).To(BeTrue())
	g.Expect(err).To(MatchError(ContainSubstring(`"elsewhere"`)))
}

// elsewhere is a configuration that an older agent cannot know.
type elsewhere struct{ contivconf.API }

func (elsewhere) PodBlocks() contivconf.PodBlocks { return "elsewhere" }

func TestAResyncPutsNothingSouthbound(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	n.put(kubestate.Pods, "node/node-a/pod/odd", &kv.Node{Name: "not a pod"})
	x := newTxn()
	g.Expect(n.Resync(&controller.DBResync{}, n.kube, 1, x)).To(Succeed())
	g.Expect(x.values).To(BeEmpty())
	g.Expect(x.followUps).To(BeEmpty())
}
