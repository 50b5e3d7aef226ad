// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"fmt"
	"math/bits"
	"net/netip"
)

// Space knows which addresses of one prefix are free. It finds the next free
// address, or the next free aligned prefix of any size, in a number of steps
// that depends on the width of the prefix alone (one for every six bits), not
// on how full it is. Its memory grows with what was taken one by one, not with
// the size of the prefix.
//
// Use New. A Space is not safe for concurrent use.
type Space struct {
	base  netip.Prefix
	first u128 // of base
	mask  u128 // of the host bits
	width uint // number of host bits
	is4   bool
	free  u128 // number of free addresses; 2^128 wraps to 0, see allFree

	root   *node
	finger *node // where the last operation was: the next one is often near
	at     u128  // an offset below finger
	spare  [22]*node
}

// New makes a Space of all addresses of base, all free. Host bits of base are ignored.
func New(base netip.Prefix) *Space {
	base = base.Masked()
	s := &Space{base: base, first: toU128(base.Addr()), is4: base.Addr().Is4()}
	s.width = uint(base.Addr().BitLen() - base.Bits())
	s.mask = ones(s.width)
	s.free = s.mask.add(u64(1))
	top := uint(0)
	if s.width > 6 {
		top = (s.width - 1) / 6
	}
	s.root = s.make(uint8(top), false)
	s.root.set(^uint64(0)>>(64-1<<(s.width-6*top)), true)
	s.root.order = s.root.measure()
	s.finger = s.root
	return s
}

// Base is the prefix that the Space was made of.
func (s *Space) Base() netip.Prefix { return s.base }

// Free is the number of free addresses, at most the largest uint64.
func (s *Space) Free() uint64 {
	if s.width == 128 && s.free.isZero() && s.root.order >= 0 {
		return ^uint64(0)
	}
	return s.free.saturate()
}

// TakeNextAddr takes the first free address at or above from, or, if there is
// none, the lowest one. from may be the zero Addr for the lowest.
func (s *Space) TakeNextAddr(from netip.Addr) (netip.Addr, bool) {
	off, ok := s.offset(from)
	if !ok {
		off = u128{}
	}
	if s.finger.level == 0 && s.at.xor(off).shr(6).isZero() { // the common case
		n := s.finger
		if w := n.free & (^uint64(0) << (off.lo & 63)); w != 0 {
			b := uint64(bits.TrailingZeros64(w))
			n.free = n.free &^ (1 << b)
			s.free = s.free.sub(u64(1))
			n.remeasure()
			return s.addr(u128{off.hi, off.lo&^63 | b}), true
		}
	}
	off, ok = s.find(0, off)
	if !ok {
		return netip.Addr{}, false
	}
	s.takeOne(off)
	return s.addr(off), true
}

// TakeNext takes the first free aligned prefix of length bits at or above from,
// or, if there is none, the lowest one. from may be the zero Addr.
func (s *Space) TakeNext(from netip.Addr, bits int) (netip.Prefix, bool) {
	p, ok := s.Next(from, bits)
	if ok {
		s.Take(p)
	}
	return p, ok
}

// Next finds what TakeNext would take.
func (s *Space) Next(from netip.Addr, bits int) (netip.Prefix, bool) {
	k := s.base.Addr().BitLen() - bits
	if k < 0 || k > int(s.width) {
		return netip.Prefix{}, false
	}
	off, ok := s.offset(from)
	if ok {
		up := ones(uint(k)) // round up to a multiple of 2^k
		if off = off.add(up); s.mask.less(off) || off.less(up) {
			ok = false
		}
		off = off.sub(off.and(up))
	}
	if !ok {
		off = u128{}
	}
	off, ok = s.find(k, off)
	if !ok {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(s.addr(off), bits), true
}

// TakeAddr takes a; it is false where a is not free or not of the Space.
func (s *Space) TakeAddr(a netip.Addr) bool {
	off, ok := s.offset(a)
	return ok && s.takeOne(off)
}

// ReleaseAddr gives a back; it is false where a is free or not of the Space.
func (s *Space) ReleaseAddr(a netip.Addr) bool {
	off, ok := s.offset(a)
	if !ok {
		return false
	}
	n := s.locate(off)
	bit := uint64(1) << (off.lo & 63)
	if n.level != 0 {
		if n.free&(1<<digit(off, n.level)) != 0 {
			return false
		}
		n = s.expand(n, off, 0)
	}
	if n.free&bit != 0 {
		return false
	}
	n.free |= bit
	s.free = s.free.add(u64(1))
	n.remeasure()
	return true
}

// Take takes all of p; it is false, and nothing changed, where a part of p is
// not free or not of the Space.
func (s *Space) Take(p netip.Prefix) bool { return s.mark(p, false) }

// Release gives all of p back; it is false, and nothing changed, where a part
// of p is free or not of the Space.
func (s *Space) Release(p netip.Prefix) bool { return s.mark(p, true) }

// IsFree is true where all of p is free.
func (s *Space) IsFree(p netip.Prefix) bool { return s.uniform(p, true) }

// TakeRange takes the addresses from first to last, both included; it is
// false, and nothing changed, where one of them is not free.
func (s *Space) TakeRange(first, last netip.Addr) bool { return s.markRange(first, last, false) }

// ReleaseRange gives the addresses from first to last back; it is false, and
// nothing changed, where one of them is free.
func (s *Space) ReleaseRange(first, last netip.Addr) bool { return s.markRange(first, last, true) }

// String names the Space and how much of it is free.
func (s *Space) String() string { return fmt.Sprintf("%s (%d free)", s.base, s.Free()) }

// offset is a's distance from the first address; false if a is not of the Space.
func (s *Space) offset(a netip.Addr) (u128, bool) {
	if a.Is4() != s.is4 || !a.IsValid() {
		return u128{}, false
	}
	off := toU128(a).sub(s.first)
	return off, !s.mask.less(off)
}

func (s *Space) addr(off u128) netip.Addr { return toAddr(s.first.add(off), s.is4) }

// digit is the slot of off in a node of the given level.
func digit(off u128, level uint8) uint {
	return uint(off.shr(6*uint(level)).lo) & 63
}

func (s *Space) takeOne(off u128) bool {
	n := s.locate(off)
	bit := uint64(1) << (off.lo & 63)
	if n.level != 0 {
		if n.free&(1<<digit(off, n.level)) == 0 {
			return false
		}
		n = s.expand(n, off, 0)
	}
	if n.free&bit == 0 {
		return false
	}
	n.free &^= bit
	s.free = s.free.sub(u64(1))
	n.remeasure()
	return true
}

// locate moves the finger to the lowest node that there is above off. Nodes
// that it leaves behind entirely free are given up.
func (s *Space) locate(off u128) *node {
	n := s.finger
	if apart := s.at.xor(off); !apart.isZero() {
		for n.up != nil && !apart.shr(6*uint(n.level)+6).isZero() {
			left := n
			n = n.up
			if left.order == left.full() {
				n.kids[left.slot] = nil
				s.give(left)
			}
		}
	}
	for n.level > 0 {
		kid := n.kids[digit(off, n.level)]
		if kid == nil {
			break
		}
		n = kid
	}
	s.finger, s.at = n, off
	return n
}

// expand makes the nodes below n on the way to off, down to the given level.
func (s *Space) expand(n *node, off u128, level uint8) *node {
	for n.level > level {
		d := digit(off, n.level)
		kid := s.make(n.level-1, n.free&(1<<d) != 0)
		kid.up, kid.slot = n, uint8(d)
		n.kids[d] = kid
		n = kid
	}
	s.finger, s.at = n, off
	return n
}

// find looks for a free aligned block of 2^k addresses, first at or above
// from (a multiple of 2^k), then from the beginning.
func (s *Space) find(k int, from u128) (u128, bool) {
	if int(s.root.order) < k {
		return u128{}, false
	}
	if off, ok := s.findAbove(k, from); ok {
		return off, true
	}
	return s.findAbove(k, u128{})
}

func (s *Space) findAbove(k int, from u128) (u128, bool) {
	n := s.locate(from)
	d := digit(from, n.level)
	for size := 6 * int(n.level); k > size+6 || size+6 == k && n.up != nil; size += 6 {
		d, n = uint(n.slot), n.up // a block of 2^k is larger than n
	}
	here := true // slot d itself is still a candidate
	for {
		size := 6 * int(n.level)
		var w uint64
		if k > size {
			w = runs(n.free, uint(k-size))
		} else {
			w = n.at(k)
		}
		w &= ^uint64(0) << d
		if !here {
			w &^= 1 << d
		}
		if w != 0 {
			first := from.sub(from.and(ones(uint(size) + 6))) // of n
			b := uint(bits.TrailingZeros64(w))
			switch {
			case k > size:
				return first.or(u64(uint64(b)).shl(uint(size))), true
			case b == d && here: // no node below it, so all of it is free
				return from, true
			default:
				return first.or(n.below(b, k)), true
			}
		}
		if n.up == nil {
			return u128{}, false
		}
		d, n, here = uint(n.slot), n.up, false
	}
}

// make takes a node from the spare ones, or a new one: all free, or all taken.
func (s *Space) make(level uint8, free bool) *node {
	n := s.spare[level]
	if n != nil {
		s.spare[level] = n.up
	} else {
		n = &node{level: level}
		if level > 0 {
			n.fit, n.kids = make([]uint64, 6*int(level)), new([64]*node)
		}
	}
	n.up, n.order = nil, -1
	n.set(^uint64(0), free)
	if free {
		n.order = n.full()
	}
	return n
}

// give puts n and all below it to the spare ones.
func (s *Space) give(n *node) {
	if n.kids != nil {
		for i, kid := range n.kids {
			if kid != nil {
				n.kids[i] = nil
				s.give(kid)
			}
		}
	}
	n.up = s.spare[n.level]
	s.spare[n.level] = n
}
