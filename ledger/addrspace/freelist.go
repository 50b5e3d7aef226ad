// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// freeList keeps removed pages or nodes for reuse, so that a Space in steady use
// allocates nothing. It keeps no more than is in use, and
// a few: the rest goes to the garbage collector.
type freeList[T any] struct {
	idle []*T
	used int
}

// few is the number of elements that are kept even if none is in use.
const few = 16

// get returns an element, nil if the list is empty.
func (s *freeList[T]) get() *T {
	s.used++
	last := len(s.idle) - 1
	if last < 0 {
		return nil
	}
	x := s.idle[last]
	s.idle = s.idle[:last]
	return x
}

func (s *freeList[T]) put(x *T) {
	s.used--
	if room := s.used + few; len(s.idle) < room {
		s.idle = append(s.idle, x)
	} else {
		clear(s.idle[room:cap(s.idle)])
		s.idle = s.idle[:room]
	}
}

// newPage returns a page that is all free, or all taken.
func (s *Space) newPage(free bool) *page {
	p := s.pages.get()
	if p == nil {
		p = new(page)
	} else if p.orders[0] >= 0 == free { // it was given up all free, or all taken
		return p
	}
	p.fill(free)
	return p
}

// givePages gives up the pages in the slots of mask.
func (s *Space) givePages(n *node, mask uint64) {
	mask &= n.paged
	n.paged &^= mask
	for ; mask != 0; mask &= mask - 1 {
		d := lowest(mask)
		s.pages.put(n.pages[d])
		n.pages[d] = nil
	}
}

// newNode returns a node that is all free, or all taken.
func (s *Space) newNode(size uint8, free bool) *node {
	n := s.nodes[size/6].get()
	if n == nil {
		n = makeNode(size, 64)
	}
	if n.order >= 0 != free {
		n.set(free)
	}
	return n
}

// giveNode gives up n, which is all free or all taken.
func (s *Space) giveNode(n *node) {
	s.givePages(n, ^uint64(0))
	s.nodes[n.size/6].put(n)
}

// makeNode returns a node with so many slots, all taken.
func makeNode(size uint8, slots int) *node {
	n := &node{size: size, byOrder: make([]uint64, size+2)}
	if size == pageBits {
		n.pages = make([]*page, slots)
	} else {
		n.kids = make([]*node, slots)
	}
	n.set(false)
	return n
}
