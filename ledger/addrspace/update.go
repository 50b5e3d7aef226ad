// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import "math/bits"

// freePages is the number of pages that are all free and that a node keeps for the
// next take. Pages that are all taken stay anyway.
const freePages = 4

// update sets the order of the page of n that has off, and updates the nodes above.
func (s *Space) update(n *node, off u128, is int) {
	d, was := uint(off.lo)>>pageBits&63, n.order
	if is == pageBits {
		if free := n.paged & n.free(); bits.OnesCount64(free) >= freePages {
			s.givePages(n, free) // this one stays
		}
	}
	n.order = reorder(n.byOrder, &n.orders, d, is, was)
	if n.order != was {
		s.updateAbove(n, off)
	}
}

// updateAbove updates the nodes above n after a change of the order of n.
func (s *Space) updateAbove(n *node, off u128) {
	for up := n.up; up != nil; n, up = up, up.up {
		d := up.digit(off)
		is, was := s.slotOrder(n, d), up.order
		if is == int(up.orders[d]) {
			return
		}
		up.order = reorder(up.byOrder, &up.orders, d, is, was)
		if up.order == was {
			return
		}
	}
}

// slotOrder returns the order of slot d of the node above n, as n is now. A node
// that is all free or all taken is removed.
func (s *Space) slotOrder(n *node, d uint) int {
	size := int(n.up.size)
	if free := n.order == n.full(); free || n.order < 0 {
		n.up.kids[d] = nil
		s.giveNode(n)
		switch {
		case n.skips && n.fill != free:
			n = s.raise(n)
		case free:
			return size
		default:
			return -1
		}
	}
	if n.skips && n.fill { // half of the slot at least is free, whatever n is
		return size - 1
	}
	return n.order
}

// raise puts a node of the next size in the place of n, which is all free or all
// taken, unlike the rest of its slot. What n had is one slot of that node.
func (s *Space) raise(n *node) *node {
	m := s.newNode(n.size+6, n.fill)
	m.put(n.up, n.first, n.fill)
	m.order = reorder(m.byOrder, &m.orders, m.digit(n.first), n.order, m.order)
	return m
}
