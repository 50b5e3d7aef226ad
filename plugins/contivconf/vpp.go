// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"cmp"
	"net/netip"
)

// VPP holds what dataplane vpp uses beside the keys that it shares with linux. RxMode is
// Contiv-VPP's interfaceRxMode; the others are keys of cadastre.vpp.
type VPP struct {
	Socket string // of VPP's API
	// Interface is the link that VPP takes on nodes whose entry under nodeConfig has none.
	Interface string
	PodLink   VPPLink   // of pods
	MemifDir  string    // folder of the sockets of memif interfaces
	RxMode    VPPRxMode // of the interfaces that the agent makes
}

// VPPLink selects the kind of the links between VPP and pods.
type VPPLink string

// The kinds of links.
const (
	VPPLinkAFPacket VPPLink = "af_packet" // a veth pair, which outlives VPP
	VPPLinkMemif    VPPLink = "memif"     // shared memory: only programs with libmemif have it
)

// VPPRxMode selects how VPP receives the packets of an interface.
type VPPRxMode string

// The modes.
const (
	VPPRxDefault   VPPRxMode = "default" // VPP decides
	VPPRxPolling   VPPRxMode = "polling"
	VPPRxInterrupt VPPRxMode = "interrupt"
	VPPRxAdaptive  VPPRxMode = "adaptive"
)

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

// Defaults of the keys of VPP.
const (
	defaultVPPSocket   = "/run/vpp/api.sock"
	defaultVPPMemifDir = "/run/vpp/memif"
)

// vpp returns the values of cadastre.vpp.
func (r *reading) vpp() VPP {
	raw := r.raw.Cadastre.VPP
	return VPP{
		Socket:    raw.Socket,
		Interface: raw.Interface,
		PodLink:   raw.PodLink,
		MemifDir:  raw.MemifDir,
		RxMode:    VPPRxDefault,
	}
}

// isGiven reports whether a key of cadastre.vpp is not its default.
func (v VPP) isGiven() bool {
	return v.Socket != defaultVPPSocket || v.Interface != "" || v.PodLink != VPPLinkAFPacket ||
		v.MemifDir != defaultVPPMemifDir
}
