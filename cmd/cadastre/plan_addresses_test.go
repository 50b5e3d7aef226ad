// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestPlanRefusesAddressesThatSomethingElseHas(t *testing.T) {
	for name, c := range map[string]struct{ conf, want string }{
		"reserved pods":      {"ipamConfig: {podSubnetCIDR: 127.1.0.0/16}", `ipamConfig.podSubnetCIDR: "127.1.0.0/16" shares addresses with 127.0.0.0/8 (loopback)`},
		"reserved VXLAN":     {"ipamConfig: {vxlanCIDR: 169.254.9.0/24}", `ipamConfig.vxlanCIDR: "169.254.9.0/24" shares addresses with 169.254.0.0/16 (link-local)`},
		"a pod gateway":      {"nodeConfig: [{nodeName: a, mainVPPInterface: {ip: 10.1.5.1/24}}]", `nodeConfig[0].mainVPPInterface.ip: "10.1.5.1/24" is an address that node ID 5 has of podSubnetCIDR`},
		"a node's address":   {"nodeConfig: [{nodeName: a, mainVPPInterface: {ip: 192.168.16.9/24}}]", `nodeConfig[0].mainVPPInterface.ip: "192.168.16.9/24" is the address that node ID 9 gets from nodeInterconnectCIDR, 192.168.16.0/24`},
		"above the gateway":  {"ipamConfig: {defaultGateway: 192.168.16.4}\nnodeConfig: [{nodeName: a, mainVPPInterface: {ip: 192.168.16.9/24}}]", "node ID 8 gets"},
		"a node's gateway":   {"nodeConfig: [{nodeName: a, gateway: 192.168.16.1}]", `nodeConfig[0].gateway: "192.168.16.1" is the address that node ID 1 gets from nodeInterconnectCIDR, 192.168.16.0/24: write it as ipamConfig.defaultGateway`},
		"the same gateway":   {"ipamConfig: {defaultGateway: 192.168.16.1}\nnodeConfig: [{nodeName: a, gateway: 192.168.16.1}]", ""},
		"the node's own":     {"cadastre: {nodeID: 9}\nnodeConfig: [{nodeName: a, mainVPPInterface: {ip: 192.168.16.9/24}}]", ""},
		"outside, same link": {"ipamConfig: {nodeInterconnectCIDR: 192.168.16.0/25}\nnodeConfig: [{nodeName: a, mainVPPInterface: {ip: 192.168.16.200/24}}]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			o := plan(t, c.conf, "--node-id", "5")
			if c.want == "" {
				g.Expect(o.code).To(BeZero(), o.err)
				return
			}
			g.Expect(o.code).NotTo(BeZero())
			g.Expect(o.err).To(ContainSubstring(c.want))
		})
	}
}
