// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// external configures a node whose pod subnet another component assigns.
const (
	external  = "ipamConfig: {useExternalIPAM: true}"
	impatient = "ipamConfig: {useExternalIPAM: true}\ncadastre: {waitForPodCIDR: false}"
)

// assigned returns a node with pod CIDRs from another component.
func assigned(t *testing.T, cidrs ...string) *node {
	t.Helper()
	n := newNode(t, external, 5)
	n.podCIDRs(cidrs...)
	n.g.Expect(n.resync()).To(Succeed())
	return n
}

// now is a NodeUpdate to these pod CIDRs.
func now(name string, cidrs ...string) *nodesync.NodeUpdate {
	ev := &nodesync.NodeUpdate{NodeName: name, NewState: &nodesync.Node{ID: 5, Name: name}}
	for _, c := range cidrs {
		ev.NewState.PodCIDRs = append(ev.NewState.PodCIDRs, netip.MustParsePrefix(c))
	}
	return ev
}

func TestAnExternalAddressIsRecordedAndChecked(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       string
		is         error
		saying     string
	}{
		{name: "as published", data: `{"version":"4","address":"10.1.77.9/24","gateway":"10.1.77.1"}`, want: "10.1.77.9"},
		{name: "without a version", data: `{"address":"10.1.77.9/24"}`, want: "10.1.77.9"},
		{name: "of another node", data: `{"address":"10.1.78.9/24"}`, is: ledger.ErrOutside, saying: "10.1.78.9"},
		{name: "of the wrong family", data: `{"version":"6","address":"10.1.77.9/24"}`, saying: `version "6"`},
		{name: "of a family without a block", data: `{"version":"6","address":"fd00::9/64"}`, is: ledger.ErrOutside, saying: "fd00::9"},
		{name: "another pod's", data: `{"address":"10.1.77.2/24"}`, is: ledger.ErrTaken, saying: "default/p0"},
		{name: "the gateway", data: `{"address":"10.1.77.1/24"}`, is: ledger.ErrTaken, saying: "10.1.77.1"},
		{name: "the NAT loopback", data: `{"address":"10.1.77.254/24"}`, is: ledger.ErrTaken, saying: "10.1.77.254"},
		{name: "the network", data: `{"address":"10.1.77.0/24"}`, is: ledger.ErrOutside, saying: "10.1.77.0"},
		{name: "without a mask", data: `{"address":"10.1.77.9"}`, saying: `"10.1.77.9"`},
		{name: "without an address", data: `{}`, saying: "not an address"},
		{name: "no JSON", data: `10.1.77.9/24`, saying: "error by unmarshalling external IPAM result: "},
		{name: "not even closed", data: `{"address":"10.1.77.9/24"`, saying: "error by unmarshalling external IPAM result: "},
		{name: "JSON of another type", data: `{"address":17}`, saying: "error by unmarshalling external IPAM result: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := assigned(t, "10.1.77.0/24")
			g.Expect(n.allocate("p0")).To(Equal("10.1.77.2"))
			ip, err := n.AllocatePodIP(pod("p1"), "host-local", c.data)
			if c.want == "" {
				g.Expect(err).To(MatchError(And(ContainSubstring(c.saying), ContainSubstring("default/p1"))))
				g.Expect(c.is == nil || errors.Is(err, c.is)).To(BeTrue(), "%v", err)
				g.Expect(ip).To(BeNil())
				g.Expect(n.GetPodIP(pod("p1"))).To(BeNil())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ip.String()).To(Equal(c.want))
			g.Expect(n.GetPodIP(pod("p1")).String()).To(Equal(c.want + "/32"))
			again, err := n.AllocatePodIP(pod("p1"), "host-local", c.data)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(again.String()).To(Equal(c.want))
			n.sound()
		})
	}
}

// Without external IPAM the result of another plugin does not count.
func TestExternalDataIsForExternalIPAM(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	ip, err := n.AllocatePodIP(pod("p1"), "host-local", "garbage")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(ip.String()).To(Equal("10.1.5.2"))
}

func TestNoPodCIDRYet(t *testing.T) {
	g := NewWithT(t)
	n := running(t, external, 5)
	g.Expect(n.Pending()).To(ContainSubstring(thisNode))
	g.Expect(n.PodSubnetThisNode()).To(BeNil())
	g.Expect(n.PodGatewayIP()).To(BeNil())
	g.Expect(n.NatLoopbackIP()).To(BeNil())
	g.Expect(n.HostInterconnectIPInVPP().String()).To(Equal("172.30.5.1"), "which needs no pod CIDR")
	_, err := n.AllocatePodIP(pod("p1"), "", "")
	g.Expect(err).To(MatchError(ContainSubstring("podCIDRs")))
	_, err = n.AllocatePodIP(pod("p1"), "host-local", `{"address":"10.1.5.9/24"}`)
	g.Expect(err).To(HaveOccurred(), "no block contains the address")
	_, err = n.update(add("p1"))
	g.Expect(err).To(MatchError(ContainSubstring("podCIDRs")))
	g.Expect(n.Ledger.ByKey(key("p1"))).To(BeEmpty())
}

// A pod CIDR that cannot be is none, and says why; what is there goes on.
func TestInvalidPodCIDRs(t *testing.T) {
	for name, c := range map[string]struct{ cidr, saying string }{
		"no network":                 {"10.1.5.0", `"10.1.5.0"`},
		"no room for a pod":          {"10.1.5.0/31", "no room"},
		"the VXLAN network":          {"192.168.30.128/25", "vxlanCIDR"},
		"around the nodes' network":  {"192.168.0.0/16", "nodeInterconnectCIDR"},
		"part of the VPP-host links": {"172.30.7.0/24", "vppHostSubnetCIDR"},
		"part of the services":       {"10.97.0.0/24", "serviceCIDR"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := assigned(t, "10.1.77.0/24")
			a := n.add("p1")
			n.podCIDRs(c.cidr)
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.Pending()).To(And(ContainSubstring(c.saying), ContainSubstring(thisNode)))
			g.Expect(n.PodSubnetThisNode()).To(BeNil())
			_, err := n.update(add("p2"))
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))
			g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a}))
			n.podCIDRs("10.1.88.0/24")
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.add("p2")).To(Equal("10.1.88.2"))
		})
	}
}

// The new block's gateway is a live pod's address: the pod keeps it, no other pod
// gets it after it, and then it is the gateway's.
func TestAPodHasTheNewGateway(t *testing.T) {
	g := NewWithT(t)
	n := assigned(t, "10.1.77.0/24")
	for _, wanted := range []string{"10.1.77.129", "10.1.77.254"} {
		_, err := n.update(add("p"+wanted, wanted))
		if wanted == "10.1.77.254" {
			g.Expect(err).To(MatchError(ledger.ErrTaken), "the NAT loopback of both blocks")
		} else {
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	n.podCIDRs("10.1.77.128/25")
	for range 3 {
		g.Expect(n.resync()).To(Succeed())
		g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{"10.1.77.129"}))
	}
	for i := range 124 {
		g.Expect(n.add(fmt.Sprint("q", i))).NotTo(BeElementOf("10.1.77.129", "10.1.77.254"))
	}
	n.del("p10.1.77.129")
	_, err := n.update(add("one too many"))
	g.Expect(err).To(MatchError(ledger.ErrExhausted), "it is not allocated again")
	n.clock.now = n.clock.now.Add(time.Hour)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.leases(ledger.ForInfra, ledger.Held)).To(ContainElement("10.1.77.129"))
	n.sound()
}

// A node that need not wait gets the subnet that follows from its ID.
func TestWithoutWaitingForThePodCIDR(t *testing.T) {
	g := NewWithT(t)
	n := running(t, impatient, 5)
	g.Expect(n.Pending()).To(BeEmpty())
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.5.0/24"))
	g.Expect(n.allocate("p1")).To(Equal("10.1.5.2"))
	follow, err := n.update(now(thisNode))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty(), "there is still none")
	follow, err = n.update(now(thisNode, "10.1.77.0/24"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(HaveLen(1))
}

// Only another value is a change; the order of the list and host bits are not.
func TestThePodCIDRChangesByValue(t *testing.T) {
	both := "ipamConfig: {useExternalIPAM: true, " + dual[len("ipamConfig: {"):]
	for _, c := range []struct {
		name, conf string
		node       string
		have, get  []string
		change     string
	}{
		{"appears", external, thisNode, nil, []string{"10.1.77.0/24"}, "10.1.77.0/24"},
		{"appears with host bits", external, thisNode, nil, []string{"10.1.77.9/24"}, "10.1.77.0/24"},
		{"stays", external, thisNode, []string{"10.1.77.0/24"}, []string{"10.1.77.0/24"}, ""},
		{"stays, with host bits", external, thisNode, []string{"10.1.77.0/24"}, []string{"10.1.77.1/24"}, ""},
		{"stays none", external, thisNode, nil, nil, ""},
		{"is another", external, thisNode, []string{"10.1.77.0/24"}, []string{"10.1.78.0/24"}, "10.1.78.0/24"},
		{"is larger", external, thisNode, []string{"10.1.78.0/24"}, []string{"10.1.78.0/23"}, "10.1.78.0/23"},
		{"goes", external, thisNode, []string{"10.1.77.0/24"}, nil, "<none>"},
		{"of another node", external, "node-b", []string{"10.1.77.0/24"}, []string{"10.1.78.0/24"}, ""},
		{"both families, in another order", both, thisNode, []string{"10.1.77.0/24", "fd00:1:0:77::/64"}, []string{"fd00:1:0:77::/64", "10.1.77.0/24"}, ""},
		{"the second family appears", both, thisNode, []string{"10.1.77.0/24"}, []string{"10.1.77.0/24", "fd00:1:0:77::/64"}, "10.1.77.0/24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, c.conf, 5)
			n.podCIDRs(c.have...)
			g.Expect(n.resync()).To(Succeed())
			follow, err := n.update(now(c.node, c.get...))
			g.Expect(err).NotTo(HaveOccurred())
			if c.change == "" {
				g.Expect(follow).To(BeEmpty())
				return
			}
			g.Expect(follow).To(HaveLen(1))
			g.Expect(follow[0].String()).To(Equal("Pod CIDR Change\n* LocalPodCIDR: " + c.change))
			g.Expect(n.journal.Commits()).To(BeNumerically("<=", 2), "the change itself is for the resync")
			g.Expect(follow[0].(*ipam.PodCIDRChange).Node.PodCIDRs).To(HaveLen(len(c.get)), "of all families")
		})
	}
}

// The resync of a PodCIDRChange derives the subnets from the event, also if the cluster
// has another state by then, which has an event of its own.
func TestPodCIDRChangeCarriesTheSubnets(t *testing.T) {
	g := NewWithT(t)
	n := running(t, impatient, 5)
	follow, err := n.update(now(thisNode, "10.1.77.0/24"))
	g.Expect(err).NotTo(HaveOccurred())
	n.podCIDRs("10.1.78.0/24")
	g.Expect(n.resyncWith(follow[0])).To(Succeed())
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.77.0/24"))
	g.Expect(n.resyncWith(&ipam.PodCIDRChange{})).To(Succeed())
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.78.0/24"), "an event without a node")
}

func TestPodCIDRChange(t *testing.T) {
	g := NewWithT(t)
	_, cidr, err := net.ParseCIDR("10.1.5.0/24")
	g.Expect(err).NotTo(HaveOccurred())
	ev := &ipam.PodCIDRChange{LocalPodCIDR: cidr}
	g.Expect(ev.GetName()).To(Equal("Pod CIDR Change"))
	g.Expect(ev.String()).To(Equal("Pod CIDR Change\n* LocalPodCIDR: 10.1.5.0/24"))
	g.Expect(ev.Method()).To(Equal(controller.UpstreamResync))
	g.Expect(ev.IsBlocking()).To(BeFalse())
	g.Expect(func() { ev.Done(nil) }).NotTo(Panic())
	g.Expect((&ipam.PodCIDRChange{}).String()).NotTo(ContainSubstring("%!"))
}

// The old block drains: no pod loses an address, new ones come from the new
// block, and when its last lease is gone the old block is, too.
func TestTheNodeGetsAnotherPodCIDR(t *testing.T) {
	g := NewWithT(t)
	n := assigned(t, "10.1.77.0/24")
	a, b := n.add("p1"), n.add("p2")
	g.Expect([]string{a, b}).To(Equal([]string{"10.1.77.2", "10.1.77.3"}))
	n.podCIDRs("10.1.88.0/24")
	g.Expect(n.resync()).To(Succeed())

	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.88.0/24"))
	g.Expect(n.PodGatewayIP().String()).To(Equal("10.1.88.1"))
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a, b}))
	again := add("p1")
	_, err := n.update(again)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(again.Addresses)).To(Equal("[10.1.77.2/24]"), "it keeps its address")
	g.Expect(n.add("p3")).To(Equal("10.1.88.2"))
	g.Expect(n.blocks()).To(Equal("10.1.77.0/24 draining, 10.1.88.0/24 active"))

	n.del("p1")
	g.Expect(n.add("p4")).To(Equal("10.1.88.3"), "nothing is allocated from a draining block")
	n.del("p2")
	g.Expect(n.blocks()).To(Equal("10.1.88.0/24 active"))
	n.sound()
	n.start(external)
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.blocks()).To(Equal("10.1.88.0/24 active"), "after a restart, too")
}

// The Node object was deleted and made again: while there is none nothing is
// allocated, and the old block becomes active again.
func TestThePodCIDRGoesAndComesBack(t *testing.T) {
	g := NewWithT(t)
	n := assigned(t, "10.1.77.0/24")
	a := n.add("p1")
	n.podCIDRs()
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.Pending()).NotTo(BeEmpty())
	_, err := n.update(add("p2"))
	g.Expect(err).To(MatchError(ContainSubstring("waiting for")))
	again := add("p1")
	_, err = n.update(again)
	g.Expect(err).NotTo(HaveOccurred(), "what it has it keeps")
	g.Expect(again.Addresses[0].Addr().String()).To(Equal(a))
	n.podCIDRs("10.1.77.0/24")
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.Pending()).To(BeEmpty())
	g.Expect(n.add("p2")).To(Equal("10.1.77.3"))
	n.sound()
}

// blocks are the blocks of the pod pool.
func (n *node) blocks() string {
	s := ""
	for _, b := range n.Ledger.Stats() {
		if b.Pool == ipam.PodPool {
			s += ", " + b.Block.String() + " " + b.State.String()
		}
	}
	return s[min(2, len(s)):]
}

// The pod subnets of other nodes are those of their Node objects, not those of their IDs.
func TestThePodSubnetsOfOtherNodes(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, external, 5)
	n.podCIDRs("10.1.77.0/24")
	n.nodes.all["node-b"] = &nodesync.Node{ID: 7, Name: "node-b", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.99.0/24")}}
	n.nodes.all["node-c"] = &nodesync.Node{ID: 8, Name: "node-c"}
	g.Expect(n.resync()).To(Succeed())
	g.Expect(network(n.PodSubnetOtherNode(7))).To(Equal("10.1.99.0/24"))
	g.Expect(network(n.PodSubnetOtherNode(8))).To(ContainSubstring("node 8"))
	g.Expect(network(n.PodSubnetOtherNode(9))).To(HavePrefix("error: "))

	n.nodes.all["node-c"] = &nodesync.Node{ID: 8, Name: "node-c", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.98.0/24")}}
	follow, err := n.update(&nodesync.NodeUpdate{NodeName: "node-c", NewState: n.nodes.all["node-c"]})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty())
	g.Expect(network(n.PodSubnetOtherNode(8))).To(Equal("10.1.98.0/24"))
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.1.77.0/24"))
}

func TestStaticBlocks(t *testing.T) {
	g := NewWithT(t)
	n := running(t, "cadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/28]}", 5)
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("10.9.0.0/28"))
	g.Expect(n.PodGatewayIP().String()).To(Equal("10.9.0.1"))
	g.Expect(n.NatLoopbackIP().String()).To(Equal("10.9.0.14"))
	g.Expect(n.allocate("p1")).To(Equal("10.9.0.2"))
	g.Expect(n.HostInterconnectIPInVPP().String()).To(Equal("172.30.5.1"))
}
