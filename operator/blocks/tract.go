// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// tract is a range with the index of its free blocks.
type tract struct {
	Range
	grid
	space    *addrspace.Space
	cursor   netip.Addr // in the index: where the next search begins; invalid: at the beginning
	before   netip.Addr // cursor, as it was before the last block was given
	draining bool
	used     uint64 // blocks of the range's size of which a part is taken
	blocks   int    // blocks that somebody holds
	cooling  int
	counters counters
}

// counters are of the tract's whole life.
type counters struct {
	allocated, released uint64
	skipped             Skips
}

func newTract(r Range) *tract {
	t := &tract{Range: r, grid: newGrid(r.Prefix, r.Bits)}
	t.space = addrspace.New(t.all())
	return t
}

// has is true where all of p is in the range.
func (t *tract) has(p netip.Prefix) bool { return covers(t.Prefix, p) }

// capacity is the number of the range's blocks.
func (t *tract) capacity() uint64 { return count(t.Bits - t.Prefix.Bits()) }

// next takes the next free block of length bits that taken says nothing about.
// Without one it returns the number of free blocks that taken has excluded.
func (t *tract) next(bits int, order Order, taken func(netip.Prefix) (netip.Prefix, bool)) (p netip.Prefix, excluded uint64, ok bool) {
	if bits < t.Prefix.Bits() {
		return netip.Prefix{}, 0, false
	}
	t.refine(bits)
	from := t.cursor
	if order == Lowest {
		from = netip.Addr{}
	}
	var claimed aside
	defer claimed.free(t)
	for {
		v, ok := t.search(from, bits)
		if !ok {
			return netip.Prefix{}, claimed.whole, false
		}
		p = t.out(v)
		if taken != nil {
			if other, ok := taken(p); ok {
				t.release(p)
				claimed.set(t, t.wider(p, other), bits)
				continue
			}
		}
		t.skip(from, v.Addr(), bits)
		t.before, t.cursor = t.cursor, t.after(v)
		return p, 0, true
	}
}

// wider returns the wider of two overlapping prefixes, as far as the range has it.
func (t *tract) wider(p, other netip.Prefix) netip.Prefix {
	if part, ok := overlap(t.Prefix, other); ok && part.Bits() < p.Bits() {
		return part
	}
	return p
}

// search takes the next free block, in the index.
func (t *tract) search(from netip.Addr, bits int) (netip.Prefix, bool) {
	width := t.width()
	length := width - (t.unit - bits)
	if bits == t.unit && bits == t.Bits { // nearly always
		a, ok := t.space.TakeNextAddr(from)
		if ok {
			t.used++
		}
		return netip.PrefixFrom(a, width), ok
	}
	v, ok := t.space.Next(from, length)
	return v, ok && t.take(t.out(v))
}

// after is where the next search begins when v was taken.
func (t *tract) after(v netip.Prefix) netip.Addr {
	return numOf(v.Addr()).add(num{lo: 1}.shl(uint(t.width() - v.Bits()))).addr(t.wide)
}

// take takes all of p, a part of the range; false where a part is taken.
func (t *tract) take(p netip.Prefix) bool {
	t.refine(p.Bits())
	fresh := p.Bits() <= t.Bits || t.untouched(p)
	if !t.space.Take(t.in(p)) {
		return false
	}
	if fresh {
		t.used += count(t.Bits - min(p.Bits(), t.Bits))
	}
	return true
}

// release frees all of p, which was taken.
func (t *tract) release(p netip.Prefix) {
	t.space.Release(t.in(p))
	if p.Bits() <= t.Bits || t.untouched(p) {
		t.used -= count(t.Bits - min(p.Bits(), t.Bits))
	}
}

// untouched is true where the block of the range's size that has p is free.
func (t *tract) untouched(p netip.Prefix) bool {
	return t.space.IsFree(t.in(netip.PrefixFrom(p.Addr(), t.Bits).Masked()))
}

// takeRest takes what is free of p, a part of the range, and says how many
// blocks that was.
func (t *tract) takeRest(p netip.Prefix) (taken uint64) {
	t.refine(p.Bits())
	before := t.used
	t.fill(p, nil)
	return t.used - before
}

// fill takes what is free of p, and appends it to parts, in the fewest prefixes.
func (t *tract) fill(p netip.Prefix, parts []netip.Prefix) []netip.Prefix {
	if t.take(p) {
		return append(parts, p)
	}
	if p.Bits() >= t.unit {
		return parts
	}
	v, ok := t.space.Next(t.in(p).Addr(), t.width())
	if !ok || !p.Contains(t.out(v).Addr()) {
		return parts // nothing is free in p
	}
	low, high := halves(p)
	return t.fill(high, t.fill(low, parts))
}

// refine makes the index fine enough for blocks of length bits.
func (t *tract) refine(bits int) {
	if bits <= t.unit {
		return
	}
	old := *t
	t.grid = newGrid(t.Prefix, bits)
	t.space = addrspace.New(t.all())
	t.space.Take(t.all())
	for v := range old.space.FreePrefixes() {
		t.space.Release(t.in(old.out(v)))
	}
	for _, at := range []*netip.Addr{&t.cursor, &t.before} {
		if at.IsValid() {
			*at = numOf(*at).shl(uint(bits - old.unit)).addr(t.wide)
		}
	}
}

// resize makes bits the range's block size. What is taken stays.
func (t *tract) resize(bits int) {
	t.refine(bits)
	t.Bits = bits
	t.used = t.capacity()
	for v := range t.space.FreePrefixes() {
		if p := t.out(v); p.Bits() <= bits {
			t.used -= count(bits - p.Bits())
		}
	}
}

// skip counts how many blocks a search went past to find one.
func (t *tract) skip(from, found netip.Addr, bits int) {
	var at num
	if from.IsValid() {
		at = numOf(from)
	}
	way := numOf(found).sub(at)
	if n := uint(t.unit - t.Prefix.Bits()); n < 64 { // it may have gone round
		way = num{lo: way.lo & (1<<n - 1)}
	}
	way = way.shr(uint(t.unit - bits))
	if way.hi != 0 {
		way.lo = 1 << 63
	}
	t.counters.skipped.add(way.lo)
}

// blocksOf is the number of blocks of the range's size in p, at least one.
func (t *tract) blocksOf(p netip.Prefix) uint64 { return count(t.Bits - min(p.Bits(), t.Bits)) }
