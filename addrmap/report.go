// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"net/netip"
)

// Place is a prefix of a pool.
type Place struct {
	Pool   string
	Prefix netip.Prefix
}

// Use holds a node's report of one of its blocks.
type Use struct {
	Place
	Leases   uint64
	Draining bool
}

// Reports collects what one node has reported: the use of its blocks, and for older nodes
// only the sum for a pool.
type Reports struct {
	Uses []Use
	Sums map[string]uint64 // by pool: leases, of a node that does not report the blocks
}

// AddSum adds the leases of a pool whose blocks the node does not report.
func (r *Reports) AddSum(pool string, leases uint64) {
	if r.Sums == nil {
		r.Sums = map[string]uint64{}
	}
	r.Sums[pool] += leases
}

// AddNode adds the blocks that another node was granted and those that it reports. The use
// of a block is known if the node reports it, or if it is the node's only one in its pool.
func (s *Source) AddNode(node string, granted []Place, reports Reports) {
	uses, count := map[Place]Use{}, map[string]int{}
	for _, u := range reports.Uses {
		uses[u.Place] = u
	}
	for _, p := range granted {
		count[p.Pool]++
	}
	for _, p := range granted {
		b := Block{Pool: p.Pool, Prefix: p.Prefix, Node: node}
		sum, summed := reports.Sums[p.Pool]
		if u, reported := uses[p]; reported {
			b.Used, b.Known, b.Draining = u.Leases, true, u.Draining
			delete(uses, p)
		} else if summed && count[p.Pool] == 1 {
			b.Used, b.Known = sum, true
		}
		s.Blocks = append(s.Blocks, b)
	}
	for _, u := range reports.Uses {
		if _, left := uses[u.Place]; left {
			delete(uses, u.Place)
			b := Block{Pool: u.Pool, Prefix: u.Prefix, Node: node, Used: u.Leases, Known: true, Draining: u.Draining}
			s.Blocks = append(s.Blocks, b)
		}
	}
}
