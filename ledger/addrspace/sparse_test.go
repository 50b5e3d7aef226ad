// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// sparse is the model of a wide Space: the ranges that are taken, in order, as
// distances from the first address.
type sparse struct {
	s     *Space // for base and width alone
	taken []block

	off u128 // of the last operation
	k   uint
	op  int
}

type block struct{ first, last u128 }

// meets returns the index of the first taken range that ends at or above off.
func (m *sparse) meets(off u128) int {
	i, _ := slices.BinarySearchFunc(m.taken, off, func(r block, off u128) int {
		if r.last.less(off) {
			return -1
		}
		return 1
	})
	return i
}

func (m *sparse) all(b block, free bool) bool {
	i := m.meets(b.first)
	if free {
		return i == len(m.taken) || b.last.less(m.taken[i].first)
	}
	return i < len(m.taken) && !b.first.less(m.taken[i].first) && !m.taken[i].last.less(b.last)
}

// mark keeps ranges that touch apart only if that does not matter: it joins them.
func (m *sparse) mark(b block, free bool) bool {
	if !m.all(b, !free) {
		return false
	}
	one := u64(1)
	i := m.meets(b.first)
	if !free {
		m.taken = slices.Insert(m.taken, i, b)
		if i+1 < len(m.taken) && m.taken[i+1].first == b.last.add(one) {
			m.taken[i].last = m.taken[i+1].last
			m.taken = slices.Delete(m.taken, i+1, i+2)
		}
		if i > 0 && m.taken[i-1].last.add(one) == b.first {
			m.taken[i-1].last = m.taken[i].last
			m.taken = slices.Delete(m.taken, i, i+1)
		}
		return true
	}
	r := m.taken[i]
	var rest []block
	if r.first != b.first {
		rest = append(rest, block{r.first, b.first.sub(one)})
	}
	if r.last != b.last {
		rest = append(rest, block{b.last.add(one), r.last})
	}
	m.taken = slices.Replace(m.taken, i, i+1, rest...)
	return true
}

func (m *sparse) next(from u128, k uint) (u128, bool) {
	for _, at := range []u128{from, {}} {
		for {
			up := at.add(ones(k))
			if up.less(at) || m.s.mask.less(up) { // above the end
				break
			}
			at = up.floor(k)
			i := m.meets(at)
			if i == len(m.taken) || at.or(ones(k)).less(m.taken[i].first) {
				return at, true
			}
			at = m.taken[i].last.add(u64(1))
			if at.isZero() {
				break
			}
		}
	}
	return u128{}, false
}

// free returns the prefixes that FreePrefixes should yield.
func (m *sparse) free() (all []netip.Prefix) {
	add := func(first, last u128) {
		all = slices.AppendSeq(all, Cover(m.s.addr(first), m.s.addr(last)))
	}
	var at u128
	for _, r := range m.taken {
		if r.first != at {
			add(at, r.first.sub(u64(1)))
		}
		if r.last == m.s.mask {
			return all
		}
		at = r.last.add(u64(1))
	}
	add(at, m.s.mask)
	return all
}

// offset is somewhere in the Space: near an edge of what is taken, or at a
// place with the same digits as another one, or anywhere.
func (m *sparse) offset(rnd *rand.Rand) u128 {
	off := u128{rnd.Uint64(), rnd.Uint64()}
	switch rnd.IntN(4) {
	case 0, 1:
		if len(m.taken) > 0 {
			r := m.taken[rnd.IntN(len(m.taken))]
			off = off.and(ones(uint(rnd.IntN(20)))).xor([]u128{r.first, r.last}[rnd.IntN(2)])
		}
	case 2:
		for shift := uint(0); shift < 128; shift += 6 {
			digit := []uint64{0, 0, 0, 0, 1, 63}[rnd.IntN(6)]
			off = off.sub(off.and(u64(63).shl(shift))).or(u64(digit).shl(shift))
		}
	}
	return off.and(m.s.mask)
}

// step does one random operation to both, and says what it was.
func (m *sparse) step(rnd *rand.Rand) (what string, got, want any) {
	s, off := m.s, m.offset(rnd)
	k := uint(rnd.IntN(int(s.width) + 1))
	if rnd.IntN(8) > 0 {
		k = min(uint([]int{0, 0, 0, 1, 5, 5, 6, 7, 8, 11, 11, 12, 13, 17, 17, 18, 19, 23, 24, 29}[rnd.IntN(20)]), s.width)
	}
	op := rnd.IntN(8)
	if m.k < s.width && rnd.IntN(4) == 0 { // the same to the buddy of the last one: they join
		off, k, op = m.off.xor(pow2(m.k)), m.k, m.op
	}
	m.off, m.k, m.op = off, k, op
	b := block{off.floor(k), off.floor(k).or(ones(k))}
	length := s.base.Addr().BitLen() - int(k)
	p := netip.PrefixFrom(s.addr(b.first), length)
	switch op {
	case 0, 1:
		q, ok := s.TakeNext(s.addr(off), length)
		at, ok2 := m.next(off, k)
		want := netip.Prefix{}
		if ok2 {
			want = netip.PrefixFrom(s.addr(at), length)
			m.mark(block{at, at.or(ones(k))}, false)
		}
		return fmt.Sprintf("next /%d from %s", length, s.addr(off)), fmt.Sprint(q, ok), fmt.Sprint(want, ok2)
	case 2:
		a, ok := s.TakeNextAddr(s.addr(off))
		at, ok2 := m.next(off, 0)
		want := netip.Addr{}
		if ok2 {
			want = s.addr(at)
			m.mark(block{at, at}, false)
		}
		return fmt.Sprint("next address from ", s.addr(off)), fmt.Sprint(a, ok), fmt.Sprint(want, ok2)
	case 3:
		return fmt.Sprint("take ", s.addr(off)), s.TakeAddr(s.addr(off)), m.mark(block{off, off}, false)
	case 4:
		return fmt.Sprint("release ", s.addr(off)), s.ReleaseAddr(s.addr(off)), m.mark(block{off, off}, true)
	case 5:
		return fmt.Sprint("is free ", p), s.IsFree(p), m.all(b, true)
	default:
		return fmt.Sprint("mark ", p, op == 6), s.markPrefix(p, op == 6), m.mark(b, op == 6)
	}
}

func TestWideSpaceAgreesWithTheSparseModel(t *testing.T) {
	for _, base := range []string{"10.0.0.0/14", "10.0.0.0/13", "10.0.0.0/8", "0.0.0.0/0", "fd00::/100", "fd00::/64", "fd00::/62", "fd00::/61", "fd00::/56", "::/1", "::/0"} {
		for seed := range uint64(9) {
			t.Run(fmt.Sprint(base, "/seed=", seed), func(t *testing.T) {
				s, rnd := New(pfx(base)), rand.New(rand.NewPCG(seed, 2))
				m := &sparse{s: s}
				if seed%3 == 0 { // mostly taken
					s.Take(s.base)
					m.mark(block{u128{}, s.mask}, false)
				}
				for i := range 300 {
					what, got, want := m.step(rnd)
					if got != want {
						t.Fatalf("step %d: %s: got %v, the model says %v", i, what, got, want)
					}
					if err := verify(s); err != nil {
						t.Fatalf("step %d: after %s: %v", i, what, err)
					}
				}
				NewWithT(t).Expect(slices.Equal(slices.Collect(s.FreePrefixes()), m.free())).To(BeTrue(), "what is free")
			})
		}
	}
}
