// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Overview counts the addresses of all pools.
func (s *Source) Overview() localapi.Map {
	m := localapi.Map{Scope: s.Scope, Node: s.Node, Taken: s.Now.UTC(), Pools: []localapi.MapPool{}}
	names := s.pools()
	if n := len(names) - localapi.MapMaxPools; n > 0 {
		names, m.More = names[:localapi.MapMaxPools], n
	}
	counters := map[string][]*counter{}
	for _, name := range names {
		for _, root := range s.roots(name) {
			counters[name] = append(counters[name], s.newCounter(name, root, 0))
		}
	}
	for l := range s.leases() {
		for _, c := range counters[l.Pool] {
			c.addLease(l)
		}
	}
	for _, name := range names {
		p := localapi.MapPool{Name: name, Roots: []localapi.MapRoot{}}
		for _, c := range counters[name] {
			t := c.total()
			p.Counts = plus(p.Counts, t)
			if len(p.Roots) < localapi.MapMaxBlocks {
				p.Roots = append(p.Roots, localapi.MapRoot{Prefix: c.prefix, Blocks: len(c.blocks), Counts: t})
			}
		}
		m.Pools = append(m.Pools, p)
	}
	return m
}

// Part counts the addresses of one prefix in at most 1024 cells.
func (s *Source) Part(pool string, prefix netip.Prefix) (m localapi.MapPart, err error) {
	if !slices.Contains(s.pools(), pool) {
		return m, fmt.Errorf("map: pool %q is unknown", pool)
	}
	if prefix != prefix.Masked() {
		return m, fmt.Errorf("map: prefix %s has bits behind its length: want %s", prefix, prefix.Masked())
	}
	c := s.newCounter(pool, prefix, s.cellBits(pool, prefix))
	m = localapi.MapPart{
		Pool:    pool,
		Prefix:  prefix,
		Taken:   s.Now.UTC(),
		CellLen: c.cellLen,
		Cells:   []localapi.MapCell{},
		Blocks:  []localapi.MapBlock{},
	}
	single := map[int]*localapi.MapLease{}
	if c.cellLen == prefix.Addr().BitLen() {
		for _, e := range s.Exclusions {
			if e.Pool == pool && prefix.Contains(e.Addr) {
				single[c.cellOf(e.Addr)] = &localapi.MapLease{IP: e.Addr, State: "excluded", Reason: e.Reason}
			}
		}
	}
	occupied := netip.Prefix{}
	for l := range s.in(pool, c) {
		c.addLease(l)
		occupied = widen(occupied, l.Addr)
		if c.cellLen == l.Addr.BitLen() {
			single[c.cellOf(l.Addr)] = leaseOf(l)
		}
	}
	if occupied.IsValid() {
		m.Occupied = &occupied
	}
	m.Counts = c.total()
	m.Cells = c.answer(single)
	m.Blocks, m.More = c.list()
	return m, nil
}

// cellBits returns the number of bits of the cells of a prefix: that of its blocks, if
// they fit into an answer.
func (s *Source) cellBits(pool string, prefix netip.Prefix) (n int) {
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Pool != pool || !b.Prefix.Overlaps(prefix) {
			continue
		}
		if own := b.Prefix.Bits() - prefix.Bits(); own <= localapi.MapCellBits {
			n = max(n, own)
		}
	}
	if n == 0 {
		return localapi.MapCellBits
	}
	return n
}

// in yields the leases of the pool that are in the prefix of a counter. Few addresses
// are looked up one by one, so that the cost does not depend on the number of leases.
func (s *Source) in(pool string, c *counter) func(func(*ledger.Lease) bool) {
	return func(yield func(*ledger.Lease) bool) {
		if s.Lease != nil && c.cellLen == c.prefix.Addr().BitLen() {
			for a, n := c.prefix.Addr(), len(c.cells); n > 0; a, n = a.Next(), n-1 {
				if l, ok := s.Lease(pool, a); ok && !yield(&l) {
					return
				}
			}
			return
		}
		for l := range s.leases() {
			if l.Pool == pool && c.prefix.Contains(l.Addr) && !yield(l) {
				return
			}
		}
	}
}

// answer returns the cells in which a node has a block.
func (c *counter) answer(single map[int]*localapi.MapLease) []localapi.MapCell {
	owners := make([]localapi.MapCell, len(c.cells))
	for _, b := range c.blocks {
		first, last := c.span(b.Prefix)
		for i := first; i <= last; i++ {
			o := &owners[i]
			if o.Blocks++; o.Blocks == 1 {
				o.Node = b.Node
			} else if o.Node != b.Node {
				o.Node = ""
			}
		}
	}
	all := []localapi.MapCell{}
	for i, o := range owners {
		if o.Blocks == 0 {
			continue
		}
		o.Cell, o.AddressCounts, o.Lease = i, c.cells[i], single[i]
		if o.Blocks == 1 {
			o.Blocks = 0
		}
		if len(c.owned) == len(c.blocks) {
			o.Node = "" // all blocks are of the node that answers
		}
		all = append(all, o)
	}
	return all
}

// list returns the blocks with their counts, and the number of those
// that are left out.
func (c *counter) list() (all []localapi.MapBlock, more int) {
	all = []localapi.MapBlock{}
	blocks := slices.SortedFunc(slices.Values(c.blocks), func(x, y Block) int {
		return cmp.Or(x.Prefix.Compare(y.Prefix), cmp.Compare(x.Node, y.Node))
	})
	if more = len(blocks) - localapi.MapMaxBlocks; more > 0 {
		blocks = blocks[:localapi.MapMaxBlocks]
	}
	for _, b := range blocks {
		out := localapi.MapBlock{Prefix: b.Prefix, Node: b.Node, Own: b.Own}
		if b.Own {
			out.Counts, out.State = b.Counts, ledger.Active.String()
			if b.Draining {
				out.State = ledger.Draining.String()
			}
		} else {
			out.Counts = localapi.AddressCounts{Other: addrspace.Size(b.Prefix), OtherHeld: b.Used}
			if out.State = stateOf(&b); !b.Known {
				out.Counts.OtherUnknown = out.Counts.Other
			}
		}
		all = append(all, out)
	}
	return all, max(more, 0)
}

// stateOf returns the state of another node's block, "" if it is not known.
func stateOf(b *Block) string {
	switch {
	case !b.Known:
		return ""
	case b.Draining:
		return ledger.Draining.String()
	}
	return ledger.Active.String()
}

// widen returns the longest prefix that has p and a.
func widen(p netip.Prefix, a netip.Addr) netip.Prefix {
	if !p.IsValid() {
		return netip.PrefixFrom(a, a.BitLen())
	}
	for !p.Contains(a) {
		p = netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
	}
	return p
}

func leaseOf(l *ledger.Lease) *localapi.MapLease {
	since := l.Since.UTC()
	out := &localapi.MapLease{
		IP:      l.Addr,
		State:   l.State.String(),
		Purpose: l.Purpose.String(),
		Pod:     podOf(l),
		Since:   &since,
		Reason:  l.Reason,
	}
	if l.Purpose != ledger.ForInfra {
		out.Container, out.IfName = l.Key.ContainerID, l.Key.IfName
	} else {
		out.IfName = l.Key.IfName
	}
	return out
}
