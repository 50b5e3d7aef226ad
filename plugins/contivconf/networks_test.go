// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

const dual = `podSubnetCIDR: "10.1.0.0/16,fd00:1::/48", vppHostSubnetCIDR: "172.30.0.0/16,fd00:2::/48",` +
	` nodeInterconnectCIDR: "192.168.16.0/24,fd00:3::/64", vxlanCIDR: "192.168.30.0/24,fd00:4::/64", serviceCIDR: "10.96.0.0/12,fd00:5::/108"`

func TestGateways(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		want       string // of each family, "-" for none
		rule       contivconf.Rule
	}{
		{"none", "", "-", ""},
		{"one", "defaultGateway: 192.168.16.100", "192.168.16.100", ""},
		{"of a network cut from contivCIDR", "contivCIDR: 10.128.0.0/14, defaultGateway: 10.130.0.1", "10.130.0.1", ""},
		{"not of that network", "contivCIDR: 10.128.0.0/14, defaultGateway: 192.168.16.1", "", contivconf.RuleGateway},
		{"nor, with DHCP, of any", "nodeInterconnectDHCP: true, defaultGateway: 1.1.1.1", "-", ""},
		{"DHCP does not excuse nonsense", "nodeInterconnectDHCP: true, defaultGateway: nonsense", "", contivconf.RuleGateway},
		{"dual stack", dual + `, defaultGateway: "192.168.16.1,fd00:3::1"`, "192.168.16.1 fd00:3::1", ""},
		{"in any order", dual + `, defaultGateway: "fd00:3::1, 192.168.16.1"`, "192.168.16.1 fd00:3::1", ""},
		{"of one family", dual + `, defaultGateway: 192.168.16.1`, "192.168.16.1 -", ""},
		{"of the other", dual + `, defaultGateway: "fd00:3::1"`, "- fd00:3::1", ""},
		{"the last IPv6 address is a host's", dual + `, defaultGateway: "fd00:3::ffff:ffff:ffff:ffff"`, "- fd00:3::ffff:ffff:ffff:ffff", ""},
		{"the first is not", dual + `, defaultGateway: "fd00:3::"`, "", contivconf.RuleGateway},
		{"with a zone", dual + `, defaultGateway: "fd00:3::1%eth0"`, "", contivconf.RuleGateway},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			cfg, _, err := contivconf.Parse([]byte("ipamConfig: {" + c.conf + "}"))
			if c.rule != "" {
				g.Expect(problemsOf(err)).To(HaveLen(1))
				g.Expect(problemsOf(err)[0].Rule).To(Equal(c.rule))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			var got []string
			for _, f := range cfg.IPAM.Cluster.Families {
				if f.Gateway.IsValid() {
					got = append(got, f.Gateway.String())
				} else {
					got = append(got, "-")
				}
			}
			g.Expect(strings.Join(got, " ")).To(Equal(c.want))
		})
	}
}

// A key that is in the file and changes nothing is never passed over in silence.
func TestKeysThatChangeNothing(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"all are used", "ipamConfig: {" + dual + ", podSubnetOneNodePrefixLenIPv6: 64}", ""},
		{"IPv6 lengths without IPv6", "ipamConfig: {podSubnetOneNodePrefixLenIPv6: 64, vppHostSubnetOneNodePrefixLenIPv6: 64}",
			"ipamConfig.podSubnetOneNodePrefixLenIPv6 ipamConfig.vppHostSubnetOneNodePrefixLenIPv6"},
		{"contivCIDR overrides", "ipamConfig: {contivCIDR: 10.128.0.0/14, vxlanCIDR: 192.168.30.0/24, vppHostSubnetOneNodePrefixLen: 24}",
			"ipamConfig.vppHostSubnetOneNodePrefixLen ipamConfig.vxlanCIDR"},
		{"but not these", "ipamConfig: {contivCIDR: 10.128.0.0/14, serviceCIDR: 10.96.0.0/12, nodeInterconnectCIDR: 192.168.16.0/24}", ""},
		{"DHCP overrides", "ipamConfig: {nodeInterconnectDHCP: true, defaultGateway: 10.0.0.1, nodeInterconnectCIDR: ''}",
			"ipamConfig.defaultGateway ipamConfig.nodeInterconnectCIDR"},
		{"a dataplane key, once for all nodes", "{mtuSize: 1450, nodeConfig: [{nodeName: a, gateway: 10.0.0.1}, {nodeName: b, gateway: 10.0.0.2}]}",
			"mtuSize nodeConfig[].gateway"},
		{"nothing behind the key", "{mtuSize: , nodeConfig: [], ipamConfig: {srv6: {}}}", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			_, unused, err := contivconf.Parse([]byte(c.conf))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(strings.Join(unused, " ")).To(Equal(c.want))
		})
	}
}

// Networks that another key overrides must be networks all the same, as Contiv has it.
func TestOverriddenNetworksAreRead(t *testing.T) {
	for _, conf := range []string{
		"contivCIDR: 10.128.0.0/14, podSubnetCIDR: 1.2.3./19",
		"contivCIDR: 10.128.0.0/14, vppHostSubnetCIDR: 1.2.3./19",
		"contivCIDR: 10.128.0.0/14, vxlanCIDR: 1.2.3./19",
		"nodeInterconnectDHCP: true, nodeInterconnectCIDR: 1.2.3./19",
	} {
		_, _, err := contivconf.Parse([]byte("ipamConfig: {" + conf + "}"))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(`"1.2.3./19" is not a network`)), conf)
	}
}

func TestOneNodePrefixLengths(t *testing.T) {
	for _, c := range []struct {
		name, conf  string
		pods, hosts []int
	}{
		{"IPv4", "", []int{24}, []int{24}},
		{"written out", "podSubnetOneNodePrefixLen: 26, vppHostSubnetOneNodePrefixLen: 30", []int{26}, []int{30}},
		{"dual stack", dual, []int{24, 64}, []int{24, 64}},
		{"dual stack, written out", dual + ", podSubnetOneNodePrefixLenIPv6: 56, vppHostSubnetOneNodePrefixLenIPv6: 126", []int{24, 56}, []int{24, 126}},
		{"IPv6", `podSubnetCIDR: "fd00:1::/48", vppHostSubnetCIDR: "fd00:2::/48", nodeInterconnectDHCP: true, vxlanCIDR: "fd00:4::/64", serviceCIDR: "fd00:5::/108"`,
			[]int{64}, []int{64}},
		{"the smallest", "podSubnetOneNodePrefixLen: 29, vppHostSubnetOneNodePrefixLen: 30", []int{29}, []int{30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			for i, f := range mustParse(t, "ipamConfig: {"+c.conf+"}").IPAM.Cluster.Families {
				g.Expect(f.PodsOneNode).To(Equal(c.pods[i]))
				g.Expect(f.HostsOneNode).To(Equal(c.hosts[i]))
			}
		})
	}
}
