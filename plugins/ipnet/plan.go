// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// plan holds what the values of all attachments have in common. It is immutable.
type plan struct {
	mtu      uint32
	closed   bool // packets to pods leave only by our routes
	networks map[string]podNet
	uplinks  map[string]uplinkNet // by interface; only with a data plane
}

// podNet is one pod network.
type podNet struct {
	ranges []netip.Prefix // of the whole cluster
	table  uint32         // 0: the main table
	vni    uint32         // of the network's own VXLAN link; 0: it uses the node's link
}

// newPlan returns the plan for pod networks with their ranges. A custom network has a table
// and a VXLAN link of its own if apart is true. Otherwise packets of two networks cannot be
// told apart on the way, and it uses the main table. With uplinks the default network uses
// the main table too: its pods leave the node by the uplinks' tables.
func newPlan(ranges map[string][]netip.Prefix, d Dataplane, mtu uint32, apart bool, all []ipam.Uplink) *plan {
	s := &plan{mtu: mtu, networks: make(map[string]podNet, len(ranges)), uplinks: uplinksOf(all)}
	if len(all) > 0 {
		d.PodTable = 0
	}
	names := slices.DeleteFunc(sortedKeys(ranges), func(name string) bool { return name == ipam.PodPool })
	numbers := numbersOf("network/", names, d.VNI, d.PodTable-tableBase)
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
	}) && maps.EqualFunc(s.uplinks, o.uplinks, func(x, y uplinkNet) bool { return proto.Equal(x.value, y.value) })
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

// values returns a Network for each pod network and the Uplinks, by southbound key. With
// uplinks the default network is open: the cloud routes to addresses in its ranges.
func (s *plan) values() map[string]proto.Message {
	all := make(map[string]proto.Message, len(s.networks)+len(s.uplinks))
	for id, u := range s.uplinks {
		all[kv.SinkUplinkPrefix+id] = u.value
	}
	for name, n := range s.networks {
		closed := s.closed && (name != ipam.PodPool || len(s.uplinks) == 0)
		m := &kv.Network{Name: name, Table: n.table, Vni: n.vni, Closed: closed}
		for _, r := range n.ranges {
			m.Subnets = append(m.Subnets, r.String())
		}
		all[kv.SinkNetworkPrefix+name] = m
	}
	return all
}
