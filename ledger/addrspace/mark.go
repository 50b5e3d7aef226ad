// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// takeOne takes the address off, which is free. n is the lowest node above it.
func (s *Space) takeOne(n *node, off u128) {
	p := n.page(off)
	if p == nil {
		n, p = s.addPage(n, off)
	}
	was := int(n.orders[off.lo>>pageBits&63])
	s.free = s.free.sub(u64(1))
	if is := p.take(uint(off.lo), was); is != was {
		s.update(n, off, is)
	}
}

// mark makes the block of 2^k addresses at off, a multiple of 2^k, free or
// taken. If a part is so already, it changes nothing and reports false.
func (s *Space) mark(off u128, k uint, free bool) bool {
	n := s.locate(off, s.sizeFor(k))
	if (k >= pageBits || n.page(off) == nil) && !n.alike(off, k, !free) {
		return false
	}
	return s.markAt(n, off, k, free)
}

// markAt is mark for a known n, the lowest node above the block. The block must not be
// mixed, unless it is in an existing page.
func (s *Space) markAt(n *node, off u128, k uint, free bool) bool {
	if k >= pageBits {
		s.markSlots(n, off, k, free)
		return true
	}
	p := n.page(off)
	if p == nil {
		n, p = s.addPage(n, off)
	}
	was := int(n.orders[off.lo>>pageBits&63])
	is, ok := p.mark(uint(off.lo), k, free, was)
	if !ok {
		return false
	}
	s.count(k, free)
	if is != was {
		s.update(n, off, is)
	}
	return true
}

// sizeFor returns the size of the node of which a block of 2^k addresses is a slot,
// or some slots, or a part of one.
func (s *Space) sizeFor(k uint) uint8 {
	if k < pageBits {
		return pageBits
	}
	return min(uint8(k/6*6), s.root.size)
}

// alike reports whether the block of 2^k addresses at off is all free, or all taken.
func (s *Space) alike(off u128, k uint, free bool) bool {
	return s.locate(off, s.sizeFor(k)).alike(off, k, free)
}

// locate returns the lowest node that there is above off, of the given size at least.
func (s *Space) locate(off u128, size uint8) *node {
	if s.root.size == size {
		return s.root
	}
	return s.root.locate(off, size)
}

// markSlots is markAt for blocks of one slot or more.
func (s *Space) markSlots(n *node, off u128, k uint, free bool) {
	n = s.expand(n, off, s.sizeFor(k))
	d, r := n.digit(off), k-uint(n.size)
	mask, o := around(d, r), int8(-1)
	if free {
		o = int8(n.size)
	}
	s.givePages(n, mask)
	n.byOrder[0] ^= mask
	n.byOrder[n.size+1] ^= mask
	for d, last := d>>r<<r, d|(1<<r-1); d <= last; d++ {
		n.orders[d&63] = o
	}
	s.count(k, free)
	if is := measure(n.byOrder); is != n.order {
		n.order = is
		s.updateAbove(n, off)
	}
}

// count corrects the number of free addresses; 2^128 is counted as 0.
func (s *Space) count(k uint, free bool) {
	if free {
		s.free = s.free.add(pow2(k))
	} else {
		s.free = s.free.sub(pow2(k))
	}
}
