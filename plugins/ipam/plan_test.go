// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// nets is a configuration of networks, with some of them changed.
func nets(change map[string]string) string {
	keys := map[string]string{
		"podSubnetCIDR": "1.2.128.0/17", "podSubnetOneNodePrefixLen": "29", "vppHostSubnetCIDR": "2.3.192.0/18", "vppHostSubnetOneNodePrefixLen": "30",
		"nodeInterconnectCIDR": "3.4.5.192/26", "vxlanCIDR": "4.5.6.192/26",
	}
	for k, v := range change {
		keys[k] = v
	}
	conf := "ipamConfig:\n"
	for k, v := range keys {
		if strings.Trim(v, "0123456789") != "" {
			v = strconv.Quote(v)
		}
		conf += "  " + k + ": " + v + "\n"
	}
	return conf
}

// defaults is the configuration that says nothing.
const defaults = "{}"

// fourPods has room for four pods a node.
func fourPods() string { return nets(nil) }

// address writes an address with the network that it was returned with.
func address(ip net.IP, network *net.IPNet, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return ip.String() + " of " + network.String()
}

func network(n *net.IPNet, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return n.String()
}

// The numbers that everyone agrees on.
func TestNodeFiveWithTheDefaults(t *testing.T) {
	g := NewWithT(t)
	n := running(t, defaults, 5)
	other7, err7 := n.PodSubnetOtherNode(7)
	host7, errHost7 := n.HostInterconnectSubnetOtherNode(7)
	for _, c := range []struct{ what, got, want string }{
		{"pods of all nodes", n.PodSubnetAllNodes().String(), "10.1.0.0/16"},
		{"pods of this node", n.PodSubnetThisNode().String(), "10.1.5.0/24"},
		{"pods of another node", network(other7, err7), "10.1.7.0/24"},
		{"gateway", n.PodGatewayIP().String(), "10.1.5.1"},
		{"NAT loopback", n.NatLoopbackIP().String(), "10.1.5.254"},
		{"VPP-host links of all nodes", n.HostInterconnectSubnetAllNodes().String(), "172.30.0.0/16"},
		{"VPP-host link of this node", n.HostInterconnectSubnetThisNode().String(), "172.30.5.0/24"},
		{"VPP-host link of another node", network(host7, errHost7), "172.30.7.0/24"},
		{"VPP end", n.HostInterconnectIPInVPP().String(), "172.30.5.1"},
		{"Linux end", n.HostInterconnectIPInLinux().String(), "172.30.5.2"},
		{"node", address(n.NodeIPAddress(5)), "192.168.16.5 of 192.168.16.0/24"},
		{"VXLAN", address(n.VxlanIPAddress(5)), "192.168.30.5 of 192.168.30.0/24"},
		{"services", n.ServiceNetwork().String(), "10.96.0.0/12"},
		{"pending", n.Pending(), ""},
	} {
		g.Expect(c.got).To(Equal(c.want), c.what)
	}
	g.Expect(n.allocate("first")).To(Equal("10.1.5.2"))
	g.Expect(n.Nodes()).To(HaveLen(1))
	g.Expect(n.Nodes()[0].LastPod.String()).To(Equal("10.1.5.253"))
}

func TestNothingIsKnownBeforeTheFirstResync(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, defaults, 5)
	for what, ip := range map[string]net.IP{
		"gateway": n.PodGatewayIP(), "NAT loopback": n.NatLoopbackIP(), "VPP end": n.HostInterconnectIPInVPP(), "Linux end": n.HostInterconnectIPInLinux(),
	} {
		g.Expect(ip).To(BeNil(), what)
	}
	for what, network := range map[string]*net.IPNet{
		"pods": n.PodSubnetThisNode(), "all pods": n.PodSubnetAllNodes(), "host": n.HostInterconnectSubnetThisNode(),
		"all hosts": n.HostInterconnectSubnetAllNodes(), "services": n.ServiceNetwork(), "pod": n.GetPodIP(pod("p1")),
	} {
		g.Expect(network).To(BeNil(), what)
	}
	_, _, err := n.NodeIPAddress(5)
	g.Expect(err).To(MatchError(ContainSubstring("no resync yet")))
	_, _, err = n.VxlanIPAddress(5)
	g.Expect(err).To(MatchError(ContainSubstring("no resync yet")))
	_, err = n.AllocatePodIP(pod("p1"), "", "")
	g.Expect(err).To(MatchError(ContainSubstring("no resync yet")))
	g.Expect(n.Pending()).To(Equal("no resync yet"))
	g.Expect(n.journal.Commits()).To(Equal(1), "the boot ID and nothing else")
}

func TestTheDefaultPluginIsAnIPAM(t *testing.T) {
	g := NewWithT(t)
	cfg, _, err := contivconf.Parse([]byte(defaults))
	g.Expect(err).NotTo(HaveOccurred())
	p := ipam.DefaultPlugin // a copy
	p.NodeSync, p.ContivConf, p.ServiceLabel = &nodes{id: 5}, contivconf.NewPlugin(cfg), label(thisNode)
	g.Expect(p.Init()).To(Succeed())
	g.Expect(p.Ledger).NotTo(BeNil())
	g.Expect(p.GetPodIP(pod("p1"))).To(BeNil())
	g.Expect(p.ReleasePodIP(pod("p1"))).To(Succeed())
	g.Expect(p.Close()).To(Succeed())
	g.Expect(ipam.DefaultPlugin.String()).To(Equal("ipam"))
}

// A row of the published test table: the addresses that follow from a node ID.
func TestPublishedRows(t *testing.T) {
	for _, c := range []struct {
		row     string
		conf    map[string]string
		id      uint32
		of      uint32
		pods    string
		host    string
		node    string
		vxlan   string
		ofNode  string
		ofVxlan string
	}{
		{row: "1", id: 1, of: 1, pods: "1.2.128.8/29", host: "2.3.192.4/30", node: "3.4.5.193 of 3.4.5.192/26", vxlan: "4.5.6.193 of 4.5.6.192/26"},
		{row: "2", id: 1, of: 5, pods: "1.2.128.40/29", host: "2.3.192.20/30", node: "3.4.5.197 of 3.4.5.192/26", vxlan: "4.5.6.197 of 4.5.6.192/26"},
		{row: "6, masked", conf: map[string]string{"podSubnetCIDR": "1.2.0.0/16", "podSubnetOneNodePrefixLen": "24"}, id: 1, of: 1,
			pods: "1.2.1.0/24", host: "2.3.192.4/30", node: "3.4.5.193 of 3.4.5.192/26", vxlan: "4.5.6.193 of 4.5.6.192/26"},
		{row: "7, masked", conf: map[string]string{"podSubnetCIDR": "1.4.0.0/14", "podSubnetOneNodePrefixLen": "22"}, id: 1, of: 1,
			pods: "1.4.4.0/22", host: "2.3.192.4/30", node: "3.4.5.193 of 3.4.5.192/26", vxlan: "4.5.6.193 of 4.5.6.192/26"},
		{row: "8, the first", conf: map[string]string{"podSubnetCIDR": "1.4.1.0/24", "podSubnetOneNodePrefixLen": "28"}, id: 1, of: 1,
			pods: "1.4.1.16/28", host: "2.3.192.4/30", node: "3.4.5.193 of 3.4.5.192/26", vxlan: "4.5.6.193 of 4.5.6.192/26"},
		{row: "8, the last", conf: map[string]string{"podSubnetCIDR": "1.4.1.0/24", "podSubnetOneNodePrefixLen": "28"}, id: 16, of: 16,
			pods: "1.4.1.0/28", host: "2.3.192.64/30", node: "3.4.5.208 of 3.4.5.192/26", vxlan: "4.5.6.208 of 4.5.6.192/26"},
		{row: "9", conf: map[string]string{"podSubnetCIDR": "1.4.0.0/17", "podSubnetOneNodePrefixLen": "28", "vxlanCIDR": "2.2.128.0/17", "nodeInterconnectCIDR": "1.1.128.0/17"},
			id: 257, of: 257, pods: "1.4.16.16/28", host: "2.3.196.4/30", node: "1.1.129.1 of 1.1.128.0/17", vxlan: "2.2.129.1 of 2.2.128.0/17"},
		{row: "14, below the gateway", conf: map[string]string{"defaultGateway": "3.4.5.194"}, id: 1, of: 1,
			pods: "1.2.128.8/29", host: "2.3.192.4/30", node: "3.4.5.193 of 3.4.5.192/26", vxlan: "4.5.6.193 of 4.5.6.192/26"},
		{row: "14, above it", conf: map[string]string{"defaultGateway": "3.4.5.194"}, id: 1, of: 2,
			pods: "1.2.128.16/29", host: "2.3.192.8/30", node: "3.4.5.195 of 3.4.5.192/26", vxlan: "4.5.6.194 of 4.5.6.192/26"},
		{row: "14, the next", conf: map[string]string{"defaultGateway": "3.4.5.194"}, id: 1, of: 3,
			pods: "1.2.128.24/29", host: "2.3.192.12/30", node: "3.4.5.196 of 3.4.5.192/26", vxlan: "4.5.6.195 of 4.5.6.192/26"},
	} {
		t.Run(c.row, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, nets(c.conf), c.id)
			pods, err := n.PodSubnetOtherNode(c.of)
			g.Expect(network(pods, err)).To(Equal(c.pods))
			host, err := n.HostInterconnectSubnetOtherNode(c.of)
			g.Expect(network(host, err)).To(Equal(c.host))
			g.Expect(address(n.NodeIPAddress(c.of))).To(Equal(c.node))
			g.Expect(address(n.VxlanIPAddress(c.of))).To(Equal(c.vxlan))
			if c.id == c.of {
				g.Expect(n.PodSubnetThisNode().String()).To(Equal(c.pods))
				g.Expect(n.HostInterconnectSubnetThisNode().String()).To(Equal(c.host))
			}
		})
	}
}

func TestRowOneEndsAndLoopback(t *testing.T) {
	g := NewWithT(t)
	n := running(t, fourPods(), 1)
	g.Expect(n.PodGatewayIP().String()).To(Equal("1.2.128.9"))
	g.Expect(n.NatLoopbackIP().String()).To(Equal("1.2.128.14"))
	g.Expect(n.HostInterconnectIPInVPP().String()).To(Equal("2.3.192.5"))
	g.Expect(n.HostInterconnectIPInLinux().String()).To(Equal("2.3.192.6"))
}

// An ID that has no subnets ends the agent: nothing that it served would be right.
func TestANodeIDThatDoesNotFitIsFatal(t *testing.T) {
	for name, c := range map[string]struct {
		conf map[string]string
		id   uint32
	}{
		"row 8, pods":   {map[string]string{"podSubnetCIDR": "1.4.1.0/24", "podSubnetOneNodePrefixLen": "28"}, 17},
		"row 10, VXLAN": {map[string]string{"vxlanCIDR": "2.2.2.128/28"}, 17},
		"row 11, nodes": {map[string]string{"nodeInterconnectCIDR": "3.3.3.0/28"}, 17},
		"no ID":         {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t, nets(c.conf), c.id)
			err := n.resync()
			g.Expect(errors.Is(err, controller.ErrFatal)).To(BeTrue(), "%v", err)
			g.Expect(n.Ledger.Leases()).To(BeEmpty())
			g.Expect(n.Pending()).NotTo(BeEmpty())
		})
	}
}

// IDs of other nodes that do not fit are an error of the question only.
func TestOtherNodesThatDoNotFit(t *testing.T) {
	g := NewWithT(t)
	n := running(t, nets(map[string]string{"vxlanCIDR": "2.2.2.128/28", "nodeInterconnectCIDR": "3.3.3.0/28"}), 1)
	for _, c := range []struct{ got, want string }{
		{address(n.VxlanIPAddress(16)), "no free address for nodeID 16"},
		{address(n.VxlanIPAddress(17)), "out of the valid range"},
		{address(n.NodeIPAddress(16)), "no free address for nodeID 16"},
		{address(n.NodeIPAddress(17)), "out of the valid range"},
		{network(n.PodSubnetOtherNode(4097)), "out of the valid range"},
		{network(n.HostInterconnectSubnetOtherNode(4097)), "out of the valid range"},
	} {
		g.Expect(c.got).To(And(HavePrefix("error: "), ContainSubstring(c.want)))
	}
}

// Every address that is free is given once, and never one that is the node's own.
func TestEachAddressOfABlockIsAllocatedOnce(t *testing.T) {
	for _, c := range []struct {
		row  string
		conf map[string]string
		pods int
	}{
		{"5", nil, 4},
		{"6", map[string]string{"podSubnetCIDR": "1.2.0.0/16", "podSubnetOneNodePrefixLen": "24"}, 252},
		{"7", map[string]string{"podSubnetCIDR": "1.4.0.0/14", "podSubnetOneNodePrefixLen": "22"}, 1020},
		{"8", map[string]string{"podSubnetCIDR": "1.4.1.0/24", "podSubnetOneNodePrefixLen": "28"}, 12},
	} {
		t.Run(c.row, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, nets(c.conf), 1)
			subnet, given := n.PodSubnetThisNode(), map[string]bool{}
			for i := range c.pods {
				ip := n.allocate(fmt.Sprint("p", i))
				g.Expect(given[ip]).To(BeFalse(), ip)
				given[ip] = true
				g.Expect(subnet.Contains(net.ParseIP(ip))).To(BeTrue(), ip)
			}
			g.Expect(given).NotTo(HaveKey(n.PodGatewayIP().String()))
			g.Expect(given).NotTo(HaveKey(n.NatLoopbackIP().String()))
			g.Expect(given).NotTo(HaveKey(subnet.IP.String()))
			_, err := n.AllocatePodIP(pod("one-too-many"), "", "")
			var full *ledger.Exhausted
			g.Expect(errors.As(err, &full)).To(BeTrue(), "%v", err)
			g.Expect([]int{full.Held, full.Infra}).To(Equal([]int{c.pods, 2}))
			g.Expect(err).To(MatchError(ContainSubstring("no IP address is free")))
			n.sound()
		})
	}
}

// Rows 15 and 17 to 22: the plan of other configurations.
func TestPlansThatTheConfigurationDecides(t *testing.T) {
	const contiv = "ipamConfig: {contivCIDR: 10.128.0.0/14, %s}"
	const v6 = `ipamConfig: {podSubnetCIDR: "%s", podSubnetOneNodePrefixLen: %d, vppHostSubnetCIDR: "fe30:f00d::/90", vppHostSubnetOneNodePrefixLen: 126,
  nodeInterconnectCIDR: "fe11:f00d::/90", vxlanCIDR: "fe20:f00d::/120", serviceCIDR: "fe40:f00d::/108"}`
	for _, c := range []struct {
		row, conf                     string
		id                            uint32
		allPods, pods, allHosts, host string
		node, vxlan                   string
	}{
		{"15", fmt.Sprintf(contiv, ""), 1, "10.128.0.0/16", "10.128.0.128/25", "10.129.0.0/16", "10.129.0.128/25",
			"10.130.0.1 of 10.130.0.0/23", "10.130.2.1 of 10.130.2.0/23"},
		{"17", "ipamConfig: {contivCIDR: 192.240.0.0/12}", 1, "192.240.0.0/16", "192.240.0.128/25", "192.241.0.0/16", "192.241.0.128/25",
			"192.242.0.1 of 192.242.0.0/23", "192.242.2.1 of 192.242.2.0/23"},
		{"18", fmt.Sprintf(contiv, "nodeInterconnectCIDR: 192.168.16.0/24"), 2, "10.128.0.0/16", "10.128.1.0/25", "10.129.0.0/16", "10.129.1.0/25",
			"192.168.16.2 of 192.168.16.0/24", "10.130.2.2 of 10.130.2.0/23"},
		{"19", fmt.Sprintf(contiv, "nodeInterconnectDHCP: true"), 2, "10.128.0.0/16", "10.128.1.0/25", "10.129.0.0/16", "10.129.1.0/25",
			"error: nodeInterconnectCIDR: network is undefined", "10.130.2.2 of 10.130.2.0/23"},
		{"20", `ipamConfig: {contivCIDR: "fe10::/64", serviceCIDR: "fd00::/108"}`, 1, "fe10::/112", "fe10::80/121", "fe10::1:0/112", "fe10::1:80/121",
			"fe10::2:1 of fe10::2:0/119", "fe10::2:201 of fe10::2:200/119"},
		{"21", fmt.Sprintf(v6, "fe10:f00d::/90", 120), 5, "fe10:f00d::/90", "fe10:f00d::500/120", "fe30:f00d::/90", "fe30:f00d::14/126",
			"fe11:f00d::5 of fe11:f00d::/90", "fe20:f00d::5 of fe20:f00d::/120"},
		{"22", fmt.Sprintf(v6, "2001::/48", 60), 1, "2001::/48", "2001:0:0:10::/60", "fe30:f00d::/90", "fe30:f00d::4/126",
			"fe11:f00d::1 of fe11:f00d::/90", "fe20:f00d::1 of fe20:f00d::/120"},
	} {
		t.Run(c.row, func(t *testing.T) {
			g := NewWithT(t)
			n := running(t, c.conf, c.id)
			g.Expect(n.PodSubnetAllNodes().String()).To(Equal(c.allPods))
			g.Expect(n.PodSubnetThisNode().String()).To(Equal(c.pods))
			g.Expect(n.HostInterconnectSubnetAllNodes().String()).To(Equal(c.allHosts))
			g.Expect(n.HostInterconnectSubnetThisNode().String()).To(Equal(c.host))
			g.Expect(address(n.NodeIPAddress(c.id))).To(Equal(c.node))
			g.Expect(address(n.VxlanIPAddress(c.id))).To(Equal(c.vxlan))
			first := n.allocate("p1")
			g.Expect(first).To(Equal(n.Nodes()[0].FirstPod.String()))
			g.Expect(n.ReleasePodIP(pod("p1"))).To(Succeed())
			g.Expect(n.GetPodIP(pod("p1"))).To(BeNil())
			n.sound()
		})
	}
}

// dual is a node with both families.
const dual = `ipamConfig: {podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}`

// Single-valued methods answer for the first family, plurals for both.
func TestDualStack(t *testing.T) {
	g := NewWithT(t)
	n := running(t, dual, 5)
	nodeIPs, err := n.NodeIPAddresses(5)
	g.Expect(err).NotTo(HaveOccurred())
	vxlans, err := n.VxlanIPAddresses(5)
	g.Expect(err).NotTo(HaveOccurred())
	otherPods, err := n.PodSubnetsOtherNode(7)
	g.Expect(err).NotTo(HaveOccurred())
	otherHosts, err := n.HostInterconnectSubnetsOtherNode(7)
	g.Expect(err).NotTo(HaveOccurred())
	ips, err := n.AllocatePodIPs(pod("p1"), "", "")
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range []struct{ what, single, plural, want string }{
		{"pods", n.PodSubnetThisNode().String(), fmt.Sprint(n.PodSubnetsThisNode()), "10.1.5.0/24 fd00:1:0:5::/64"},
		{"all pods", n.PodSubnetAllNodes().String(), fmt.Sprint(n.PodSubnetsAllNodes()), "10.1.0.0/16 fd00:1::/48"},
		{"other pods", network(n.PodSubnetOtherNode(7)), fmt.Sprint(otherPods), "10.1.7.0/24 fd00:1:0:7::/64"},
		{"gateways", n.PodGatewayIP().String(), fmt.Sprint(n.PodGatewayIPs()), "10.1.5.1 fd00:1:0:5::1"},
		{"loopbacks", n.NatLoopbackIP().String(), fmt.Sprint(n.NatLoopbackIPs()), "10.1.5.254 fd00:1:0:5:ffff:ffff:ffff:fffe"},
		{"hosts", n.HostInterconnectSubnetThisNode().String(), fmt.Sprint(n.HostInterconnectSubnetsThisNode()), "172.30.5.0/24 fd00:2:0:5::/64"},
		{"all hosts", n.HostInterconnectSubnetAllNodes().String(), fmt.Sprint(n.HostInterconnectSubnetsAllNodes()), "172.30.0.0/16 fd00:2::/48"},
		{"other hosts", network(n.HostInterconnectSubnetOtherNode(7)), fmt.Sprint(otherHosts), "172.30.7.0/24 fd00:2:0:7::/64"},
		{"VPP ends", n.HostInterconnectIPInVPP().String(), fmt.Sprint(n.HostInterconnectIPsInVPP()), "172.30.5.1 fd00:2:0:5::1"},
		{"Linux ends", n.HostInterconnectIPInLinux().String(), fmt.Sprint(n.HostInterconnectIPsInLinux()), "172.30.5.2 fd00:2:0:5::2"},
		{"services", n.ServiceNetwork().String(), fmt.Sprint(n.ServiceNetworks()), "10.96.0.0/12 fd00:5::/108"},
		{"node", nodeIPs[0].String(), fmt.Sprint(nodeIPs), "192.168.16.5/24 fd00:3::5/64"},
		{"VXLAN", vxlans[0].String(), fmt.Sprint(vxlans), "192.168.30.5/24 fd00:4::5/64"},
		{"pod", ips[0].String(), fmt.Sprint(ips), "10.1.5.2 fd00:1:0:5::2"},
		{"pod again", n.GetPodIP(pod("p1")).String(), fmt.Sprint(n.GetPodIPs(pod("p1"))), "10.1.5.2/32 fd00:1:0:5::2/128"},
	} {
		g.Expect(c.plural).To(Equal("["+c.want+"]"), c.what)
		g.Expect(c.want).To(HavePrefix(c.single+" "), c.what)
	}
}

// If IPv6 is named first it is the first family.
func TestDualStackBeginsWithTheFirstFamilyNamed(t *testing.T) {
	g := NewWithT(t)
	n := running(t, `ipamConfig: {podSubnetCIDR: "fd00:1::/48,10.1.0.0/16", podSubnetOneNodePrefixLen: 64, podSubnetOneNodePrefixLenIPv6: 24,
  vppHostSubnetCIDR: "fd00:2::/48,172.30.0.0/16", vppHostSubnetOneNodePrefixLen: 64, vppHostSubnetOneNodePrefixLenIPv6: 24,
  nodeInterconnectCIDR: "fd00:3::/64,192.168.16.0/24", vxlanCIDR: "fd00:4::/64,192.168.30.0/24", serviceCIDR: "fd00:5::/108,10.96.0.0/12"}`, 5)
	g.Expect(n.PodSubnetThisNode().String()).To(Equal("fd00:1:0:5::/64"))
	ips, err := n.AllocatePodIPs(pod("p1"), "", "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(ips)).To(Equal("[fd00:1:0:5::2 10.1.5.2]"))
	g.Expect(n.GetPodIP(pod("p1")).String()).To(Equal("fd00:1:0:5::2/128"))
	ev := add("p2")
	_, err = n.update(ev)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fmt.Sprint(ev.Addresses)).To(Equal("[fd00:1:0:5::3/64 10.1.5.3/24]"))
}
