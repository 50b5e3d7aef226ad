// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// A node represents 64 equal slots of 2^size addresses each (the root can have
// fewer); see reorder about byOrder and orders.
//
// A slot that is neither all free nor all taken has a page (if size is 12)
// or a node below it. There may be sizes left out between that node and its
// slot: then fill says what the rest of the slot is, free or taken. So a single
// address taken in an empty /64 costs one node and one page, and not one node
// for every six bits of its width.
type node struct {
	byOrder []uint64
	pages   []*page // if size is 12
	paged   uint64  // the slots that have a page
	kids    []*node // if size is more
	up      *node
	first   u128  // address of slot 0
	order   int   // of all slots together
	size    uint8 // a multiple of 6
	skips   bool  // sizes are left out between this node and its slot in up
	fill    bool
	orders  [64]int8
}

// full returns the order of a node that is entirely free.
func (n *node) full() int { return int(n.size) + 6 }

// free returns the word of the slots that are entirely free.
func (n *node) free() uint64 { return n.byOrder[n.size+1] }

// page returns the page that has off, nil if there is none.
func (n *node) page(off u128) *page {
	if n.size != pageBits {
		return nil
	}
	return n.pages[off.lo>>pageBits&63]
}

// digit returns the number of the slot that has off.
func (n *node) digit(off u128) uint {
	if n.size < 60 {
		return uint(off.lo>>(n.size&63)) & 63
	}
	return uint(off.shr(uint(n.size)).lo) & 63
}

// start returns the first address of slot d.
func (n *node) start(d uint) u128 { return n.first.or(u64(uint64(d)).shl(uint(n.size))) }

// last returns the last address of n.
func (n *node) last() u128 { return n.first.or(ones(uint(n.size) + 6)) }

// has reports whether off is an address of n.
func (n *node) has(off u128) bool { return off.xor(n.first).shr(uint(n.size) + 6).isZero() }

// locate returns the lowest node that there is above off, of the given size at least.
func (n *node) locate(off u128, size uint8) *node {
	for n.size > size {
		kid := n.kids[n.digit(off)]
		if kid == nil || kid.skips && (kid.size < size || !kid.has(off)) {
			break
		}
		n = kid
	}
	return n
}

// alike reports whether the block of 2^k addresses at off is all free, or all
// taken. n is the lowest node above the block.
func (n *node) alike(off u128, k uint, free bool) bool {
	d := n.digit(off)
	if k > uint(n.size) {
		mask := around(d, k-uint(n.size))
		if free {
			return n.free()&mask == mask
		}
		return n.byOrder[0]&mask == mask
	}
	switch o := int(n.orders[d]); {
	case o < 0:
		return !free
	case o == int(n.size):
		return free
	case n.pages != nil:
		return k < pageBits && n.pages[d].alike(uint(off.lo), k, free)
	}
	kid := n.kids[d] // smaller than the block, or elsewhere
	return kid.fill == free && !kid.first.xor(off).shr(k).isZero()
}

// set makes all of n free, or taken. All of n must be in one state before.
func (n *node) set(free bool) {
	o := int8(-1)
	n.order = -1
	if free {
		o, n.order = int8(n.size), n.full()
	}
	n.byOrder[0], n.byOrder[n.size+1] = 0, 0
	n.byOrder[o+1] = ^uint64(0)
	for d := range n.orders {
		n.orders[d] = o
	}
}
