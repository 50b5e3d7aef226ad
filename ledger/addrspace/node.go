// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import "math/bits"

// A node stands for 64 equal slots of 2^(6*level) addresses each. For every
// order k up to 6*level it has a word whose bit i says that slot i contains an
// aligned free block of 2^k addresses: fit[k], and for k = 6*level, which is
// "the slot is entirely free", the field free. Leaves (level 0) have only free.
//
// A slot without a node below it is entirely free or entirely taken, as its
// bit in free says. order is the largest k such that the node has a free
// aligned block of 2^k addresses, -1 where nothing is free; the parent's words
// repeat it, so that a search never enters a node in vain.
type node struct {
	free  uint64
	fit   []uint64
	kids  *[64]*node
	up    *node
	order int16
	level uint8
	slot  uint8
}

// aligned[r] has the bits at which an aligned run of 2^r slots may begin.
var aligned = [7]uint64{
	^uint64(0), 0x5555555555555555, 0x1111111111111111, 0x0101010101010101,
	0x0001000100010001, 0x0000000100000001, 1,
}

// runs is the word of the places at which 2^r set bits of w begin, aligned.
func runs(w uint64, r uint) uint64 {
	for i := uint(0); i < r; i++ {
		w &= w >> (1 << i) & aligned[i+1]
	}
	return w
}

// longestRun is the largest r for which runs(w, r) is not 0; w is not 0.
func longestRun(w uint64) int16 {
	if w == ^uint64(0) {
		return 6
	}
	for r := uint(0); ; r++ {
		if w = w & (w >> (1 << r)) & aligned[r+1]; w == 0 {
			return int16(r)
		}
	}
}

// full is the order of an entirely free node.
func (n *node) full() int16 { return 6*int16(n.level) + 6 }

// at is the word of order k <= 6*level.
func (n *node) at(k int) uint64 {
	if k < len(n.fit) {
		return n.fit[k]
	}
	return n.free
}

// measure computes order from the words.
func (n *node) measure() int16 {
	if n.free != 0 {
		return 6*int16(n.level) + longestRun(n.free)
	}
	for k := len(n.fit) - 1; k >= 0; k-- {
		if n.fit[k] != 0 {
			return int16(k)
		}
	}
	return -1
}

// remeasure corrects n's order after its words changed, and its ancestors'
// words and orders as far as that makes a difference to them.
func (n *node) remeasure() {
	for {
		was, is := n.order, n.measure()
		if was == is {
			return
		}
		n.order = is
		p := n.up
		if p == nil {
			return
		}
		bit := uint64(1) << (n.slot & 63)
		for k := int(is) + 1; k <= int(was); k++ { // shrunk
			if k < len(p.fit) {
				p.fit[k] &^= bit
			} else {
				p.free &^= bit
			}
		}
		for k := int(was) + 1; k <= int(is); k++ { // grown
			if k < len(p.fit) {
				p.fit[k] |= bit
			} else {
				p.free |= bit
			}
		}
		n = p
	}
}

// set marks the slots of mask entirely free, or entirely taken.
func (n *node) set(mask uint64, free bool) {
	if free {
		n.free |= mask
		for k := range n.fit {
			n.fit[k] |= mask
		}
		return
	}
	n.free &^= mask
	for k := range n.fit {
		n.fit[k] &^= mask
	}
}

// below is the lowest free aligned block of order k in slot s of n, whose word
// for k has bit s: its distance from the first address of n.
func (n *node) below(s uint, k int) u128 {
	var off u128
	for {
		off = off.or(u64(uint64(s)).shl(6 * uint(n.level)))
		if n.free&(1<<s) != 0 {
			return off
		}
		n = n.kids[s]
		if size := 6 * int(n.level); k > size {
			s = uint(bits.TrailingZeros64(runs(n.free, uint(k-size))))
			return off.or(u64(uint64(s)).shl(uint(size)))
		}
		s = uint(bits.TrailingZeros64(n.at(k)))
	}
}
