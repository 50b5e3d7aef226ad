// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import "math/bits"

// addPage makes the page that has off; n is the lowest node above it.
func (s *Space) addPage(n *node, off u128) (*node, *page) {
	n = s.expand(n, off, pageBits)
	d := off.lo >> pageBits & 63
	p := s.newPage(n.orders[d] >= 0)
	n.pages[d] = p
	n.paged |= 1 << d
	return n, p
}

// expand makes the nodes that are missing between n, the lowest above off, and the
// given size. These are one above off, and one at which the paths to off and to the
// other child of the slot part.
func (s *Space) expand(n *node, off u128, size uint8) *node {
	if n.size == size {
		return n
	}
	d := n.digit(off)
	free := n.orders[d] >= 0
	if kid := n.kids[d]; kid != nil {
		free = kid.fill
		if n = s.part(n, kid, off); n.size == size {
			return n
		}
	}
	m := s.newNode(size, free)
	m.put(n, off, free)
	return m
}

// part puts a node between n and its kid, of the size at which off and the kid
// are in different slots. The state of the slot of n stays the same.
func (s *Space) part(n *node, kid *node, off u128) *node {
	apart := off.xor(kid.first)
	high := bits.Len64(apart.lo)
	if apart.hi != 0 {
		high = 64 + bits.Len64(apart.hi)
	}
	m := s.newNode(uint8((high-1)/6*6), kid.fill)
	m.put(n, off, kid.fill)
	kid.put(m, kid.first, kid.fill)
	d := m.digit(kid.first)
	m.order = reorder(m.byOrder, &m.orders, d, s.slotOrder(kid, d), m.order)
	return m
}

// put makes n a kid of up, in the slot of off.
func (n *node) put(up *node, off u128, fill bool) {
	n.up, n.fill, n.skips = up, fill, n.size+6 < up.size
	n.first = off.floor(uint(n.size) + 6)
	up.kids[up.digit(off)] = n
}
