// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// plan holds what the values of all attachments have in common. It is immutable.
type plan struct {
	mtu      uint32
	closed   bool // packets to pods leave only by our routes
	networks map[string]podNet
}

// podNet is one pod network.
type podNet struct {
	ranges []netip.Prefix // of the whole cluster
	table  uint32         // 0: the main table
	vni    uint32         // 0: that of the node's VXLAN link
}

// newPlan returns the plan for pod networks with their ranges.
func newPlan(ranges map[string][]netip.Prefix, d Dataplane, mtu uint32) *plan {
	s := &plan{mtu: mtu, networks: make(map[string]podNet, len(ranges))}
	names := slices.DeleteFunc(sortedKeys(ranges), func(name string) bool { return name == ipam.PodPool })
	numbers := numbersOf(names, d.VNI, d.PodTable-tableBase)
	for name, r := range ranges {
		n := podNet{ranges: r, table: d.PodTable}
		if number, custom := numbers[name]; custom {
			n.table, n.vni = tableBase+number, number
		}
		s.networks[name] = n
	}
	return s
}

// equal compares by value.
func (s *plan) equal(o *plan) bool {
	return s.mtu == o.mtu && s.closed == o.closed && maps.EqualFunc(s.networks, o.networks, func(x, y podNet) bool {
		return x.table == y.table && x.vni == y.vni && slices.Equal(x.ranges, y.ranges)
	})
}

// tableOf returns the routing table of a block of a pod network.
func (s *plan) tableOf(block netip.Prefix) uint32 {
	for name, n := range s.networks {
		if name != ipam.PodPool && slices.ContainsFunc(n.ranges, block.Overlaps) {
			return n.table
		}
	}
	return s.networks[ipam.PodPool].table
}

// values returns a Network for each pod network, by southbound key.
func (s *plan) values() map[string]*kv.Network {
	all := make(map[string]*kv.Network, len(s.networks))
	for name, n := range s.networks {
		m := &kv.Network{Name: name, Table: n.table, Vni: n.vni, Closed: s.closed}
		for _, r := range n.ranges {
			m.Subnets = append(m.Subnets, r.String())
		}
		all[kv.SinkNetworkPrefix+name] = m
	}
	return all
}
