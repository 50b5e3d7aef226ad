// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// The keys of Contiv-VPP with dataplane vpp. VXLAN is the transport unless the file says
// otherwise, as in Contiv-VPP.
func TestKeysWithDataplaneVPP(t *testing.T) {
	for _, c := range []struct {
		conf      string
		transport contivconf.Transport
		mtu       int
		nat       bool
		table     uint32
		note      string
		unused    bool
	}{
		{conf: "", transport: "vxlan", nat: true},
		{conf: "nodeToNodeTransport: vxlan", transport: "vxlan", nat: true, note: "is read as cadastre.transport: vxlan"},
		{conf: "nodeToNodeTransport: nooverlay", transport: "hostgw", nat: true, note: "is read as cadastre.transport: hostgw"},
		{conf: "nodeToNodeTransport: srv6", transport: "vxlan", nat: true, note: "is read as cadastre.transport: vxlan"},
		{conf: "useL2Interconnect: true", transport: "hostgw", nat: true, note: "is read as cadastre.transport: hostgw"},
		{conf: "useL2Interconnect: false", transport: "vxlan", nat: true, note: "is read as cadastre.transport: vxlan"},
		{conf: "useNoOverlay: true", transport: "hostgw", nat: true, note: "is read as cadastre.transport: hostgw"},
		{conf: "mtuSize: 1400", transport: "vxlan", mtu: 1400, nat: true, note: "is read as cadastre.mtu: 1400"},
		{conf: "natExternalTraffic: false", transport: "vxlan", note: "is read as cadastre.masquerade: false"},
		{conf: "podVRFID: 1", transport: "vxlan", nat: true, note: "the routes to pods are in VRF 0 of VPP"},
		{conf: "podVRFID: 254", transport: "vxlan", nat: true, table: 254, note: "the routes to pods are in VRF 254 of VPP"},
		{conf: "mainVRFID: 3", transport: "vxlan", nat: true, note: "the node itself is in VRF 0 of VPP"},
		{conf: "interfaceRxMode: interrupt", transport: "vxlan", nat: true, note: "VPP decides", unused: true},
		{conf: "useTAPInterfaces: true", transport: "vxlan", nat: true, note: "a TAP does not", unused: true},
		{conf: "routeServicesToVPP: true", transport: "vxlan", nat: true, note: "is read as routeServiceCIDRToVPP", unused: true},
		{conf: "routeServiceCIDRToVPP: true", transport: "vxlan", nat: true, note: "VPP has no services", unused: true},
		{conf: "scanIPNeighbors: true", transport: "vxlan", nat: true, note: "VPP asks for all others again", unused: true},
		{conf: "enablePacketTrace: true", transport: "vxlan", nat: true, note: "vppctl trace add", unused: true},
		{conf: "healthCheckThreshold: 3", transport: "vxlan", nat: true, note: "probes ask cadastre status", unused: true},
	} {
		t.Run(c.conf, func(t *testing.T) {
			g := NewWithT(t)
			cfg, unused, err := contivconf.Parse([]byte(c.conf + "\ncadastre: {dataplane: vpp}"))
			g.Expect(err).NotTo(HaveOccurred())
			got := cfg.Cadastre
			g.Expect([]any{got.Transport, got.MTU, got.Masquerade, got.PodTable}).
				To(Equal([]any{c.transport, c.mtu, c.nat, c.table}))
			g.Expect(len(unused) > 0).To(Equal(c.unused), "%v", unused)
			if c.note == "" {
				g.Expect(cfg.Notes).To(BeEmpty())
				return
			}
			g.Expect(cfg.Notes).To(ContainElement(HaveField("Text", ContainSubstring(c.note))))
			if c.table == 0 { // it is one of the kernel's own
				linux := mustParse(t, c.conf+"\ncadastre: {dataplane: linux}")
				g.Expect(linux.Cadastre.VPP).To(Equal(contivconf.Default().Cadastre.VPP))
			}
		})
	}
	g := NewWithT(t)
	for _, own := range []string{"transport: none", "transport: hostgw"} {
		_, want, _ := strings.Cut(own, ": ")
		g.Expect(mustParse(t, "cadastre: {dataplane: vpp, "+own+"}").Cadastre.Transport).To(BeEquivalentTo(want))
	}
}

// A node's link and gateways: its entry under nodeConfig precedes.
func TestTheVPPOfANode(t *testing.T) {
	g := NewWithT(t)
	cfg, unused, err := contivconf.Parse([]byte(`
ipamConfig: {nodeInterconnectCIDR: 192.168.16.0/24, defaultGateway: 192.168.16.100}
nodeConfig:
- {nodeName: a, mainVPPInterface: {interfaceName: eth1, ip: 192.168.17.5/24, useDHCP: true}, gateway: 192.168.17.1}
- {nodeName: b, vppInterfaceName: eth2}
- {nodeName: c, otherVPPInterfaces: [{interfaceName: eth9, ip: 10.3.0.1/24}]}
cadastre: {dataplane: vpp, vpp: {socket: /tmp/api.sock, interface: ens5}}`))
	g.Expect(err).NotTo(HaveOccurred())
	for node, want := range map[string]contivconf.VPPNode{
		"a": {Main: "eth1", Gateways: []netip.Addr{netip.MustParseAddr("192.168.17.1")}},
		"b": {Main: "eth2", Gateways: []netip.Addr{netip.MustParseAddr("192.168.16.100")}},
		"c": {Main: "ens5", Gateways: []netip.Addr{netip.MustParseAddr("192.168.16.100")}},
		"d": {Main: "ens5", Gateways: []netip.Addr{netip.MustParseAddr("192.168.16.100")}},
	} {
		g.Expect(cfg.VPPNode(node)).To(Equal(want), node)
	}
	g.Expect(cfg.Cadastre.VPP).To(Equal(contivconf.VPP{Socket: "/tmp/api.sock", Interface: "ens5"}))
	g.Expect(unused).To(Equal([]string{
		"nodeConfig[].mainVPPInterface.useDHCP", "nodeConfig[].otherVPPInterfaces[].interfaceName", "nodeConfig[].otherVPPInterfaces[].ip",
	}))

	six := mustParse(t, `
ipamConfig: {podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", serviceCIDR: "10.96.0.0/12,fd00:5::/108", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", defaultGateway: "192.168.16.1,fd00:3::1"}
nodeConfig: [{nodeName: a, gateway: "fd00:3::2"}]
cadastre: {dataplane: vpp}`)
	g.Expect(six.VPPNode("a").Gateways).To(ConsistOf(netip.MustParseAddr("fd00:3::2"), netip.MustParseAddr("192.168.16.1")))
	g.Expect(six.VPPNode("b").Gateways).To(Equal([]netip.Addr{netip.MustParseAddr("192.168.16.1"), netip.MustParseAddr("fd00:3::1")}))
}

// Each error names the field, the value and the remedy.
func TestBadKeysWithDataplaneVPP(t *testing.T) {
	const node = "nodeConfig: [{nodeName: a, %s}]"
	entry := func(s string) string { return strings.Replace(node, "%s", s, 1) }
	for _, c := range []struct{ conf, keys, want string }{
		{"", "transport: wireguard", `cadastre.transport: "wireguard" needs the network of the kernel, but dataplane is vpp: write vxlan or hostgw, or "dataplane: linux"`},
		{"", "transport: nodeip", `cadastre.transport: "nodeip" needs the network of the kernel, but dataplane is vpp: write hostgw`},
		{"", "podBlocks: interfaces", `cadastre.podBlocks: "interfaces" needs routing rules of the kernel, but dataplane is vpp: write nodeid or podcidr`},
		{"", "underlay: {interface: eth0}", `cadastre.underlay: would not be used, as dataplane is vpp: remove it, and name the link in nodeConfig[].mainVPPInterface`},
		{"", "transport: none, underlay: {interface: eth0}", `cadastre.underlay: would not be used, as dataplane is vpp`},
		{"", "allowForward: true", `cadastre.allowForward: "true" would not be used, as dataplane is vpp`},
		{"", "transport: hostgw, vni: 7", `cadastre.vni: "7" would not be used, as transport is hostgw`},
		{"", "vpp: {socket: api.sock}", `cadastre.vpp.socket: "api.sock" is not an absolute path: write one such as /run/vpp/api.sock`},
		{"", "vpp: {interface: GigabitEthernet0/4/0}", `cadastre.vpp.interface: "GigabitEthernet0/4/0" is not the name of a link`},
		{"podVRFID: 201326592", "", `podVRFID: "201326592" is out of range`},
		{"mtuSize: 100", "", `cadastre.mtu: "100" is out of range: write a number from 576 to 65535 (the file has it as mtuSize)`},
		{"ipamConfig: {nodeInterconnectDHCP: true}", "", `ipamConfig.nodeInterconnectDHCP: "true" is not possible with dataplane vpp`},
		{entry("mainVPPInterface: {useDHCP: true}"), "", `nodeConfig[0].mainVPPInterface.useDHCP: "true" is not possible with dataplane vpp`},
		{entry("mainVPPInterface: {interfaceName: GigabitEthernet0/4/0}"), "", `nodeConfig[0].mainVPPInterface.interfaceName: "GigabitEthernet0/4/0" is not the name of a link: VPP takes a link of the node's kernel with AF_PACKET; write the name of one, of at most 15 characters, such as eth1`},
		{entry("gateway: here"), "", `nodeConfig[0].gateway: "here" is not an address: write one such as 192.168.16.100`},
		{entry("gateway: 10.9.9.9"), "", `nodeConfig[0].gateway: "10.9.9.9" is not in the network of the node's main interface ([192.168.16.0/24]): write an address of it`},
		{entry("gateway: 192.168.16.1, mainVPPInterface: {ip: 192.168.17.5/24}"), "", `is not in the network of the node's main interface ([192.168.17.0/24])`},
	} {
		keys := "dataplane: vpp"
		if c.keys != "" {
			keys += ", " + c.keys
		}
		_, _, err := contivconf.Parse([]byte(c.conf + "\ncadastre: {" + keys + "}"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.want)), c.conf+c.keys)
	}
	for _, keys := range []string{"vpp: {interface: eth1}", "dataplane: linux, vpp: {socket: /tmp/s}"} {
		_, _, err := contivconf.Parse([]byte("cadastre: {" + keys + "}"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(`cadastre.vpp: would not be used, as dataplane is `)), keys)
	}
}
