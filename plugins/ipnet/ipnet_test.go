// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

const (
	single = "{}"
	v6     = `ipamConfig: {podSubnetCIDR: "fd00:1::/48", podSubnetOneNodePrefixLen: 64, vppHostSubnetCIDR: "fd00:2::/48", vppHostSubnetOneNodePrefixLen: 64,
  nodeInterconnectCIDR: "fd00:3::/64", vxlanCIDR: "fd00:4::/64", serviceCIDR: "fd00:5::/108"}`
	dual = `ipamConfig: {podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",
  nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"}`
	dualFrom6 = `ipamConfig: {podSubnetCIDR: "fd00:1::/48,10.1.0.0/16", podSubnetOneNodePrefixLen: 64, podSubnetOneNodePrefixLenIPv6: 24,
  vppHostSubnetCIDR: "fd00:2::/48,172.30.0.0/16", vppHostSubnetOneNodePrefixLen: 64, vppHostSubnetOneNodePrefixLenIPv6: 24,
  nodeInterconnectCIDR: "fd00:3::/64,192.168.16.0/24", vxlanCIDR: "fd00:4::/64,192.168.30.0/24", serviceCIDR: "fd00:5::/108,10.96.0.0/12"}`
	dhcp     = "ipamConfig: {nodeInterconnectDHCP: true}"
	external = "ipamConfig: {useExternalIPAM: true}"
)

// The address has its block's length, a gateway, and there is one default route per family.
func TestRoutesOfAPod(t *testing.T) {
	for _, c := range []struct{ name, conf, addresses, gateways, routes string }{
		{"IPv4", single, "[10.1.5.2/24]", "[10.1.5.1]", "[0.0.0.0/0 via 10.1.5.1]"},
		{"IPv6", v6, "[fd00:1:0:5::2/64]", "[fd00:1:0:5::1]", "[::/0 via fd00:1:0:5::1]"},
		{"both", dual, "[10.1.5.2/24 fd00:1:0:5::2/64]", "[10.1.5.1 fd00:1:0:5::1]", "[0.0.0.0/0 via 10.1.5.1 ::/0 via fd00:1:0:5::1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			running(t, c.conf, func(g Gomega, a *agent) {
				reply := a.add("c1", "web-0")
				var addresses, gateways, answered []string
				for _, ip := range reply.IPs {
					addresses, gateways = append(addresses, ip.Address), append(gateways, ip.Gateway)
				}
				for _, r := range reply.Routes {
					answered = append(answered, r.Dst+" via "+r.GW)
				}
				g.Expect(fmt.Sprint(addresses)).To(Equal(c.addresses))
				g.Expect(fmt.Sprint(gateways)).To(Equal(c.gateways))
				g.Expect(fmt.Sprint(answered)).To(Equal(c.routes))
				m := a.podNetwork("c1")
				g.Expect(m).NotTo(BeNil())
				g.Expect(fmt.Sprint(m.Addresses)).To(Equal(c.addresses))
				g.Expect(routes(m.Routes)).To(Equal(c.routes))
				g.Expect([]string{m.Namespace, m.Name, m.Network, m.ContainerId, m.IfName}).To(Equal([]string{"default", "web-0", "pods", "c1", "eth0"}))
			})
		})
	}
}

func TestASecondAddressOfAFamilyNeedsNoSecondDefaultRoute(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		r := request("ADD", "c1", "web-0")
		r.Wanted = []string{"10.1.5.40", "10.1.5.41"}
		reply, err := a.serve(r)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reply.IPs).To(HaveLen(2))
		g.Expect(reply.Routes).To(HaveLen(1))
		g.Expect(routes(a.podNetwork("c1").Routes)).To(Equal("[0.0.0.0/0 via 10.1.5.1]"))
	})
}

func TestNetworkOfTheNode(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		want       *kv.NodeNetwork
		published  string
	}{
		{"both families", dual, &kv.NodeNetwork{
			Id: 5, PodSubnets: []string{"10.1.5.0/24", "fd00:1:0:5::/64"}, PodGateways: []string{"10.1.5.1", "fd00:1:0:5::1"},
			NatLoopbacks:        []string{"10.1.5.254", "fd00:1:0:5:ffff:ffff:ffff:fffe"},
			HostInterconnectVpp: []string{"172.30.5.1", "fd00:2:0:5::1"}, HostInterconnectLinux: []string{"172.30.5.2", "fd00:2:0:5::2"},
			NodeIps: []string{"192.168.16.5/24", "fd00:3::5/64"}, VxlanIps: []string{"192.168.30.5/24", "fd00:4::5/64"},
		}, "[192.168.16.5/24 fd00:3::5/64]"},
		{"DHCP numbers the nodes", dhcp, &kv.NodeNetwork{
			Id: 5, PodSubnets: []string{"10.1.5.0/24"}, PodGateways: []string{"10.1.5.1"}, NatLoopbacks: []string{"10.1.5.254"},
			HostInterconnectVpp: []string{"172.30.5.1"}, HostInterconnectLinux: []string{"172.30.5.2"}, VxlanIps: []string{"192.168.30.5/24"},
		}, "[]"},
		{"no pod CIDR yet", external, &kv.NodeNetwork{
			Id: 5, HostInterconnectVpp: []string{"172.30.5.1"}, HostInterconnectLinux: []string{"172.30.5.2"},
			NodeIps: []string{"192.168.16.5/24"}, VxlanIps: []string{"192.168.30.5/24"},
		}, "[192.168.16.5/24]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			running(t, c.conf, func(g Gomega, a *agent) {
				values, err := a.sink.Dump(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				c.want.Mtu = 1500
				g.Expect(slices.Sorted(maps.Keys(values))).To(Equal([]string{"network/default", "node"}))
				g.Expect(proto.Equal(values[kv.SinkNode], c.want)).To(BeTrue(), "%v", values[kv.SinkNode])
				g.Expect(a.cluster.published).To(HaveLen(1))
				g.Expect(fmt.Sprint(a.cluster.published[0])).To(Equal(c.published))
			})
		})
	}
}

// A value that exists is not committed again, and a missing one is not deleted.
func TestRepeatedRequestsCommitNothing(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.add("c1", "web-0")
		commits := a.sink.Commits()
		a.add("c1", "web-0")
		_, err := a.serve(request("DEL", "unknown", ""))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(a.sink.Commits()).To(Equal(commits))
		g.Expect(a.podNetwork("c1")).NotTo(BeNil())
	})
}

func TestDelDeletesTheNetwork(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.add("c1", "web-0")
		a.add("c2", "web-0")
		_, err := a.serve(request("DEL", "c1", "web-0"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(a.podNetwork("c1")).To(BeNil())
		g.Expect(a.podNetwork("c2")).NotTo(BeNil(), "the other sandbox of the pod stays")
	})
}

// A failure of the southbound reverts everything, and the caller gets an error.
func TestAnAddThatCannotBeMadeTrue(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		broken := true
		a.sink.Fault = func(txn controller.Transaction) error {
			if broken && txn.Method == controller.Update {
				return fmt.Errorf("no such device")
			}
			return nil
		}
		_, err := a.serve(request("ADD", "c1", "web-0"))
		g.Expect(err).To(MatchError(ContainSubstring("no such device")))
		g.Expect(a.podNetwork("c1")).To(BeNil())
		broken = false
		reply := a.add("c1", "web-0")
		g.Expect(reply.IPs[0].Address).To(Equal("10.1.5.3/24"), "the first one cools down")
	})
}

// A pod of a block that drains keeps its address, its gateway and its route.
func TestRoutesOfABlockThatDrains(t *testing.T) {
	running(t, external, func(g Gomega, a *agent) {
		give := func(cidr string) {
			a.cluster.nodes = nodesync.Nodes{"node-a": {ID: 5, Name: "node-a", PodCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}}}
			a.resync()
		}
		give("10.1.77.0/25")
		a.add("c1", "web-0")
		give("10.1.88.0/24")
		g.Expect(a.podNetwork("c1").Addresses).To(Equal([]string{"10.1.77.2/25"}))
		g.Expect(routes(a.podNetwork("c1").Routes)).To(Equal("[0.0.0.0/0 via 10.1.77.1]"))
		g.Expect(a.add("c1", "web-0").IPs[0].Gateway).To(Equal("10.1.77.1"))
		g.Expect(a.add("c2", "web-1").IPs[0].Gateway).To(Equal("10.1.88.1"))
		g.Expect(a.podNetwork("c2").Addresses).To(Equal([]string{"10.1.88.2/24"}))
	})
}

func TestEventsThatAreHandled(t *testing.T) {
	g := NewWithT(t)
	p := ipnet.NewPlugin(ipnet.Deps{})
	g.Expect(p.HandlesEvent(&controller.DBResync{})).To(BeTrue())
	g.Expect(p.HandlesEvent(&controller.KubeStateChange{})).To(BeFalse())
	g.Expect(p.HandlesEvent(&controller.Shutdown{})).To(BeFalse())
	g.Expect(p.String()).To(Equal("ipnet"))
}
