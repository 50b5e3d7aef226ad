// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"
	"slices"
)

// Choice narrows which blocks an allocation takes. The zero Choice takes the
// next free block of each range's own size.
type Choice struct {
	// Sizes holds the prefix lengths that the node wants, by pool. 0 and a
	// missing entry stand for the range's own.
	Sizes []int
	// Fits reports whether a range may be cut in blocks of a length that is not
	// its own. With nil it may be cut in every length.
	Fits func(r Range, bits int) bool
	// Prefer lists blocks to take before any other, in this order. A block
	// counts if it is free or cooling, has the wanted size, and lies in a range
	// that is not draining. Taken is not asked about it.
	Prefer []netip.Prefix
	// Taken returns a prefix that overlaps block and that the owner must not
	// get, false if there is none. With nil every free block may be taken. It
	// must not call the Set.
	Taken takenFunc
}

type takenFunc = func(block netip.Prefix) (netip.Prefix, bool)

// sizeOf returns the wanted prefix length for a pool, 0 for the range's own.
func (c *Choice) sizeOf(pool int) int {
	if pool < len(c.Sizes) {
		return c.Sizes[pool]
	}
	return 0
}

// bits returns the prefix length of a block of r, false if r cannot have the
// wanted one.
func (c *Choice) bits(r *rangeState) (int, bool) {
	bits := c.sizeOf(r.Pool)
	if bits == 0 || bits == r.Bits {
		return r.Bits, true
	}
	possible := bits >= r.Prefix.Bits() && bits <= r.Prefix.Addr().BitLen()
	return bits, possible && (c.Fits == nil || c.Fits(r.Range, bits))
}

// preferred finds the first preferred block that serves the pool.
func (s *Set) preferred(pool int, c *Choice) (grant, bool) {
	for _, p := range c.Prefer {
		p = p.Masked()
		r := s.rangeOf(p)
		if r == nil || r.Pool != pool || r.Draining {
			continue
		}
		if bits, ok := c.bits(r); !ok || p.Bits() != bits {
			continue
		}
		cools := !r.take(p)
		if cools && !s.coolsAlone(p) {
			continue
		}
		return grant{prefix: p, in: r, cursor: r.cursor, cooled: cools}, true
	}
	return grant{}, false
}

// coolsAlone reports whether p, which is not free, cools once and as a whole: no other
// block cools in it, and it has no owner.
func (s *Set) coolsAlone(p netip.Prefix) bool {
	for range s.overlapping(p) {
		return false
	}
	times := 0
	for c := range s.coolingIn(p) {
		if c.prefix != p {
			return false
		}
		times++
	}
	return times == 1
}

// rangeOf returns the range that contains all of p, nil if there is none.
func (s *Set) rangeOf(p netip.Prefix) *rangeState {
	i := slices.IndexFunc(s.ranges, func(r *rangeState) bool { return covers(r.Prefix, p) })
	if i < 0 {
		return nil
	}
	return s.ranges[i]
}
