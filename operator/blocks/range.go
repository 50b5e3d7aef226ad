// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// rangeState holds a range with the index of its free blocks.
type rangeState struct {
	RangeStat
	free   *addrspace.Space // of blocks of length unit
	unit   int              // Bits, or more if a smaller block was wanted
	cursor netip.Addr       // where the next search begins; not in the range: at its beginning
}

func newRange(r Range) *rangeState {
	return &rangeState{
		RangeStat: RangeStat{Range: r, Capacity: pow2(r.Bits - r.Prefix.Bits())},
		free:      addrspace.NewBlocks(r.Prefix, r.Bits),
		unit:      r.Bits,
	}
}

// next takes the next free block of length bits that taken does not exclude.
func (r *rangeState) next(bits int, order Order, taken takenFunc) (netip.Prefix, bool) {
	r.refine(bits)
	from := r.cursor
	if order == Lowest || !r.Prefix.Contains(from) {
		from = r.Prefix.Addr()
	}
	p, ok := r.takeNext(from, bits, taken)
	if !ok {
		return netip.Prefix{}, false
	}
	r.Skipped.add(addrspace.Distance(r.Prefix, bits, from, p.Addr()))
	r.cursor = end(p)
	return p, true
}

// takeNext takes the first free block of length bits at or above from that taken does not
// exclude, or else the lowest one.
func (r *rangeState) takeNext(from netip.Addr, bits int, taken takenFunc) (p netip.Prefix, ok bool) {
	if taken == nil && bits <= r.Bits {
		if p, ok = r.free.TakeNext(from, bits); ok {
			r.Used += r.blocksOf(p)
		}
		return p, ok
	}
	if p, ok = r.search(from, bits, taken); ok {
		r.take(p)
	}
	return p, ok
}

// search returns the first free block of length bits at or above from that taken does
// not exclude, or else the lowest one.
func (r *rangeState) search(from netip.Addr, bits int, taken takenFunc) (netip.Prefix, bool) {
	for at, wrapped := from, false; ; {
		p, ok := r.free.Next(at, bits)
		if !ok || taken == nil {
			return p, ok
		}
		below := p.Addr().Less(at)
		if wrapped && (below || !p.Addr().Less(from)) {
			return netip.Prefix{}, false
		}
		other, excluded := taken(p)
		if !excluded {
			return p, true
		}
		wrapped = wrapped || below
		if at = end(wider(p, other)); !r.Prefix.Contains(at) {
			if wrapped {
				return netip.Prefix{}, false
			}
			at, wrapped = r.Prefix.Addr(), true
		}
	}
}

// take takes all of p, a part of the range; false if a part of p is taken.
func (r *rangeState) take(p netip.Prefix) bool {
	r.refine(p.Bits())
	untouched := r.untouched(p)
	if !r.free.Take(p) {
		return false
	}
	if untouched {
		r.Used += r.blocksOf(p)
	}
	return true
}

// release frees all of p, which is taken.
func (r *rangeState) release(p netip.Prefix) {
	r.free.Release(p)
	if r.untouched(p) {
		r.Used -= r.blocksOf(p)
	}
}

// untouched reports whether p is as large as the range's blocks, or the block that
// contains p is free.
func (r *rangeState) untouched(p netip.Prefix) bool {
	return p.Bits() <= r.Bits || r.free.IsFree(netip.PrefixFrom(p.Addr(), r.Bits).Masked())
}

// takeRest takes the free parts of p, a part of the range. It returns the number of
// blocks that were untouched.
func (r *rangeState) takeRest(p netip.Prefix) (taken uint64) {
	r.refine(p.Bits())
	before := r.Used
	for part := range r.free.FreeWithin(p) {
		r.take(part)
	}
	return r.Used - before
}

// freeBlocks returns the number of free blocks of length bits.
func (r *rangeState) freeBlocks(bits int) (n uint64) {
	for p := range r.free.FreePrefixes() {
		if p.Bits() <= bits {
			n += pow2(bits - p.Bits())
		}
	}
	return n
}

// refine makes the index fine enough for blocks of length bits.
func (r *rangeState) refine(bits int) {
	if bits <= r.unit {
		return
	}
	coarse := r.free
	r.unit, r.free = bits, addrspace.NewBlocks(r.Prefix, bits)
	r.free.Take(r.Prefix)
	for p := range coarse.FreePrefixes() {
		r.free.Release(p)
	}
}

// resize makes bits the range's block size. Taken parts stay taken.
func (r *rangeState) resize(bits int) {
	r.refine(bits)
	r.Bits, r.Capacity = bits, pow2(bits-r.Prefix.Bits())
	r.Used = r.Capacity - r.freeBlocks(bits)
}

// blocksOf returns the number of blocks of the range's size in p, at least one.
func (r *rangeState) blocksOf(p netip.Prefix) uint64 { return pow2(r.Bits - min(p.Bits(), r.Bits)) }

// pow2 returns 2^n, at most 2^63.
func pow2(n int) uint64 { return 1 << min(n, 63) }

// end returns the first address behind p, the zero Addr behind the last one.
func end(p netip.Prefix) netip.Addr {
	last, _ := addrspace.NthLast(p, 0)
	return last.Next()
}

// overlap returns the common part of p and q: the longer of the two, if any.
func overlap(p, q netip.Prefix) (netip.Prefix, bool) {
	if q.Bits() < p.Bits() {
		p, q = q, p
	}
	return q, p.Contains(q.Addr())
}

// wider returns the shorter of two overlapping prefixes.
func wider(p, q netip.Prefix) netip.Prefix {
	if q.Bits() < p.Bits() {
		return q
	}
	return p
}

// covers reports whether all of q is in p.
func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) }
