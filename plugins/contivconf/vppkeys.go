// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import "strings"

// vppKeys returns the keys of Contiv-VPP that dataplane vpp uses, and linux does not: what
// each is read as.
func vppKeys() []Note {
	return []Note{
		{
			[]string{"nodeConfig[].mainVPPInterface.interfaceName"},
			"VPP takes this link of the node to reach the other nodes",
		},
		{[]string{"nodeConfig[].gateway"}, "VPP's default route leads there"},
	}
}

// vppNotes returns what happens with dataplane vpp instead of each key of Contiv-VPP that it
// does not use, if that differs from what happens with linux.
func vppNotes() []Note {
	return []Note{
		{
			[]string{"useTAPInterfaces", "tapInterfaceVersion", "tapv2RxRingSize", "tapv2TxRingSize"},
			"VPP has veth pairs to pods and to the node's kernel: they outlive VPP, and a TAP does not",
		},
		{
			[]string{"vmxnet3RxRingSize", "vmxnet3TxRingSize"},
			"the configuration that VPP starts with (startup.conf) sets up its network cards",
		},
		{[]string{"interfaceRxMode"}, "VPP decides how it receives the packets of links"},
		{
			[]string{"tcpChecksumOffloadDisabled", "enableGSO"},
			"pods' links have no offloads, as VPP would have to undo them; the other links keep theirs",
		},
		{
			[]string{
				"cleanupIdleNATSessions", "tcpNATSessionTimeout",
				"otherNATSessionTimeout", "disableNATVirtualReassembly",
			},
			"VPP's NAT ends idle sessions by its own timeouts (vppctl set nat timeout)",
		},
		{
			[]string{"serviceLocalEndpointWeight", "routeServiceCIDRToVPP"},
			"VPP has no services: it sends packets to serviceCIDR to the node's kernel, where kube-proxy serves them",
		},
		{
			[]string{"scanIPNeighbors", "ipNeighborScanInterval", "ipNeighborStaleThreshold"},
			"the neighbours of pods and tunnels are permanent; VPP asks for all others again when they age",
		},
		{
			[]string{"stealFirstNIC", "stealInterface", "stnSocketFile", "stnVersion", "nodeConfig[].stealInterface"},
			"VPP takes the link that nodeConfig[].mainVPPInterface names",
		},
		{
			[]string{"nodeConfig[].otherVPPInterfaces"},
			"VPP takes one link of the node; interfaces that vppctl or startup.conf make stay as they are",
		},
		{[]string{"enablePacketTrace"}, "vppctl trace add af-packet-input 100 shows packets"},
		{
			[]string{"ipamConfig.podVPPSubnetCIDR"},
			"VPP has the gateway's address for its pods, the first one of the node's pod subnet",
		},
		{
			[]string{"nodeConfig[].mainVPPInterface.useDHCP"},
			"the address of mainVPPInterface.ip precedes it",
		},
	}
}

// vppPlane takes the keys that dataplane vpp uses alone, and its default transport.
func (r *reading) vppPlane(c *Cadastre) {
	if !r.Given["cadastre.transport"] {
		c.Transport = TransportVXLAN
	}
	for path := range r.Unused {
		if text := noteOf(vppKeys(), path); text != "" {
			delete(r.Unused, path)
			r.explain(path, text)
		} else if text := noteOf(vppNotes(), path); text != "" {
			r.explain(path, text)
		}
	}
}

// isBelow reports whether path is that of a key, or of one in the section of that name.
func isBelow(path, key string) bool {
	return path == key || strings.HasPrefix(path, key+".") || strings.HasPrefix(path, key+"[]")
}
