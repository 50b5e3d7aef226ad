// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// A resized block with the same first address has the gateway of the old one. No pod
// uses that, so the node must be able to open the new block.
func TestABlockIsResizedInPlace(t *testing.T) {
	for _, c := range []struct{ name, before, after string }{
		{"smaller", "10.9.0.0/24", "10.9.0.0/25"},
		{"larger", "10.9.0.0/24", "10.9.0.0/23"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, "cadastre: {podBlocks: static, staticPodCIDRs: ["+c.before+"]}", 5)
			n.start("cadastre: {podBlocks: static, staticPodCIDRs: [" + c.after + "]}")
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.PodSubnetThisNode().String()).To(Equal(c.after))
		})
	}
}

// A reboot has ended a sandbox, and its pod, whose status is of before the reboot, still
// reports the sandbox's address. That address is not in unknown use: it is known whose it
// was. In quarantine it would be lost for good, at every reboot.
func TestAfterARebootOldStatusesQuarantineNothing(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a := n.add("p1")
	n.reports("p1", nil, a)
	n.boot = "boot 2"
	n.start(defaults)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(BeEmpty())
	g.Expect(n.leases(ledger.ForPod, ledger.Cooling)).To(Equal([]string{a}))
}

// The same for a resync between a pod's DEL and the end of its object.
func TestAResyncAfterADeleteQuarantinesNothing(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	a := n.add("p1")
	n.reports("p1", nil, a)
	n.del("p1")
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForPod, ledger.Quarantined)).To(BeEmpty())
}

// One bad object must not end the agent, which has leases to serve.
func TestABadPodCIDRIsNotFatal(t *testing.T) {
	for name, cidr := range map[string]string{"not a network": "10.1.5.0", "no room for a pod": "10.1.5.0/31"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, external, 5)
			n.podCIDRs(cidr)
			err := n.resync()
			g.Expect(errors.Is(err, controller.ErrFatal)).To(BeFalse(), "%v", err)
		})
	}
}

// A pod CIDR of a family that is not configured changes nothing, so it is not a
// change, however often another detail of the node changes.
func TestAPodCIDROfAnUnusedFamilyChangesNothing(t *testing.T) {
	g := NewWithT(t)
	n := assigned(t, "10.1.77.0/24", "fd00:1:0:77::/64")
	follow, err := n.update(now(thisNode, "10.1.77.0/24", "fd00:1:0:77::/64"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty())
}

// Updates must end where a resync of the final state ends: here without a pod
// CIDR, for a node that does not wait for one.
func TestThePodCIDRGoesFromANodeThatDoesNotWait(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, impatient, 5)
	n.podCIDRs("10.1.77.0/24")
	g.Expect(n.resync()).To(Succeed())
	delete(n.kube[kubestate.Nodes], kv.NodeKey(thisNode))
	follow, err := n.update(&nodesync.NodeUpdate{NodeName: thisNode, NewState: &nodesync.Node{ID: 5, Name: thisNode}})
	g.Expect(err).NotTo(HaveOccurred())
	for range follow { // a PodCIDRChange
		g.Expect(n.resync()).To(Succeed())
	}
	byUpdates := n.PodSubnetThisNode().String()
	g.Expect(n.resync()).To(Succeed())
	g.Expect(byUpdates).To(Equal(n.PodSubnetThisNode().String()))
}

// A subnet that is not known yet is an error, not a nil that a caller dereferences.
func TestOtherNodesSubnetsBeforeTheFirstResync(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	_, err := n.PodSubnetOtherNode(7)
	g.Expect(err).To(HaveOccurred(), "as NodeIPAddress and VxlanIPAddress have it")
	_, err = n.HostInterconnectSubnetOtherNode(7)
	g.Expect(err).To(HaveOccurred())
}

// A plugin that asks, while the loop handles an AddPod, for the address of the
// very pod must not hang the loop: "may be called from anywhere".
func TestAllocatingForThePodThatIsBeingAdded(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	ev := add("p1")
	n.sandboxes[ev.Pod] = ev.Key
	_, err := n.Update(ev, newTxn())
	g.Expect(err).NotTo(HaveOccurred())
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = n.AllocatePodIP(ev.Pod, "", "")
	}()
	hangs := false
	select {
	case <-answered:
	case <-time.After(500 * time.Millisecond):
		hangs = true
	}
	n.Stage.Undo() // lets it go
	<-answered
	g.Expect(hangs).To(BeFalse())
}
