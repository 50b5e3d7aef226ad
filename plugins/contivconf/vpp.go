// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"time"
)

// VPP holds what dataplane vpp uses beside the keys that it shares with linux. The keys
// socket, podLink and memifDir are those of cadastre.vpp; the others are keys of Contiv-VPP.
type VPP struct {
	Socket   string    // of VPP's API
	PodLink  VPPLink   // of pods
	MemifDir string    // folder of the sockets of memif interfaces
	HostLink VPPLink   // between VPP and the node's kernel: VPPLinkTAP or VPPLinkAFPacket
	MainVRF  uint32    // routing table of the node; Cadastre.PodTable 0 means this one
	RxMode   VPPRxMode // of all interfaces
	RxRing   int       // of TAP interfaces; 0: VPP's default
	TxRing   int       // of TAP interfaces; 0: VPP's default
	GSO      bool      // of TAP interfaces
	Checksum bool      // TAP interfaces leave TCP and UDP checksums to the receiver
	Scan     VPPScan   // of neighbours
	Services bool      // the kernel of the node routes serviceCIDR to VPP
	Trace    bool      // VPP traces packets from its start on
}

// VPPLink selects the kind of a link with VPP.
type VPPLink string

// The kinds of links.
const (
	VPPLinkAFPacket VPPLink = "af_packet" // a veth pair with AF_PACKET: it outlives VPP
	VPPLinkTAP      VPPLink = "tap"       // a TAP of VPP (virtio)
	VPPLinkMemif    VPPLink = "memif"     // shared memory: only programs that use libmemif have it
)

// VPPRxMode selects how VPP receives packets of an interface.
type VPPRxMode string

// The modes.
const (
	VPPRxDefault   VPPRxMode = "default" // the driver of the interface decides
	VPPRxPolling   VPPRxMode = "polling"
	VPPRxInterrupt VPPRxMode = "interrupt"
	VPPRxAdaptive  VPPRxMode = "adaptive"
)

// VPPScan configures the scan of VPP for neighbours that are gone.
type VPPScan struct {
	Enabled  bool
	Interval time.Duration
	Stale    time.Duration // age of a neighbour that is probed
}

// VPPNode holds what dataplane vpp uses of a node's entry under nodeConfig.
type VPPNode struct {
	Main    string // name of the interface to other nodes; "": VPP has none yet
	Others  []VPPInterface
	Gateway netip.Addr // of the default route; the zero Addr: none
}

// VPPInterface is a further interface of VPP.
type VPPInterface struct {
	Name    string
	Address netip.Prefix // the zero Prefix: none
}

// VPPNode returns the part of the configuration for a node. A node without an entry has
// ipamConfig.defaultGateway alone.
func (c *Config) VPPNode(node string) VPPNode {
	var v VPPNode
	for _, f := range c.IPAM.Cluster.Families {
		if f.Gateway.IsValid() {
			v.Gateway = f.Gateway
		}
	}
	for _, n := range c.NodeConfigs {
		if n.NodeName != node {
			continue
		}
		v.Main = n.MainVPPInterface.InterfaceName
		for _, o := range n.OtherVPPInterfaces {
			address, _ := netip.ParsePrefix(o.IP)
			v.Others = append(v.Others, VPPInterface{o.InterfaceName, address})
		}
		if gw, err := netip.ParseAddr(n.Gateway); err == nil {
			v.Gateway = gw
		}
		break
	}
	return v
}

// Defaults of the keys of VPP.
const (
	defaultVPPSocket   = "/run/vpp/api.sock"
	defaultVPPMemifDir = "/run/cadastre/memif"
)

// defaultVPP returns the values of an empty file.
func defaultVPP() VPP {
	return VPP{
		Socket:   defaultVPPSocket,
		PodLink:  VPPLinkAFPacket,
		MemifDir: defaultVPPMemifDir,
		HostLink: VPPLinkTAP,
		RxMode:   VPPRxDefault,
		Checksum: true,
		Scan:     VPPScan{Enabled: true, Interval: time.Minute, Stale: 4 * time.Minute},
	}
}
