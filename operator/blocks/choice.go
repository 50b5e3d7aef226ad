// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"
	"time"
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
	Taken func(block netip.Prefix) (netip.Prefix, bool)
}

// sizeOf returns the wanted prefix length for a pool, 0 for the range's own.
func (c *Choice) sizeOf(pool int) int {
	if pool < len(c.Sizes) {
		return c.Sizes[pool]
	}
	return 0
}

// bits returns the prefix length of a block of t, false if t cannot have the
// wanted one.
func (c *Choice) bits(t *tract) (int, bool) {
	bits := c.sizeOf(t.Pool)
	if bits == 0 || bits == t.Bits {
		return t.Bits, true
	}
	possible := bits >= t.Prefix.Bits() && bits <= t.Prefix.Addr().BitLen()
	return bits, possible && (c.Fits == nil || c.Fits(t.Range, bits))
}

// Allocate gives o one block of every pool, as Choose does with these sizes.
func (s *Set) Allocate(o Owner, sizes []int, now time.Time) ([]netip.Prefix, error) {
	return s.Choose(o, Choice{Sizes: sizes}, now)
}

// preferred takes the first preferred block that serves the pool. A block that
// was cooling is returned with its entry, by which undo lets it cool on.
func (s *Set) preferred(pool int, c *Choice) (b block, was *cooling, ok bool) {
	for _, p := range c.Prefer {
		p = p.Masked()
		t := s.tractOf(p)
		if t == nil || t.Pool != pool || t.draining {
			continue
		}
		if bits, ok := c.bits(t); !ok || p.Bits() != bits {
			continue
		}
		b = newBlock(p, t)
		if !t.take(p) {
			if was = s.coolingAlone(p); was == nil {
				continue
			}
			was.tract = nil
			t.cooling--
		}
		t.before = t.cursor
		t.blocks++
		t.counters.allocated += t.blocksOf(p)
		return b, was, true
	}
	return block{}, nil, false
}

// coolingAlone returns the entry of p if p cools as a whole, and nothing else
// cools there or is held there.
func (s *Set) coolingAlone(p netip.Prefix) (alone *cooling) {
	for c := range s.cooling.overlapping(p) {
		if c.prefix != p || alone != nil {
			return nil
		}
		alone = c
	}
	for range s.overlapping(p) {
		return nil
	}
	return alone
}

// aside holds what a search has taken out of the index because another node
// claims it. It goes back when the search ends.
type aside struct {
	parts []netip.Prefix
	whole uint64 // free blocks of the wanted size in the parts
}

// set takes what is free of p, a part of the range.
func (a *aside) set(t *tract, p netip.Prefix, bits int) {
	had := len(a.parts)
	a.parts = t.fill(p, a.parts)
	for _, part := range a.parts[had:] {
		if part.Bits() <= bits {
			a.whole += count(bits - part.Bits())
		}
	}
}

// free returns everything to the index.
func (a *aside) free(t *tract) {
	for _, p := range a.parts {
		t.release(p)
	}
}
