// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"iter"
	"math/bits"
	"net/netip"
)

// block is where a prefix of 2^k addresses lies: in the slots of mask of a
// node of the given level.
type block struct {
	off   u128
	k     uint
	level uint8
	mask  uint64
}

func (s *Space) block(p netip.Prefix) (block, bool) {
	off, ok := s.offset(p.Addr())
	if !ok || p.Bits() < s.base.Bits() || p != p.Masked() {
		return block{}, false
	}
	b := block{off: off, k: uint(p.Addr().BitLen() - p.Bits())}
	b.level = min(uint8(b.k/6), s.root.level)
	b.mask = ^uint64(0) >> (64 - 1<<(b.k-6*uint(b.level))) << digit(off, b.level)
	return b, true
}

// uniform is true where all of p is free, or all of it is taken.
func (s *Space) uniform(p netip.Prefix, free bool) bool {
	b, ok := s.block(p)
	if !ok {
		return false
	}
	n := s.root
	for n.level > b.level {
		d := digit(b.off, n.level)
		if n.kids[d] == nil || n.free&(1<<d) != 0 {
			return n.free&(1<<d) != 0 == free
		}
		n = n.kids[d]
	}
	if free {
		return n.free&b.mask == b.mask
	}
	return n.at(0)&b.mask == 0
}

func (s *Space) mark(p netip.Prefix, free bool) bool {
	b, ok := s.block(p)
	if !ok || !s.uniform(p, !free) {
		return false
	}
	n := s.locate(b.off)
	for n.level < b.level {
		n = n.up
	}
	n = s.expand(n, b.off, b.level) // and the finger with it: what is below goes
	for m := b.mask; m != 0 && n.kids != nil; m &= m - 1 {
		if d := bits.TrailingZeros64(m); n.kids[d] != nil {
			s.give(n.kids[d])
			n.kids[d] = nil
		}
	}
	n.set(b.mask, free)
	if size := pow2(min(b.k, 127)); b.k == 128 {
		s.free = u128{}
	} else if free {
		s.free = s.free.add(size)
	} else {
		s.free = s.free.sub(size)
	}
	n.remeasure()
	return true
}

func (s *Space) markRange(first, last netip.Addr, free bool) bool {
	if _, ok := s.offset(last); !ok {
		return false
	}
	if _, ok := s.offset(first); !ok || last.Less(first) {
		return false
	}
	for p := range Cover(first, last) {
		if !s.uniform(p, !free) {
			return false
		}
	}
	for p := range Cover(first, last) {
		s.mark(p, free)
	}
	return true
}

// Cover yields the fewest prefixes that together are the addresses from first
// to last, both included, in order; none where last is below first.
func Cover(first, last netip.Addr) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		if first.Is4() != last.Is4() || !first.IsValid() {
			return
		}
		width, from, to := uint(first.BitLen()), toU128(first), toU128(last)
		for !to.less(from) {
			k := min(uint(from.trailingZeros()), width)
			for k > 0 && to.less(from.or(ones(k))) {
				k--
			}
			if !yield(netip.PrefixFrom(toAddr(from, first.Is4()), int(width-k))) {
				return
			}
			end := from.or(ones(k))
			if end == to {
				return
			}
			from = end.add(u64(1))
		}
	}
}

// FreePrefixes yields the largest free aligned prefixes, in order.
func (s *Space) FreePrefixes() iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) { s.walk(s.root, u128{}, yield) }
}

func (s *Space) walk(n *node, first u128, yield func(netip.Prefix) bool) bool {
	size := 6 * uint(n.level)
	for d := uint(0); d < 64; d++ {
		off := first.or(u64(uint64(d)).shl(size))
		switch {
		case n.free&(1<<d) != 0:
			r := uint(0)
			for r < 6 && runs(n.free, r+1)&(1<<d) != 0 {
				r++
			}
			if !yield(netip.PrefixFrom(s.addr(off), s.base.Addr().BitLen()-int(size+r))) {
				return false
			}
			d += 1<<r - 1
		case n.kids != nil && n.kids[d] != nil:
			if !s.walk(n.kids[d], off, yield) {
				return false
			}
		}
	}
	return true
}
