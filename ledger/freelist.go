// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
)

// The free lists of a familyPool.
const (
	byPrefix  = iota // the active blocks sorted by prefix
	byRank           // the active blocks in the order of SetBlocks
	freeLists        // their number
)

// freeList finds the next active block that has a free address. It is made when
// it is needed and kept until a block comes, goes, or changes its state.
type freeList struct {
	blocks []*block
	room   []uint64 // a bit for each of blocks: it has a free address
	last   int      // the block that was used last
	valid  bool
}

// freeList returns a list that is valid.
func (fp *familyPool) freeList(by int) *freeList {
	l := &fp.free[by]
	if l.valid {
		return l
	}
	clear(l.blocks)
	l.blocks = l.blocks[:0]
	for _, b := range fp.blocks {
		if b.state == Active {
			l.blocks = append(l.blocks, b)
		}
	}
	if by == byRank {
		slices.SortStableFunc(l.blocks, func(x, y *block) int { return cmp.Compare(x.rank, y.rank) })
	}
	l.room = slices.Grow(l.room[:0], (len(l.blocks)+63)/64)[:(len(l.blocks)+63)/64]
	clear(l.room)
	for i, b := range l.blocks {
		b.at[by] = i
		if b.hasRoom {
			l.room[i/64] |= 1 << (i % 64)
		}
	}
	l.last, l.valid = 0, true
	return l
}

// noteRoom brings the free lists up to date after a change of the space of b.
func (fp *familyPool) noteRoom(b *block) {
	has := b.space.Free() > 0
	if has == b.hasRoom {
		return
	}
	b.hasRoom = has
	for by := range fp.free {
		if l := &fp.free[by]; l.valid && b.state == Active && !b.forgotten {
			l.room[b.at[by]/64] ^= 1 << (b.at[by] % 64)
		}
	}
}

// next returns the first block with a free address, from number i on and then
// from the beginning; nil if there is none.
func (l *freeList) next(i int) *block {
	if b := l.firstIn(i, len(l.blocks)); b != nil {
		return b
	}
	return l.firstIn(0, i)
}

// firstIn returns the first block with a free address among those from number i
// to number end.
func (l *freeList) firstIn(i, end int) *block {
	if i >= end {
		return nil
	}
	w := l.room[i/64] >> (i % 64) << (i % 64)
	for n := i / 64; ; {
		if w != 0 {
			if at := n*64 + bits.TrailingZeros64(w); at < end {
				return l.blocks[at]
			}
			return nil
		}
		if n++; n*64 >= end {
			return nil
		}
		w = l.room[n]
	}
}

// find returns the number of the last block that begins at or below a, -1 if there is
// none. The blocks are sorted by prefix.
func (l *freeList) find(a netip.Addr) int {
	if l.last < len(l.blocks) && l.blocks[l.last].prefix.Contains(a) {
		return l.last
	}
	i, ok := slices.BinarySearchFunc(
		l.blocks,
		a,
		func(b *block, a netip.Addr) int { return b.prefix.Addr().Compare(a) },
	)
	if ok {
		return i
	}
	return i - 1
}

// take takes the first free address of the pool at or above from, and after the
// last one the lowest one; false if none is free.
func (fp *familyPool) take(from netip.Addr) (*block, netip.Addr, bool) {
	l := fp.freeList(byPrefix)
	first := 0
	if from.IsValid() {
		i := l.find(from)
		first = i + 1
		if i >= 0 && l.blocks[i].hasRoom && l.blocks[i].prefix.Contains(from) {
			b := l.blocks[i]
			a, _ := b.space.TakeNextAddr(from)
			if !a.Less(from) {
				l.last = i
				return b, a, true
			}
			b.space.ReleaseAddr(a) // the addresses of b below from come last
		}
	}
	b := l.next(first)
	if b == nil {
		return nil, netip.Addr{}, false
	}
	l.last = b.at[byPrefix]
	a, ok := b.space.TakeNextAddr(netip.Addr{})
	return b, a, ok
}
