// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// The files of all versions give the addresses of the same networks.
func TestVersionsGiveTheSamePlan(t *testing.T) {
	g := NewWithT(t)
	const now = `ipamConfig: {podSubnetCIDR: 10.11.0.0/16, podSubnetOneNodePrefixLen: 25, vppHostSubnetCIDR: 172.20.0.0/16,
  vppHostSubnetOneNodePrefixLen: 26, nodeInterconnectCIDR: 192.168.17.0/24, vxlanCIDR: 192.168.31.0/24}`
	want := mustParse(t, now).IPAM
	for _, name := range []string{"contiv-vpp-0.9", "contiv-vpp-1.5"} {
		g.Expect(good(t, name).IPAM).To(Equal(want), name)
	}
	g.Expect(good(t, "contiv-vpp-dashes").IPAM).To(Equal(contivconf.Default().IPAM))
	nodes := good(t, "contiv-vpp-0.9").NodeConfigs
	g.Expect(nodes[0].MainVPPInterface.InterfaceName).To(Equal("GigabitEthernet0/4/0"))
	g.Expect(nodes[0].OtherVPPInterfaces[0].IP).To(Equal("1.2.3.4/24"))
	g.Expect(nodes[1].MainVPPInterface.IP).To(Equal("192.168.20.53/24"))
}

func TestKeysOfContivsDataplane(t *testing.T) {
	for _, c := range []struct {
		conf      string
		transport contivconf.Transport
		mtu       int
		nat       bool
		table     uint32
	}{
		{"", "none", 0, true, 0},
		{"nodeToNodeTransport: vxlan", "vxlan", 0, true, 0},
		{"nodeToNodeTransport: srv6", "vxlan", 0, true, 0},
		{"nodeToNodeTransport: ''", "vxlan", 0, true, 0},
		{"nodeToNodeTransport: nooverlay", "nodeip", 0, true, 0},
		{"useNoOverlay: true", "nodeip", 0, true, 0},
		{"useNoOverlay: false", "vxlan", 0, true, 0},
		{"useNoOverlay: false\nuseL2Interconnect: true", "nodeip", 0, true, 0},
		{"l2Interconnect: true", "nodeip", 0, true, 0},
		{"use-no-overlay: true", "nodeip", 0, true, 0},
		{"useSRv6Interconnect: true\nuseNoOverlay: false", "vxlan", 0, true, 0},
		{"useNoOverlay: true\nnodeToNodeTransport: vxlan", "vxlan", 0, true, 0},
		{"MTUSize: 1450", "none", 1450, true, 0},
		{"mtuSize: 0", "none", 0, true, 0},
		{"NatExternalTraffic: false", "none", 0, false, 0},
		{"podVRFID: 1", "none", 0, true, 0},
		{"podVRFID: 0", "none", 0, true, 0},
		{"podVRFID: 7\nmainVRFID: 7", "none", 0, true, 0},
		{"podVRFID: 7\nmainVRFID: 8", "none", 0, true, 7},
		{"mainVRFID: 8", "none", 0, true, 0},
	} {
		t.Run(c.conf, func(t *testing.T) {
			g := NewWithT(t)
			cfg, unused, err := contivconf.Parse([]byte(c.conf + "\ncadastre: {dataplane: linux}"))
			g.Expect(err).NotTo(HaveOccurred())
			got := cfg.Cadastre
			g.Expect(got.Transport).To(Equal(c.transport))
			g.Expect(got.MTU).To(Equal(c.mtu))
			g.Expect(got.Masquerade).To(Equal(c.nat))
			g.Expect(got.PodTable).To(Equal(c.table))
			g.Expect(unused).To(BeEmpty())
			for _, n := range cfg.Notes {
				if strings.Contains(n.Text, "cadastre.transport") {
					g.Expect(n.Text).To(Equal("is read as cadastre.transport: " + string(c.transport)))
				}
			}
			g.Expect(len(cfg.Notes) > 0).To(Equal(c.conf != ""))

			// Without the data plane in Linux they change nothing, and a note says so.
			cfg, unused, err = contivconf.Parse([]byte(cmp.Or(c.conf, "{}")))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cfg.Cadastre).To(Equal(contivconf.Default().Cadastre))
			g.Expect(unused).To(HaveLen(strings.Count(c.conf, ":")))
		})
	}
}

// A key of Cadastre precedes the one of Contiv-VPP, which is returned as unused.
func TestCadastresKeysPrecede(t *testing.T) {
	g := NewWithT(t)
	cfg, unused, err := contivconf.Parse([]byte(`{mtuSize: 1450, natExternalTraffic: true, nodeToNodeTransport: nooverlay,
cadastre: {dataplane: linux, mtu: 1400, masquerade: false, transport: wireguard}}`))
	g.Expect(err).NotTo(HaveOccurred())
	c := cfg.Cadastre
	g.Expect([]any{c.MTU, c.Masquerade, c.Transport}).To(Equal([]any{1400, false, contivconf.TransportWireGuard}))
	g.Expect(unused).To(Equal([]string{"mtuSize", "natExternalTraffic", "nodeToNodeTransport"}))
	g.Expect(cfg.Notes).To(ContainElement(contivconf.Note{
		Keys: []string{"nodeToNodeTransport"}, Text: "cadastre.transport precedes it"}))

	cfg = mustParse(t, "{nodeToNodeTransport: vxlan, cadastre: {dataplane: linux, transport: hostgw}}")
	g.Expect(cfg.Cadastre.Transport).To(Equal(contivconf.TransportHostGW))
}

func TestBadKeysOfContivsDataplane(t *testing.T) {
	for conf, want := range map[string]string{
		"nodeToNodeTransport: ipip": `nodeToNodeTransport: "ipip" is not allowed: write vxlan, srv6 or nooverlay`,
		"mtuSize: 100":              `cadastre.mtu: "100" is out of range: write a number from 576 to 65535 (the file has it as mtuSize)`,
		"podVRFID: 254":             `podVRFID: "254" is a routing table of the kernel itself`,
	} {
		_, _, err := contivconf.Parse([]byte(conf + "\ncadastre: {dataplane: linux}"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(want)))
		mustParse(t, conf) // nothing uses it
	}
}

// natExternalTraffic of a node turns the masquerade on for this node, never off.
func TestMasqueradeOfOneNode(t *testing.T) {
	g := NewWithT(t)
	const nodes = "\nnodeConfig: [{nodeName: a, natExternalTraffic: true}, {nodeName: b, natExternalTraffic: false}]"
	cfg := mustParse(t, "cadastre: {dataplane: linux, masquerade: false}"+nodes)
	for node, want := range map[string]bool{"a": true, "b": false, "c": false} {
		g.Expect(cfg.Masquerades(node)).To(Equal(want), node)
	}
	g.Expect(mustParse(t, "cadastre: {dataplane: linux}"+nodes).Masquerades("b")).To(BeTrue())
	g.Expect(cfg.Notes).To(BeEmpty())
	g.Expect(mustParse(t, nodes).Notes).To(HaveLen(1))
}

// The addresses of the version of September 2018: pods and VPP-host links have half of
// the network each, cut in /24. The nodes and VXLAN have the /23 number 125 and 127.
func TestSmallContivCIDR(t *testing.T) {
	for _, c := range []struct {
		cidr        string
		last        uint32
		base, hosts netip.Addr
	}{
		{"10.1.0.0/16", 64, netip.MustParseAddr("10.1.0.0"), netip.MustParseAddr("10.1.128.0")},
		{"10.1.0.0/15", 128, netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.1.0.0")},
		{"172.16.0.0/15", 128, netip.MustParseAddr("172.16.0.0"), netip.MustParseAddr("172.17.0.0")},
	} {
		t.Run(c.cidr, func(t *testing.T) {
			g := NewWithT(t)
			cfg := mustParse(t, "ipamConfig: {contivCIDR: "+c.cidr+"}")
			g.Expect(cfg.Notes).To(HaveLen(1))
			g.Expect(cfg.IPAM.Cluster.MaxNodeID()).To(Equal(c.last))
			for id := uint32(1); id < c.last; id++ {
				nodes, err := cfg.IPAM.Cluster.Node(id)
				g.Expect(err).NotTo(HaveOccurred())
				n, base, hosts := nodes[0], c.base.As4(), c.hosts.As4()
				g.Expect(fmt.Sprint(n.PodSubnet, n.HostSubnet, n.NodeIP, n.VxlanIP)).To(Equal(fmt.Sprintf(
					"%d.%d.%d.0/24 %d.%d.%d.0/24 %d.%d.250.%d/23 %d.%d.254.%d/23",
					base[0], base[1], id, hosts[0], hosts[1], uint32(hosts[2])+id, base[0], base[1], id, base[0], base[1], id)))
			}
			_, _, err := contivconf.Parse(fmt.Appendf(nil, "ipamConfig: {contivCIDR: %s}\ncadastre: {nodeID: %d}", c.cidr, c.last+1))
			g.Expect(err).To(MatchError(ContainSubstring("is out of range")))
		})
	}
	for _, bad := range []string{"10.0.0.0/17", "10.1.0.0/14", "fd00::/112", "fd00::/111"} {
		_, _, err := contivconf.Parse([]byte("ipamConfig: {contivCIDR: \"" + bad + "\"}"))
		NewWithT(t).Expect(err).To(HaveOccurred(), bad)
	}
}
