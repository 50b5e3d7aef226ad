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
	vni    uint32         // of the network's own VXLAN link; 0: it uses the node's link
}

// newPlan returns the plan for pod networks with their ranges. A custom network has a table
// and a VXLAN link of its own if apart is true. Otherwise packets of two networks cannot be
// told apart on the way, and it uses the main table.
func newPlan(ranges map[string][]netip.Prefix, d Dataplane, mtu uint32, apart bool) *plan {
	s := &plan{mtu: mtu, networks: make(map[string]podNet, len(ranges))}
	names := slices.DeleteFunc(sortedKeys(ranges), func(name string) bool { return name == ipam.PodPool })
	numbers := numbersOf(names, d.VNI, d.PodTable-tableBase)
	for name, r := range ranges {
		n := podNet{ranges: r, table: d.PodTable}
		if number, custom := numbers[name]; custom {
			n.table = 0
			if apart {
				n.table, n.vni = tableBase+number, number
			}
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

// networkOf returns the name of the pod network of a block.
func (s *plan) networkOf(block netip.Prefix) string {
	for name, n := range s.networks {
		if name != ipam.PodPool && slices.ContainsFunc(n.ranges, block.Overlaps) {
			return name
		}
	}
	return ipam.PodPool
}

// linked returns the names of the networks with a VXLAN link of their own, in order.
func (s *plan) linked() []string {
	return slices.DeleteFunc(sortedKeys(s.networks), func(name string) bool { return s.networks[name].vni == 0 })
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
