// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Space holds the free addresses of one prefix. It finds the next free
// address, or the next free aligned prefix of any size. The number of steps depends
// on the width of the prefix alone, not on how full it is. The memory of a Space
// grows with what was taken one by one, not with the size of the prefix.
//
// It is a tree with one bit for every address. At the bottom are pages of 2^12
// addresses, above them nodes of 64 slots; a part that is all free or all taken
// has nothing below it. See page, node and reorder.
//
// Use New. A Space is not safe for concurrent use.
type Space struct {
	base  netip.Prefix
	unit  int  // prefix length of the smallest part: an address, or a block
	shift uint // number of bits of an address below the unit
	first u128 // of base
	mask  u128 // of the units of base
	width uint // number of bits of a unit's number
	is4   bool
	free  u128 // number of free addresses; 2^128 wraps to 0, see Free

	root  *node
	pages freeList[page]
	nodes []freeList[node] // by size/6
}

// New returns a Space of all addresses of base, all free. Host bits of base are ignored.
func New(base netip.Prefix) *Space { return NewBlocks(base, base.Addr().BitLen()) }

// NewBlocks returns a Space of all blocks of base with the prefix length unit, all
// free. Free counts blocks, no smaller prefix can be taken, and methods that take an
// address act on its block. So 65 536 nodes of a /8 fit into a cache.
func NewBlocks(base netip.Prefix, unit int) *Space {
	base = base.Masked()
	s := &Space{base: base, unit: unit, first: toU128(base.Addr()), is4: base.Addr().Is4()}
	s.width = uint(unit - base.Bits())
	s.shift = uint(base.Addr().BitLen() - unit)
	s.mask = ones(s.width)
	size := uint(pageBits) // of the root: the largest with more than one slot
	if s.width > size {
		size = (s.width - 1) / 6 * 6
	}
	s.root = makeNode(uint8(size), 1<<(max(s.width, size)-size))
	s.nodes = make([]freeList[node], size/6)
	s.mark(u128{}, s.width, true)
	return s
}

// Free returns the number of free addresses, at most the largest uint64.
func (s *Space) Free() uint64 {
	if s.width == 128 && s.free.isZero() && s.root.order >= 0 {
		return ^uint64(0)
	}
	return s.free.saturate()
}

// TakeNextAddr takes the first free address at or above from, or, if there is
// none, the lowest one. from may be the zero Addr for the lowest.
func (s *Space) TakeNextAddr(from netip.Addr) (netip.Addr, bool) {
	off, ok := s.takeNextUnit(from)
	if !ok {
		return netip.Addr{}, false
	}
	return s.addr(off), true
}

func (s *Space) takeNextUnit(from netip.Addr) (u128, bool) {
	var off u128
	if from.IsValid() {
		off, _ = s.offset(from)
	}
	n := s.locate(off, pageBits)
	if p := n.page(off); p != nil {
		if at, ok := p.nextOne(uint(off.lo)); ok { // it is near, most often
			off.lo = off.lo&^(1<<pageBits-1) | uint64(at)
			s.takeOne(n, off)
			return off, true
		}
	}
	n, off, ok := s.find(0, off)
	if ok {
		s.takeOne(n, off)
	}
	return off, ok
}

// TakeNext takes the first free aligned prefix of length bits at or above from,
// or, if there is none, the lowest one. from may be the zero Addr.
func (s *Space) TakeNext(from netip.Addr, bits int) (netip.Prefix, bool) {
	if bits == s.unit {
		off, ok := s.takeNextUnit(from)
		if !ok {
			return netip.Prefix{}, false
		}
		return netip.PrefixFrom(s.addr(off), bits), true
	}
	n, off, ok := s.next(from, bits)
	if !ok {
		return netip.Prefix{}, false
	}
	s.markAt(n, off, uint(s.unit-bits), false)
	return netip.PrefixFrom(s.addr(off), bits), true
}

// Next returns the prefix that TakeNext would take.
func (s *Space) Next(from netip.Addr, bits int) (netip.Prefix, bool) {
	_, off, ok := s.next(from, bits)
	if !ok {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(s.addr(off), bits), true
}

func (s *Space) next(from netip.Addr, bits int) (n *node, off u128, ok bool) {
	k := uint(s.unit - bits) // more than any width, if negative
	if k > s.width {
		return nil, u128{}, false
	}
	if from.IsValid() {
		off, _ = s.offset(from)
		up := ones(k) // round up to a multiple of 2^k
		if off = off.add(up); s.mask.less(off) {
			off = u128{}
		}
		off = off.floor(k)
	}
	return s.find(k, off)
}

// TakeAddr takes a; it reports false if a is not free or not of the Space.
func (s *Space) TakeAddr(a netip.Addr) bool {
	off, ok := s.offset(a)
	if !ok {
		return false
	}
	n := s.locate(off, pageBits)
	if !n.alike(off, 0, true) {
		return false
	}
	s.takeOne(n, off)
	return true
}

// ReleaseAddr frees a; it reports false if a is free or not of the Space.
func (s *Space) ReleaseAddr(a netip.Addr) bool {
	off, ok := s.offset(a)
	if !ok {
		return false
	}
	n := s.locate(off, pageBits)
	p := n.page(off)
	if p == nil {
		return s.mark(off, 0, true)
	}
	was := int(n.orders[off.lo>>pageBits&63])
	is, ok := p.release(uint(off.lo), was)
	if !ok {
		return false
	}
	s.free = s.free.add(u64(1))
	if is != was {
		s.update(n, off, is)
	}
	return true
}

// Take takes all of p. If a part of p is not free or not of the Space, it changes
// nothing and reports false.
func (s *Space) Take(p netip.Prefix) bool { return s.markPrefix(p, false) }

// Release frees all of p. If a part of p is free or not of the Space, it changes
// nothing and reports false.
func (s *Space) Release(p netip.Prefix) bool { return s.markPrefix(p, true) }

// IsFree reports whether all of p is free.
func (s *Space) IsFree(p netip.Prefix) bool {
	off, k, ok := s.block(p)
	return ok && s.alike(off, k, true)
}

// String returns the prefix of the Space and the number of free addresses.
func (s *Space) String() string { return fmt.Sprintf("%s (%d free)", s.base, s.Free()) }

// offset returns the number of a's unit; 0 and false if a is not of the Space.
func (s *Space) offset(a netip.Addr) (u128, bool) {
	if a.Is4() != s.is4 || !a.IsValid() {
		return u128{}, false
	}
	var off u128
	if s.is4 {
		b := a.As4()
		off.lo = (uint64(binary.BigEndian.Uint32(b[:])) - s.first.lo) >> (s.shift & 63)
	} else {
		off = toU128(a).sub(s.first).shr(s.shift)
	}
	if s.mask.less(off) {
		return u128{}, false
	}
	return off, true
}

func (s *Space) addr(off u128) netip.Addr {
	if s.is4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(s.first.lo+off.lo<<(s.shift&63)))
		return netip.AddrFrom4(b)
	}
	return toAddr(s.first.add(off.shl(s.shift)), false)
}

// block returns the offset and the width of p; false if p is not of the Space, smaller
// than a unit, or not masked.
func (s *Space) block(p netip.Prefix) (off u128, k uint, ok bool) {
	off, ok = s.offset(p.Addr())
	if !ok || p.Bits() < s.base.Bits() || p.Bits() > s.unit || s.shift > 0 && p != p.Masked() {
		return off, 0, false
	}
	k = uint(s.unit - p.Bits())
	return off, k, off.floor(k) == off
}

func (s *Space) markPrefix(p netip.Prefix, free bool) bool {
	off, k, ok := s.block(p)
	return ok && s.mark(off, k, free)
}
