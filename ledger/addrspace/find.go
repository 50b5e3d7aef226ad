// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// find looks for a free aligned block of 2^k addresses, first at or above
// from (a multiple of 2^k), then from the beginning. n is the lowest node above
// the block.
func (s *Space) find(k uint, from u128) (n *node, off u128, ok bool) {
	if s.root.order < int(k) {
		return nil, u128{}, false
	}
	if !from.isZero() {
		if n, off, ok = s.root.next(k, from); ok {
			return n, off, true
		}
	}
	n, off = s.root.lowest(k)
	return n, off, true
}

// lowest returns the lowest free aligned block of 2^k addresses in n, which has one.
func (n *node) lowest(k uint) (*node, u128) {
	for {
		d := lowest(fit(n.byOrder, k, n.order))
		if k >= uint(n.size) {
			return n, n.start(d)
		}
		if n.pages != nil {
			off := n.start(d)
			if p := n.pages[d]; p != nil {
				at, _ := p.next(k, 0, int(n.orders[d&63]))
				off.lo |= uint64(at)
			}
			return n, off
		}
		kid := n.kids[d]
		if kid == nil {
			return n, n.start(d)
		}
		if kid.skips && kid.fill {
			n, off, _ := n.nextBelow(d, k, n.start(d))
			return n, off
		}
		n = kid
	}
}

// next returns the first free aligned block of 2^k addresses at or above from, an
// address of n and a multiple of 2^k. It looks into two slots at most: only in
// the slot of from may a block that is there be too low.
func (n *node) next(k uint, from u128) (*node, u128, bool) {
	if n.pages != nil {
		lo, ok := n.nextInPages(k, from.lo)
		return n, u128{from.hi, lo}, ok
	}
	d := n.digit(from)
	for w := fit(n.byOrder, k, n.order) >> d << d; w != 0; w &= w - 1 {
		if b := lowest(w); b != d {
			d, from = b, n.start(b)
		}
		if n.kids[d&63] == nil {
			return n, from, true
		}
		if n, off, ok := n.nextBelow(d, k, from); ok {
			return n, off, true
		}
	}
	return nil, u128{}, false
}

// nextInPages is next for a node that has pages.
func (n *node) nextInPages(k uint, from uint64) (uint64, bool) {
	d := uint(from) >> pageBits & 63
	for w := fit(n.byOrder, k, n.order) >> d << d; w != 0; w &= w - 1 {
		if b := lowest(w); b != d {
			d, from = b, n.first.lo|uint64(b)<<pageBits
		}
		if k >= pageBits || n.pages[d] == nil {
			return from, true
		}
		if at, ok := n.pages[d].next(k, uint(from), int(n.orders[d])); ok {
			return from&^(1<<pageBits-1) | uint64(at), true
		}
	}
	return 0, false
}

// nextBelow is next in the slot d that has from and a kid.
func (n *node) nextBelow(d, k uint, from u128) (*node, u128, bool) {
	kid := n.kids[d]
	if !kid.skips {
		return kid.next(k, from)
	}
	if !kid.fill { // nothing is free beside the kid
		if from.less(kid.first) {
			from = kid.first
		}
		if !kid.has(from) {
			return nil, u128{}, false
		}
		return kid.next(k, from)
	}
	block, last := ones(k), kid.last()
	if from.or(block).less(kid.first) || last.less(from) {
		return n, from, true
	}
	if int(k) <= kid.order { // the block is in the kid
		if n, off, ok := kid.next(k, from); ok {
			return n, off, true
		}
	}
	after := last.or(block).add(u64(1)) // the first block above the kid
	return n, after, n.digit(after) == d
}
