// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrplan

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

func pfx(s string) netip.Prefix {
	if s == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(s)
}

// family is the networks that most cases below start from.
func family() Family {
	return Family{
		Pods: pfx("1.2.128.0/17"), PodsOneNode: 29, Hosts: pfx("2.3.192.0/18"), HostsOneNode: 30,
		Nodes: pfx("3.4.5.192/26"), Vxlan: pfx("4.5.6.192/26"), Service: pfx("10.96.0.0/12"),
	}
}

func TestOneNode(t *testing.T) {
	g := NewWithT(t)
	n, err := family().Node(1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.PodSubnet).To(Equal(pfx("1.2.128.8/29")))
	g.Expect(n.HostSubnet).To(Equal(pfx("2.3.192.4/30")))
	g.Expect(n.PodGateway.String()).To(Equal("1.2.128.9"))
	g.Expect(n.HostVPP.String()).To(Equal("2.3.192.5"))
	g.Expect(n.HostLinux.String()).To(Equal("2.3.192.6"))
	g.Expect(n.NatLoopback.String()).To(Equal("1.2.128.14"))
	g.Expect(n.FirstPod.String()).To(Equal("1.2.128.10"))
	g.Expect(n.LastPod.String()).To(Equal("1.2.128.13"))
	g.Expect(n.PodCapacity()).To(BeNumerically("==", 4))

	n, err = family().Node(5)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.NodeIP).To(Equal(pfx("3.4.5.197/26")))
	g.Expect(n.VxlanIP).To(Equal(pfx("4.5.6.197/26")))
	g.Expect(n.PodSubnet).To(Equal(pfx("1.2.128.40/29")))
	g.Expect(n.HostSubnet).To(Equal(pfx("2.3.192.20/30")))
}

func TestPlans(t *testing.T) {
	for _, c := range []struct {
		name                   string
		change                 func(*Family)
		id                     uint32
		pods, host, node, vxln string
		err                    string
	}{
		{name: "host bits are masked", id: 1, pods: "1.2.1.0/24",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.2.3.4/16"), 24 }},
		{name: "a /22 for one node", id: 1, pods: "1.4.4.0/22",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.4.1.2/14"), 22 }},
		{name: "node 1 of 16", id: 1, pods: "1.4.1.16/28", node: "3.4.5.193/26",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.4.1.0/24"), 28 }},
		{name: "the last node has subnet 0", id: 16, pods: "1.4.1.0/28", node: "3.4.5.208/26",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.4.1.0/24"), 28 }},
		{name: "one node too many", id: 17, err: "out of the valid range",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.4.1.0/24"), 28 }},
		{name: "more than 256 nodes", id: 257, pods: "1.4.16.16/28", node: "1.1.129.1/17", vxln: "2.2.129.1/17", host: "2.3.196.4/30",
			change: func(f *Family) {
				f.Pods, f.PodsOneNode, f.Vxlan, f.Nodes = pfx("1.4.0.0/17"), 28, pfx("2.2.128.0/17"), pfx("1.1.128.0/17")
			}},
		{name: "pods: one node larger than all", id: 1, err: "prefix length for one node (18) must be higher",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.2.0.0/19"), 18 }},
		{name: "hosts: one node larger than all", id: 1, err: "prefix length for one node (18) must be higher",
			change: func(f *Family) { f.Hosts, f.HostsOneNode = pfx("2.3.0.0/19"), 18 }},
		{name: "IPv6", id: 5, node: "fe10:f00d::5/90", vxln: "fe20:f00d::5/120", pods: "fe10:f00d::500/120", host: "fe30:f00d::14/126",
			change: func(f *Family) {
				*f = Family{Nodes: pfx("fe10:f00d::/90"), Vxlan: pfx("fe20:f00d::/120"), Hosts: pfx("fe30:f00d::/90"), HostsOneNode: 126,
					Pods: pfx("fe10:f00d::/90"), PodsOneNode: 120}
			}},
		{name: "IPv6 with 68 host bits", id: 1, pods: "2001:0:0:10::/60",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("2001::/48"), 60 }},
		{name: "no room for a pod", id: 1, err: "no room for a pod",
			change: func(f *Family) { f.Pods, f.PodsOneNode = pfx("1.2.0.0/17"), 30 }},
		{name: "no room for the link", id: 1, err: "no room for both ends",
			change: func(f *Family) { f.HostsOneNode = 31 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			f := family()
			c.change(&f)
			n, err := f.Node(c.id)
			if c.err != "" {
				g.Expect(err).To(MatchError(ContainSubstring(c.err)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			for _, x := range []struct {
				want string
				got  netip.Prefix
			}{{c.pods, n.PodSubnet}, {c.host, n.HostSubnet}, {c.node, n.NodeIP}, {c.vxln, n.VxlanIP}} {
				if x.want != "" {
					g.Expect(x.got).To(Equal(pfx(x.want)))
				}
			}
		})
	}
}

func TestAnIDTooLargeForOneNetwork(t *testing.T) {
	g := NewWithT(t)
	f := family()
	f.Vxlan = pfx("2.2.2.128/28")
	_, err := f.VxlanIP(16)
	g.Expect(err).To(MatchError(ContainSubstring("no free address for nodeID 16")))
	_, err = f.VxlanIP(17)
	g.Expect(err).To(MatchError(ContainSubstring("out of the valid range")))
	g.Expect(Cluster{[]Family{f}}.MaxNodeID()).To(BeNumerically("==", 14))

	f = family()
	f.Nodes = pfx("3.3.3.0/28")
	_, err = f.NodeIP(16)
	g.Expect(err).To(MatchError(ContainSubstring("no free address for nodeID 16")))
	_, err = f.NodeIP(17)
	g.Expect(err).To(MatchError(ContainSubstring("out of the valid range")))
}

func TestTheGatewayMovesNodesByOne(t *testing.T) {
	g := NewWithT(t)
	f := family()
	f.Gateway = netip.MustParseAddr("3.4.5.194")
	for id, want := range map[uint32]string{1: "3.4.5.193/26", 2: "3.4.5.195/26", 3: "3.4.5.196/26"} {
		g.Expect(f.NodeIP(id)).To(Equal(pfx(want)))
	}
}

func TestFromContivCIDR(t *testing.T) {
	for _, c := range []struct{ in, pods, host, node, vxlan, err string }{
		{"10.128.0.0/14", "10.128.0.0/16", "10.129.0.0/16", "10.130.0.0/23", "10.130.2.0/23", ""},
		{"192.240.0.0/12", "192.240.0.0/16", "192.241.0.0/16", "192.242.0.0/23", "192.242.2.0/23", ""},
		{"fe10::/64", "fe10::/112", "fe10::1:0/112", "fe10::2:0/119", "fe10::2:200/119", ""},
		{"10.130.0.0/18", "", "", "", "", "at least 18 bits"},
		{"fe10::/120", "", "", "", "", "at least 18 bits"},
	} {
		g := NewWithT(t)
		f, err := FromContivCIDR(pfx(c.in))
		if c.err != "" {
			g.Expect(err).To(MatchError(ContainSubstring(c.err)), c.in)
			continue
		}
		g.Expect([]netip.Prefix{f.Pods, f.Hosts, f.Nodes, f.Vxlan}).To(Equal([]netip.Prefix{pfx(c.pods), pfx(c.host), pfx(c.node), pfx(c.vxlan)}))
	}
}

func TestUndefinedNodeNetwork(t *testing.T) {
	g := NewWithT(t)
	f := family()
	f.Nodes = netip.Prefix{}
	_, err := f.NodeIP(1)
	g.Expect(err).To(MatchError(errUndefined))
	n, err := f.Node(1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.NodeIP.IsValid()).To(BeFalse())
}
