// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"cmp"
	"net/netip"
)

// VPP holds the keys of cadastre.vpp: what dataplane vpp uses beside the keys that it shares
// with linux.
type VPP struct {
	Socket string // of VPP's API
	// Interface is the link that VPP takes on nodes whose entry under nodeConfig has none.
	Interface string
}

// VPPNode holds what dataplane vpp uses of a node's entry under nodeConfig, beside the
// address of its main interface.
type VPPNode struct {
	Main     string       // link of the node that VPP takes to reach other nodes; "": none
	Gateways []netip.Addr // of the default routes, one of each family at most
}

// VPPNode returns the part of the configuration for a node. A node without an entry has
// cadastre.vpp.interface and ipamConfig.defaultGateway.
func (c *Config) VPPNode(node string) VPPNode {
	v := VPPNode{Main: c.Cadastre.VPP.Interface}
	var own netip.Addr
	for _, n := range c.NodeConfigs {
		if n.NodeName != node {
			continue
		}
		v.Main = cmp.Or(n.MainVPPInterface.InterfaceName, v.Main)
		own, _ = netip.ParseAddr(n.Gateway)
		break
	}
	if own.IsValid() {
		v.Gateways = append(v.Gateways, own)
	}
	for _, f := range c.IPAM.Cluster.Families {
		if f.Gateway.IsValid() && (!own.IsValid() || own.Is4() != f.Gateway.Is4()) {
			v.Gateways = append(v.Gateways, f.Gateway)
		}
	}
	return v
}

const defaultVPPSocket = "/run/vpp/api.sock"

// vpp returns the values of cadastre.vpp.
func (r *reading) vpp() VPP { return VPP(r.raw.Cadastre.VPP) }

// isGiven reports whether a key of cadastre.vpp is not its default.
func (v VPP) isGiven() bool { return v.Socket != defaultVPPSocket || v.Interface != "" }
