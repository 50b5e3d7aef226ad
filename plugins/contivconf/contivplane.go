// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"slices"
	"strconv"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// The transports of Contiv-VPP.
const (
	contivVXLAN     = "vxlan"
	contivSRv6      = "srv6"
	contivNoOverlay = "nooverlay"
)

// contivPodVRF is Contiv-VPP's default of podVRFID. Pods are in the main table with it:
// only another ID is a choice.
const contivPodVRF = 1

// planeKey is a key of Contiv-VPP that the data plane of the agent uses.
type planeKey struct {
	key  string
	owns []string // keys of Cadastre with the same meaning, which precede it
	take func(r *reading, c *Cadastre)
	says func(c *Cadastre) string // what the key is read as
}

// planeKeys returns the keys of Contiv-VPP's data plane that the one in Linux has, too.
// Later ones precede earlier ones of the same meaning.
func planeKeys() []planeKey {
	transport := func(key string, take func(r *reading, c *Cadastre)) planeKey {
		return planeKey{key, []string{"cadastre.transport"}, take, func(c *Cadastre) string {
			return "is read as cadastre.transport: " + string(c.Transport)
		}}
	}
	return []planeKey{
		{"mtuSize", []string{"cadastre.mtu"}, func(r *reading, c *Cadastre) {
			c.MTU = int(r.raw.MTUSize)
			r.Renamed["cadastre.mtu"] = "mtuSize"
		}, func(c *Cadastre) string { return "is read as cadastre.mtu: " + strconv.Itoa(c.MTU) }},
		{"natExternalTraffic", []string{"cadastre.masquerade"}, func(r *reading, c *Cadastre) {
			c.Masquerade = r.raw.NatExternalTraffic
		}, func(c *Cadastre) string { return "is read as cadastre.masquerade: " + strconv.FormatBool(c.Masquerade) }},
		transport("useSRv6Interconnect", func(r *reading, c *Cadastre) {
			c.takeTransport(r.raw.UseSRv6Interconnect, contivSRv6)
		}),
		transport("useL2Interconnect", func(r *reading, c *Cadastre) {
			c.takeTransport(r.raw.UseL2Interconnect, contivNoOverlay)
		}),
		transport("useNoOverlay", func(r *reading, c *Cadastre) {
			c.takeTransport(r.raw.UseNoOverlay, contivNoOverlay)
		}),
		transport("nodeToNodeTransport", func(r *reading, c *Cadastre) {
			t := r.raw.NodeToNodeTransport
			if t == "" {
				t = contivVXLAN
			}
			oneOf(&r.Collector, "nodeToNodeTransport", t, contivVXLAN, contivSRv6, contivNoOverlay)
			c.takeTransport(true, t)
		}),
		{"podVRFID", nil, func(r *reading, c *Cadastre) {
			if id := r.raw.PodVRFID; id != contivPodVRF && id != r.raw.MainVRFID {
				c.PodTable = id
			}
		}, func(c *Cadastre) string {
			switch {
			case c.Dataplane == DataplaneVPP && c.PodTable == 0:
				return "the routes to pods are in VRF 0 of VPP"
			case c.Dataplane == DataplaneVPP:
				return "the routes to pods are in VRF " + strconv.FormatUint(uint64(c.PodTable), 10) + " of VPP"
			case c.PodTable == 0:
				return "the routes to pods are in the main routing table"
			}
			return "the routes to pods are in routing table " + strconv.FormatUint(uint64(c.PodTable), 10)
		}},
		{"mainVRFID", nil, func(*reading, *Cadastre) {}, func(c *Cadastre) string {
			if c.Dataplane == DataplaneVPP {
				return "the node itself is in VRF 0 of VPP"
			}
			return "the node itself is in the main routing table of the kernel"
		}},
	}
}

// takeTransport sets the transport that a key of Contiv-VPP selects. A key that selects
// none leaves Contiv-VPP's default, an overlay.
func (c *Cadastre) takeTransport(selected bool, transport string) {
	switch {
	case selected && transport == contivNoOverlay && c.Dataplane == DataplaneVPP:
		c.Transport = TransportHostGW // VPP has the addresses of nodeInterconnectCIDR
	case selected && transport == contivNoOverlay:
		c.Transport = TransportNodeIP
	case selected || c.Transport == TransportNone:
		c.Transport = TransportVXLAN
	}
}

// contivPlane takes the keys of Contiv-VPP that the data plane has, too.
func (r *reading) contivPlane(c *Cadastre) {
	if c.Dataplane == DataplaneVPP {
		r.vppPlane(c)
	}
	var taken []planeKey
	for _, k := range planeKeys() {
		own := slices.IndexFunc(k.owns, func(key string) bool { return r.Given[key] })
		switch {
		case !r.Given[k.key]:
		case !c.Dataplane.MakesLinks():
			r.ignore(k.key, needsPlane)
		case own >= 0:
			r.ignore(k.key, k.owns[own]+" precedes it")
		default:
			k.take(r, c)
			taken = append(taken, k)
		}
	}
	for _, k := range taken {
		r.explain(k.key, k.says(c))
	}
	const nat = "nodeConfig[].natExternalTraffic"
	if r.Given[nat] && !c.Dataplane.MakesLinks() {
		r.ignore(nat, needsPlane)
	}
}

const needsPlane = "cadastre.dataplane none does not use it"

// Masquerades reports whether the packets of the node's pods to the outside get the node's
// address. They do if the cluster's do, or if an entry of the node under nodeConfig says so.
func (c *Config) Masquerades(node string) bool {
	for _, n := range c.NodeConfigs {
		if n.NodeName == node && n.NatExternalTraffic {
			return true
		}
	}
	return c.Cadastre.Masquerade
}

// Routing tables that the kernel reserves: default, main and local.
const (
	firstReservedTable = 253
	lastReservedTable  = 255
)

// validateTable reports a table that cannot have the routes to pods alone.
func (c *Cadastre) validateTable(p *yamldoc.Collector) {
	if c.Dataplane == DataplaneVPP {
		checkNumber(p, "podVRFID", int(c.PodTable), 0, maxVRF)
		return
	}
	if c.PodTable >= firstReservedTable && c.PodTable <= lastReservedTable {
		p.Add(RuleRange, "podVRFID", strconv.FormatUint(uint64(c.PodTable), 10),
			"is a routing table of the kernel itself: write another number, or 1 for the main table")
	}
	if kv.IsUplinkTable(c.PodTable) {
		p.Add(RuleRange, "podVRFID", strconv.FormatUint(uint64(c.PodTable), 10),
			"is the routing table of a network interface: write a smaller number, or 1 for the main table")
	}
}
