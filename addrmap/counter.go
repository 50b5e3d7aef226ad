// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"math"
	"math/bits"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// hour is the time for which a change is recent.
const hour = time.Hour

// counter counts the addresses of one prefix of a pool in cells.
type counter struct {
	prefix   netip.Prefix
	cellLen  int
	cells    []localapi.AddressCounts
	blocks   []Block // that overlap prefix
	owned    map[netip.Prefix]*ownBlock
	excluded map[netip.Addr]bool
	now      time.Time
}

// ownBlock is a block of this node, with the prefixes that its policy reserves.
type ownBlock struct {
	draining bool
	reserved []netip.Prefix
}

// newCounter returns the counts of a prefix without its leases. Its cells have at most
// cellBits bits.
func (s *Source) newCounter(pool string, prefix netip.Prefix, cellBits int) *counter {
	cellLen := min(prefix.Bits()+cellBits, prefix.Addr().BitLen())
	c := &counter{
		prefix:   prefix,
		cellLen:  cellLen,
		cells:    make([]localapi.AddressCounts, 1<<(cellLen-prefix.Bits())),
		owned:    map[netip.Prefix]*ownBlock{},
		excluded: map[netip.Addr]bool{},
		now:      s.Now,
	}
	policy := s.policy(pool)
	for _, b := range s.Blocks {
		if b.Pool == pool && b.Prefix.Overlaps(prefix) {
			c.addBlock(b, &policy)
		}
	}
	for _, e := range s.Exclusions {
		if e.Pool == pool && prefix.Contains(e.Addr) {
			c.addExclusion(e.Addr)
		}
	}
	return c
}

func (c *counter) addBlock(b Block, policy *ledger.Pool) {
	c.blocks = append(c.blocks, b)
	if !b.Own {
		c.addOther(&b)
		return
	}
	own := &ownBlock{draining: b.Draining, reserved: reserved(policy, b.Prefix)}
	c.owned[b.Prefix] = own
	c.each(b.Prefix, func(n *localapi.AddressCounts, size uint64) { *own.rest(n) = sum(*own.rest(n), size) })
	for _, r := range own.reserved {
		c.each(r, func(n *localapi.AddressCounts, size uint64) {
			*own.rest(n) -= min(size, *own.rest(n))
			n.Reserved = sum(n.Reserved, size)
		})
	}
}

// addOther counts a block of another node. Its use is known as a whole only, so a part of
// the block has none.
func (c *counter) addOther(b *Block) {
	whole := false
	if b.Known && b.Prefix.Bits() >= c.prefix.Bits() {
		first, last := c.span(b.Prefix)
		if whole = first == last; whole {
			c.cells[first].OtherHeld = sum(c.cells[first].OtherHeld, b.Used)
		}
	}
	c.each(b.Prefix, func(n *localapi.AddressCounts, size uint64) {
		n.Other = sum(n.Other, size)
		if !whole {
			n.OtherUnknown = sum(n.OtherUnknown, size)
		}
	})
}

// rest returns the count of the addresses that have no lease and no reservation.
func (b *ownBlock) rest(n *localapi.AddressCounts) *uint64 {
	if b.draining {
		return &n.Draining
	}
	return &n.Free
}

func (c *counter) addExclusion(a netip.Addr) {
	for _, b := range c.blocks {
		own := c.owned[b.Prefix]
		if own == nil || !b.Prefix.Contains(a) || contains(own.reserved, a) {
			continue
		}
		n := &c.cells[c.cellOf(a)]
		*own.rest(n)--
		n.Excluded++
		c.excluded[a] = true
	}
}

// addLease counts a lease of the pool, if its address is in the prefix.
func (c *counter) addLease(l *ledger.Lease) {
	own := c.owned[l.Block]
	if own == nil || !c.prefix.Contains(l.Addr) {
		return
	}
	n := &c.cells[c.cellOf(l.Addr)]
	switch {
	case contains(own.reserved, l.Addr):
		n.Reserved--
	case c.excluded[l.Addr]:
		n.Excluded--
	default:
		*own.rest(n)--
	}
	switch {
	case l.State == ledger.Cooling:
		n.Cooling++
	case l.State == ledger.Quarantined:
		n.Quarantined++
	case l.Purpose == ledger.ForInfra:
		n.Infra++
	default:
		n.Held++
	}
	if c.now.Sub(l.Since) < hour {
		n.Recent++
	}
}

// total returns the counts of the whole prefix.
func (c *counter) total() (t localapi.AddressCounts) {
	for i := range c.cells {
		t = plus(t, c.cells[i])
	}
	return t
}

// each calls f for every cell that overlaps p, with the number of common addresses.
func (c *counter) each(p netip.Prefix, f func(*localapi.AddressCounts, uint64)) {
	if !p.Overlaps(c.prefix) {
		return
	}
	first, last := c.span(p)
	size := addrspace.Size(netip.PrefixFrom(p.Addr(), max(p.Bits(), c.cellLen)))
	for i := first; i <= last; i++ {
		f(&c.cells[i], size)
	}
}

// span returns the first and the last cell that p overlaps.
func (c *counter) span(p netip.Prefix) (first, last int) {
	if p.Bits() <= c.prefix.Bits() {
		return 0, len(c.cells) - 1
	}
	return c.cellOf(p.Addr()), c.cellOf(lastOf(p))
}

// cellOf returns the number of the cell of an address of the prefix.
func (c *counter) cellOf(a netip.Addr) (cell int) {
	b := a.AsSlice()
	for i := c.prefix.Bits(); i < c.cellLen; i++ {
		cell = cell<<1 | int(b[i/8]>>(7-i%8)&1)
	}
	return cell
}

// plus adds counts; one that is too large becomes the largest.
func plus(x, y localapi.AddressCounts) localapi.AddressCounts {
	return localapi.AddressCounts{
		Held:        sum(x.Held, y.Held),
		Infra:       sum(x.Infra, y.Infra),
		Cooling:     sum(x.Cooling, y.Cooling),
		Quarantined: sum(x.Quarantined, y.Quarantined),
		Reserved:    sum(x.Reserved, y.Reserved),
		Excluded:    sum(x.Excluded, y.Excluded),
		Free:        sum(x.Free, y.Free),
		Draining:    sum(x.Draining, y.Draining),
		Other:       sum(x.Other, y.Other),
		OtherHeld:   sum(x.OtherHeld, y.OtherHeld),
		Recent:      sum(x.Recent, y.Recent),

		OtherUnknown: sum(x.OtherUnknown, y.OtherUnknown),
	}
}

func sum(x, y uint64) uint64 {
	s, carry := bits.Add64(x, y, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return s
}
