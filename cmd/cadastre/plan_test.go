// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// plan runs the verb on a configuration, or on the shipped one where text is empty.
func plan(t *testing.T, text string, args ...string) outcome {
	t.Helper()
	path := contivConf
	if text != "" {
		path = filepath.Join(t.TempDir(), "contiv.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return call(t, noListener(t), "", append([]string{"plan", "--config", path}, args...)...)
}

const dualStack = `ipamConfig:
  podSubnetCIDR: 10.1.0.0/16,fd00:1::/48
  vppHostSubnetCIDR: 172.30.0.0/16,fd00:2::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd00:3::/64
  vxlanCIDR: 192.168.30.0/24,fd00:4::/64
  serviceCIDR: 10.96.0.0/12,fd00:5::/108
`

func TestPlanOfARangeForPrograms(t *testing.T) {
	g := NewWithT(t)
	var nodes []map[string]any
	g.Expect(json.Unmarshal([]byte(plan(t, "", "--node-id", "1-10", "-o", "json").out), &nodes)).To(Succeed())
	g.Expect(nodes).To(HaveLen(10))
	g.Expect(nodes[9]).To(And(HaveKeyWithValue("nodeID", 10.0), HaveKeyWithValue("podSubnetThisNode", "10.1.10.0/24")))

	nodes = nil
	g.Expect(json.Unmarshal([]byte(plan(t, "", "--node-id", "7-7", "-o", "json").out), &nodes)).To(Succeed(), "a range of one is a list")
	g.Expect(nodes).To(HaveLen(1))
}

func TestPlanForPrograms(t *testing.T) {
	first := map[string]any{
		"podSubnetThisNode": "10.1.5.0/24", "podSubnetAllNodes": "10.1.0.0/16", "podGatewayIP": "10.1.5.1", "natLoopbackIP": "10.1.5.254",
		"firstPodIP": "10.1.5.2", "lastPodIP": "10.1.5.253", "podCapacity": 252.0,
		"hostInterconnectSubnetThisNode": "172.30.5.0/24", "hostInterconnectSubnetAllNodes": "172.30.0.0/16",
		"hostInterconnectIPInVPP": "172.30.5.1", "hostInterconnectIPInLinux": "172.30.5.2",
		"nodeIPAddress": "192.168.16.5/24", "vxlanIPAddress": "192.168.30.5/24", "serviceNetwork": "10.96.0.0/12",
	}
	for _, c := range []struct {
		name, conf string
		families   []any
	}{{"IPv4", "", []any{"ipv4"}}, {"dual stack", dualStack, []any{"ipv4", "ipv6"}}} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			got := plan(t, c.conf, "--node-id", "5", "-o", "json")
			g.Expect(got.code).To(Equal(0), got.err)
			var node, again map[string]any
			g.Expect(json.Unmarshal([]byte(got.out), &node)).To(Succeed())
			for key, value := range first {
				g.Expect(node).To(HaveKeyWithValue(key, value))
			}
			g.Expect(node).To(HaveKeyWithValue("nodeID", 5.0))
			g.Expect(node).To(HaveKeyWithValue("maxNodeID", 254.0))
			g.Expect(node).To(HaveKeyWithValue("maxNodeIDLimitedBy", []any{"nodeInterconnectCIDR", "vxlanCIDR"}))
			g.Expect(node["ipv4"]).To(Equal(first))
			for _, family := range []any{"ipv4", "ipv6"} {
				if _, has := node[family.(string)]; has {
					g.Expect(c.families).To(ContainElement(family))
				} else {
					g.Expect(c.families).NotTo(ContainElement(family))
				}
			}
			g.Expect(yaml.Unmarshal([]byte(plan(t, c.conf, "--node-id", "5", "-o", "yaml").out), &again)).To(Succeed())
			g.Expect(again).To(Equal(node))
		})
	}
	NewWithT(t).Expect(plan(t, dualStack, "--node-id", "5", "-o", "yaml").out).To(ContainSubstring("podCapacity: 18446744073709551615\n"))
}

// The order of the families is the configuration's.
func TestPlanIPv6First(t *testing.T) {
	g := NewWithT(t)
	got := plan(t, `ipamConfig:
  podSubnetCIDR: fd00:1::/48,10.1.0.0/16
  vppHostSubnetCIDR: fd00:2::/48,172.30.0.0/16
  nodeInterconnectCIDR: fd00:3::/64,192.168.16.0/24
  vxlanCIDR: fd00:4::/64,192.168.30.0/24
  serviceCIDR: fd00:5::/108,10.96.0.0/12
  podSubnetOneNodePrefixLenIPv6: 24
  vppHostSubnetOneNodePrefixLenIPv6: 24
`, "--node-id", "5", "-o", "json")
	g.Expect(got.err).To(BeEmpty())
	var node nodePlan
	g.Expect(json.Unmarshal([]byte(got.out), &node)).To(Succeed())
	g.Expect(node.PodGatewayIP.String()).To(Equal("fd00:1:0:5::1"))
	g.Expect(node.IPv4.PodGatewayIP.String()).To(Equal("10.1.5.1"))
	g.Expect(node.families()).To(HaveLen(2))
}

func TestPlanWarns(t *testing.T) {
	const pods = "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 23"
	for _, c := range []struct {
		name, conf string
		want       []string
	}{
		{"nothing to warn of", pods + "}", []string{}},
		{"few pods", "ipamConfig: {podSubnetCIDR: 10.1.0.0/24, podSubnetOneNodePrefixLen: 29}", []string{"a /29 of 10.1.0.0/24 has only 4 addresses for pods"}},
		{"external IPAM", pods + ", useExternalIPAM: true}",
			[]string{"pod subnets come from Node.spec.podCIDRs (useExternalIPAM): the plan shows what would follow from the node ID"}},
		{"netresource", pods + "}\ncadastre: {podBlocks: netresource, kvdb: {type: kubernetes}}",
			[]string{"pod subnets come from NetResourceSet.spec.ipam (podBlocks: netresource): the plan shows what would follow from the node ID"}},
		{"static", pods + "}\ncadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/29]}",
			[]string{"a /29 of 10.1.0.0/16 has only 4 addresses for pods", "pod subnets are those of cadastre.staticPodCIDRs, whatever the node ID"}},
		{"DHCP", pods + ", nodeInterconnectDHCP: true}", []string{"DHCP decides on node addresses (nodeInterconnectDHCP): nodeIPAddress is empty"}},
		{"keys of Contiv-VPP", "IPAMConfig: {PodSubnetCIDR: 10.1.0.0/16, PodNetworkPrefixLen: 23}\nmtuSize: 1500\nuseTAPInterfaces: true\ntapInterfaceVersion: 2", []string{
			"ipamConfig.PodNetworkPrefixLen: is read as ipamConfig.podSubnetOneNodePrefixLen",
			"mtuSize: cadastre.dataplane none does not use it",
			"tapInterfaceVersion, useTAPInterfaces: pods are connected by veth pairs, or by the main plugin of the CNI list",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			got := plan(t, c.conf, "--node-id", "5", "-o", "json")
			g.Expect(got.code).To(Equal(0), got.err)
			var node nodePlan
			g.Expect(json.Unmarshal([]byte(got.out), &node)).To(Succeed())
			g.Expect(node.Warnings).To(Equal(c.want))
		})
	}
}

// With static blocks the plan has them, with DHCP no node address.
func TestPlanOfOtherSources(t *testing.T) {
	g := NewWithT(t)
	var static, dhcp map[string]any
	g.Expect(json.Unmarshal([]byte(plan(t, "cadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/24], nodeID: 5}", "-o", "json").out), &static)).To(Succeed())
	g.Expect(static).To(And(HaveKeyWithValue("podSubnetThisNode", "10.9.0.0/24"), HaveKeyWithValue("natLoopbackIP", "10.9.0.254"),
		HaveKeyWithValue("hostInterconnectIPInVPP", "172.30.5.1"), HaveKeyWithValue("nodeIPAddress", "192.168.16.5/24")))

	const conf = "ipamConfig: {nodeInterconnectDHCP: true}"
	g.Expect(json.Unmarshal([]byte(plan(t, conf, "--node-id", "5", "-o", "json").out), &dhcp)).To(Succeed())
	g.Expect(dhcp).To(HaveKeyWithValue("nodeIPAddress", ""))
}
