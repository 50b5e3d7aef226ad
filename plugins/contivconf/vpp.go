// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
)

// VPP holds what dataplane vpp uses beside the keys that it shares with linux. Socket,
// PodLink and MemifDir are keys of cadastre.vpp; the others are those of Contiv-VPP.
type VPP struct {
	Socket   string    // of VPP's API
	PodLink  VPPLink   // of pods: VPPLinkAFPacket or VPPLinkMemif
	MemifDir string    // folder of the sockets of memif interfaces
	HostLink VPPLink   // between VPP and the node's kernel: VPPLinkTAP or VPPLinkAFPacket
	RxRing   int       // of the TAP: packets; 0: VPP's default
	TxRing   int       // of the TAP: packets; 0: VPP's default
	RxMode   VPPRxMode // of the interfaces that the agent makes
	MainVRF  uint32    // routing table of the node, which table 0 of a value stands for
}

// VPPLink selects the kind of a link with VPP.
type VPPLink string

// The kinds of links.
const (
	VPPLinkAFPacket VPPLink = "af_packet" // a veth pair, which outlives VPP
	VPPLinkTAP      VPPLink = "tap"       // a TAP (virtio), which ends with VPP
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

// VPPNode holds what dataplane vpp uses of a node's entry under nodeConfig.
type VPPNode struct {
	Main     string         // link of the node that VPP takes to reach other nodes; "": none
	Others   []VPPInterface // further links of the node that VPP takes
	Gateways []netip.Addr   // of the default routes, one of each family at most
}

// VPPInterface is a link of the node that VPP takes.
type VPPInterface struct {
	Name    string
	Address netip.Prefix // with the length of its network; the zero Prefix: none
}

// VPPNode returns the part of the configuration for a node. A node without an entry has
// ipamConfig.defaultGateway alone.
func (c *Config) VPPNode(node string) VPPNode {
	var v VPPNode
	var own netip.Addr
	for _, n := range c.NodeConfigs {
		if n.NodeName != node {
			continue
		}
		v.Main = n.MainVPPInterface.InterfaceName
		for _, o := range n.OtherVPPInterfaces {
			address, _ := netip.ParsePrefix(o.IP)
			v.Others = append(v.Others, VPPInterface{o.InterfaceName, address})
		}
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

// vpp returns the values of cadastre.vpp, and the defaults of Contiv-VPP for the others.
func (r *reading) vpp() VPP {
	raw := r.raw.Cadastre.VPP
	return VPP{
		Socket:   raw.Socket,
		PodLink:  raw.PodLink,
		MemifDir: raw.MemifDir,
		HostLink: VPPLinkTAP,
		RxMode:   VPPRxDefault,
	}
}
