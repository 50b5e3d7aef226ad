// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// pageBits is the order of a page: it stands for 2^12 addresses.
const pageBits = 12

// A page has one bit for every address, 64 words of 64; a set bit is a free
// address. See reorder about the other two. The order of the page itself is
// kept by the node above: so it is given to the methods that change it, and
// they give the new one back.
type page struct {
	byOrder [8]uint64
	orders  [64]int8
	words   [64]uint64
}

// fill makes all of p free, or taken.
func (p *page) fill(free bool) {
	w, o := uint64(0), int8(-1)
	if free {
		w, o = ^uint64(0), 6
	}
	p.byOrder = [8]uint64{}
	p.byOrder[o+1] = ^uint64(0)
	for i := range p.words {
		p.orders[i], p.words[i] = o, w
	}
}

// take takes the address at, which is free.
func (p *page) take(at uint, all int) int {
	i, b := at>>6&63, at&63
	w, was := p.words[i]&^(1<<b), int(p.orders[i])
	p.words[i] = w
	is := shrunk(w, b, was)
	if is == was {
		return all
	}
	return reorder(p.byOrder[:], &p.orders, i, is, all)
}

// release frees the address at; it reports false if it is free already.
func (p *page) release(at uint, all int) (int, bool) {
	i, b := at>>6&63, at&63
	w, was := p.words[i], int(p.orders[i])
	if w&(1<<b) != 0 {
		return all, false
	}
	w |= 1 << b
	p.words[i] = w
	is := grown(w, b, was)
	if is == was {
		return all, true
	}
	return reorder(p.byOrder[:], &p.orders, i, is, all), true
}

// mark makes the block of 2^k addresses at at free, or taken. It is false, and
// nothing is changed, if a part of the block is so already.
func (p *page) mark(at, k uint, free bool, all int) (int, bool) {
	if k > 6 {
		return p.markWords(at>>6&63, k-6, free, all)
	}
	i, b := at>>6&63, at&63
	w, m, was := p.words[i], around(b, k), int(p.orders[i])
	var is int
	if free {
		if w&m != 0 {
			return all, false
		}
		w |= m
		is = grown(w, b, max(was, int(k)))
	} else {
		if w&m != m {
			return all, false
		}
		if w &^= m; int(k) < was {
			is = shrunk(w|m&^(1<<b), b, was)
		} else {
			is = longestRun(w)
		}
	}
	p.words[i] = w
	if is == was {
		return all, true
	}
	return reorder(p.byOrder[:], &p.orders, i, is, all), true
}

// markWords is mark for the 2^r words that word i is of.
func (p *page) markWords(i, r uint, free bool, all int) (int, bool) {
	mask := around(i, r)
	if free {
		if p.byOrder[0]&mask != mask {
			return all, false
		}
		p.fillWords(i, r, ^uint64(0), 6)
		all = 6 + grown(p.byOrder[7]|mask, i, max(all-6, int(r)))
	} else {
		if p.byOrder[7]&mask != mask {
			return all, false
		}
		p.fillWords(i, r, 0, -1)
	}
	p.byOrder[0] ^= mask
	p.byOrder[7] ^= mask
	if !free {
		all = measure(p.byOrder[:])
	}
	return all, true
}

// fillWords sets the 2^r words that word i is of.
func (p *page) fillWords(i, r uint, w uint64, order int8) {
	for i, last := i>>r<<r, i|(1<<r-1); i <= last; i++ {
		p.words[i&63], p.orders[i&63] = w, order
	}
}

// alike reports whether the block of 2^k addresses at at is all free, or all taken.
func (p *page) alike(at, k uint, free bool) bool {
	i, b := at>>6&63, at&63
	w, m := p.words[i], around(b, k)
	if !free {
		w = ^w
	}
	if k > 6 {
		w, m = p.byOrder[0], around(i, k-6)
		if free {
			w = p.byOrder[7]
		}
	}
	return w&m == m
}

// next returns the first free aligned block of 2^k addresses at or above from, a
// multiple of 2^k. all is the order of p.
func (p *page) next(k, from uint, all int) (uint, bool) {
	if k == 0 {
		return p.nextOne(from)
	}
	i, b := from>>6&63, from&63
	if k > 6 {
		w := runs(p.byOrder[7], k-6) >> i << i
		return lowest(w) << 6, w != 0
	}
	if int(p.orders[i]) >= int(k) {
		if w := runs(p.words[i], k) >> b << b; w != 0 {
			return i<<6 | lowest(w), true
		}
	}
	w := fit(p.byOrder[:], k, all) & (^uint64(1) << i)
	if w == 0 {
		return 0, false
	}
	i = lowest(w)
	return i<<6 | lowest(runs(p.words[i&63], k)), true
}

// nextOne is next for one address.
func (p *page) nextOne(from uint) (uint, bool) {
	i := from >> 6 & 63
	w := p.words[i] & (^uint64(0) << (from & 63))
	if w == 0 {
		w = ^p.byOrder[0] & (^uint64(1) << i)
		if w == 0 {
			return 0, false
		}
		i = lowest(w) & 63
		w = p.words[i]
	}
	return i<<6 | lowest(w), true
}
