// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// The networks that most cases start from.
const small = `ipamConfig:
  podSubnetCIDR: %s
  podSubnetOneNodePrefixLen: %d
  vppHostSubnetCIDR: 2.3.192.0/18
  vppHostSubnetOneNodePrefixLen: 30
  nodeInterconnectCIDR: %s
  vxlanCIDR: %s
`

func TestPlans(t *testing.T) {
	const v6 = `
ipamConfig:
  podSubnetCIDR: %s
  podSubnetOneNodePrefixLen: %d
  vppHostSubnetCIDR: fe30:f00d::/90
  vppHostSubnetOneNodePrefixLen: 126
  nodeInterconnectCIDR: fe10:f00d::/90
  vxlanCIDR: fe20:f00d::/120
  serviceCIDR: fe40:f00d::/108
cadastre: {allowOverlap: [podSubnetCIDR/nodeInterconnectCIDR]}
`
	for _, c := range []struct {
		name, conf string
		id         uint32
		want       string // pods, VPP-host, node, VXLAN
	}{
		{"the first node", fmt.Sprintf(small, "1.2.128.0/17", 29, "3.4.5.192/26", "4.5.6.192/26"), 1,
			"1.2.128.8/29 2.3.192.4/30 3.4.5.193/26 4.5.6.193/26"},
		{"the fifth", fmt.Sprintf(small, "1.2.128.0/17", 29, "3.4.5.192/26", "4.5.6.192/26"), 5,
			"1.2.128.40/29 2.3.192.20/30 3.4.5.197/26 4.5.6.197/26"},
		{"the last of 16 has subnet 0", fmt.Sprintf(small, "1.4.1.0/24", 28, "3.4.5.192/26", "4.5.6.192/26"), 16,
			"1.4.1.0/28 2.3.192.64/30 3.4.5.208/26 4.5.6.208/26"},
		{"more than 256 nodes", fmt.Sprintf(small, "1.4.0.0/17", 28, "1.1.128.0/17", "2.2.128.0/17"), 257,
			"1.4.16.16/28 2.3.196.4/30 1.1.129.1/17 2.2.129.1/17"},
		{"IPv6, pods and nodes in one network", fmt.Sprintf(v6, "fe10:f00d::/90", 120), 5,
			"fe10:f00d::500/120 fe30:f00d::14/126 fe10:f00d::5/90 fe20:f00d::5/120"},
		{"IPv6 with 68 host bits", fmt.Sprintf(v6, "2001::/48", 60), 1,
			"2001:0:0:10::/60 fe30:f00d::4/126 fe10:f00d::1/90 fe20:f00d::1/120"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			nodes, err := mustParse(t, c.conf).IPAM.Cluster.Node(c.id)
			g.Expect(err).NotTo(HaveOccurred())
			n := nodes[0]
			g.Expect(fmt.Sprint(n.PodSubnet, n.HostSubnet, n.NodeIP, n.VxlanIP)).To(Equal(c.want))
		})
	}
}

// An ID that does not fit every network is refused before it is claimed.
func TestPinnedIDs(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"pods", fmt.Sprintf(small, "1.4.1.0/24", 28, "3.4.5.192/26", "4.5.6.192/26"), "podSubnetCIDR (1.4.1.0/24) has room for the IDs 1 to 16"},
		{"nodes", fmt.Sprintf(small, "1.2.128.0/17", 29, "3.3.3.0/28", "4.5.6.192/26"), "nodeInterconnectCIDR (3.3.3.0/28) has room for the IDs 1 to 14"},
		{"VXLAN", fmt.Sprintf(small, "1.2.128.0/17", 29, "3.4.5.192/26", "2.2.2.128/28"), "vxlanCIDR (2.2.2.128/28) has room for the IDs 1 to 14"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(mustParse(t, c.conf+"cadastre: {nodeID: 14}").Cadastre.NodeID).To(BeNumerically("==", 14))
			_, _, err := contivconf.Parse([]byte(c.conf + "cadastre: {nodeID: 17}"))
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

// For any networks: either they are refused, or every ID up
// to the largest has a plan. Then the plans of two nodes are disjoint, and pinning
// the next larger ID is refused.
func TestAnAcceptedConfigurationHasAPlan(t *testing.T) {
	network := func(t *rapid.T, second int, name string) string {
		bits := rapid.IntRange(8, 31).Draw(t, name)
		third := rapid.IntRange(0, 255).Draw(t, name+" third")
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), byte(third), 0}), bits)
		return p.Masked().String()
	}
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		conf := fmt.Sprintf("ipamConfig: {podSubnetCIDR: %s, podSubnetOneNodePrefixLen: %d, vppHostSubnetCIDR: %s, vppHostSubnetOneNodePrefixLen: %d,"+
			" nodeInterconnectCIDR: %s, vxlanCIDR: %s, defaultGateway: %q, serviceCIDR: 11.0.0.0/12}\n"+
			"cadastre: {allowOverlap: [podSubnetCIDR/vppHostSubnetCIDR, podSubnetCIDR/nodeInterconnectCIDR, podSubnetCIDR/vxlanCIDR,"+
			" vppHostSubnetCIDR/nodeInterconnectCIDR, vppHostSubnetCIDR/vxlanCIDR, nodeInterconnectCIDR/vxlanCIDR], nodeID: %%d}",
			network(t, 1, "pods"), rapid.IntRange(16, 32).Draw(t, "one node"), network(t, 2, "hosts"), rapid.IntRange(16, 32).Draw(t, "one host"),
			network(t, 3, "nodes"), network(t, 4, "vxlan"), rapid.SampledFrom([]string{"", "10.3.0.1", "10.3.255.254"}).Draw(t, "gateway"))
		cfg, _, err := contivconf.Parse(fmt.Appendf(nil, conf, 0))
		if err != nil {
			return
		}
		accepted++
		cluster := cfg.IPAM.Cluster
		most := cluster.MaxNodeID()
		ids := []uint32{1, most, rapid.Uint32Range(1, most).Draw(t, "id")}
		slices.Sort(ids)
		var taken []netip.Prefix
		for _, id := range slices.Compact(ids) {
			nodes, err := cluster.Node(id)
			if err != nil {
				t.Fatalf("node %d of %d has no plan: %v", id, most, err)
			}
			if ip := nodes[0].NodeIP.Addr(); ip == cluster.Families[0].Gateway {
				t.Fatalf("node %d has the gateway's address %s", id, ip)
			}
			for _, other := range taken {
				if nodes[0].PodSubnet.Overlaps(other) {
					t.Fatalf("%s is given twice", other)
				}
			}
			taken = append(taken, nodes[0].PodSubnet)
		}
		if _, _, err := contivconf.Parse(fmt.Appendf(nil, conf, most)); err != nil {
			t.Fatalf("the largest ID cannot be pinned: %v", err)
		}
		_, _, err = contivconf.Parse(fmt.Appendf(nil, conf, uint64(most)+1))
		if found := problemsOf(err); len(found) != 1 || found[0].Rule != contivconf.RuleNodeID {
			t.Fatalf("ID %d: %v", most+1, err)
		}
	})
	if accepted == 0 {
		t.Error("no configuration was accepted: the test tests nothing")
	}
}
