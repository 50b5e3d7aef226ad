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

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// naive is the model: one bool an address.
type naive struct {
	base netip.Prefix
	free []bool
}

func newNaive(base netip.Prefix) *naive {
	m := &naive{base: base, free: make([]bool, Size(base))}
	for i := range m.free {
		m.free[i] = true
	}
	return m
}

func (m *naive) index(a netip.Addr) int { return int(toU128(a).sub(toU128(m.base.Addr())).lo) }
func (m *naive) addr(i int) netip.Addr  { a, _ := Nth(m.base, uint64(i)); return a }
func (m *naive) span(p netip.Prefix) (a, b int) {
	a = m.index(p.Addr())
	return a, a + int(Size(p))
}

func (m *naive) all(p netip.Prefix, free bool) bool {
	a, b := m.span(p)
	return !slices.Contains(m.free[a:b], !free)
}

func (m *naive) mark(p netip.Prefix, free bool) bool {
	if !m.all(p, !free) {
		return false
	}
	a, b := m.span(p)
	for i := a; i < b; i++ {
		m.free[i] = free
	}
	return true
}

func (m *naive) next(from netip.Addr, bits int) (netip.Prefix, bool) {
	size := 1 << (m.base.Addr().BitLen() - bits)
	try := func(i int) (netip.Prefix, bool) {
		for i = (i + size - 1) / size * size; i+size <= len(m.free); i += size {
			if p := netip.PrefixFrom(m.addr(i), bits); m.all(p, true) {
				return p, true
			}
		}
		return netip.Prefix{}, false
	}
	if from.IsValid() {
		if p, ok := try(m.index(from)); ok {
			return p, true
		}
	}
	return try(0)
}

// play runs random operations on the index and on the model and compares.
func play(s *Space, m *naive, rnd *rand.Rand, steps int) error {
	width := m.base.Addr().BitLen()
	for i := range steps {
		a := m.addr(rnd.IntN(len(m.free)))
		length := m.base.Bits() + rnd.IntN(width-m.base.Bits()+1)
		if rnd.IntN(3) > 0 { // mostly small ones, else all is taken at once
			length = width - rnd.IntN(min(4, width-m.base.Bits()+1))
		}
		p := netip.PrefixFrom(a, length).Masked()
		from := a
		if rnd.IntN(4) == 0 {
			from = netip.Addr{}
		}
		var what string
		var got, want any
		switch op := rnd.IntN(8); op {
		case 0, 1:
			x, ok := s.TakeNextAddr(from)
			y, ok2 := m.next(from, width)
			if ok2 {
				m.mark(y, false)
			}
			what, got, want = fmt.Sprint("next address from ", from), fmt.Sprint(x, ok), fmt.Sprint(y.Addr(), ok2)
		case 2:
			x, ok := s.TakeNext(from, length)
			y, ok2 := m.next(from, length)
			if ok2 {
				m.mark(y, false)
			}
			what, got, want = fmt.Sprintf("next /%d from %s", length, from), fmt.Sprint(x, ok), fmt.Sprint(y, ok2)
		case 3:
			what, got, want = fmt.Sprint("take ", a), s.TakeAddr(a), m.mark(netip.PrefixFrom(a, width), false)
		case 4, 5:
			what, got, want = fmt.Sprint("release ", a), s.ReleaseAddr(a), m.mark(netip.PrefixFrom(a, width), true)
		case 6:
			free := rnd.IntN(2) == 0
			what, got, want = fmt.Sprint("mark ", p, free), s.markPrefix(p, free), m.mark(p, free)
		case 7:
			b := m.addr(min(len(m.free)-1, m.index(a)+rnd.IntN(40)))
			all := true
			for p := range Cover(a, b) {
				all = all && m.all(p, true)
			}
			if all {
				for p := range Cover(a, b) {
					m.mark(p, false)
				}
			}
			what, got, want = fmt.Sprint("take range ", a, b), s.TakeRange(a, b), all
		}
		if got != want {
			return fmt.Errorf("step %d: %s: got %v, the model says %v", i, what, got, want)
		}
		if err := verify(s); err != nil {
			return fmt.Errorf("step %d: after %s: %w", i, what, err)
		}
	}
	return m.compare(s)
}

// compare looks at every address.
func (m *naive) compare(s *Space) error {
	for i, free := range m.free {
		if p := netip.PrefixFrom(m.addr(i), m.base.Addr().BitLen()); s.IsFree(p) != free {
			return fmt.Errorf("at the end: %s free: %v, the model says %v", p, !free, free)
		}
	}
	return nil
}

func TestSpaceAgreesWithTheNaiveModel(t *testing.T) {
	for _, base := range []string{"10.0.0.0/32", "10.0.0.0/31", "10.1.5.0/29", "10.1.5.0/26", "10.1.5.0/24", "10.1.8.0/21", "10.0.0.0/20", "fd00::/116", "fd00:0:0:5::ff00/121"} {
		for seed := range uint64(12) {
			t.Run(fmt.Sprint(base, "/seed=", seed), func(t *testing.T) {
				g := NewWithT(t)
				b := pfx(base).Masked()
				g.Expect(play(New(b), newNaive(b), rand.New(rand.NewPCG(seed, 1)), 400)).To(Succeed())
			})
		}
	}
}

func TestModelFindsABrokenIndex(t *testing.T) {
	g := NewWithT(t)
	b := pfx("10.1.5.0/24")
	s := New(b)
	s.TakeAddr(ip("10.1.5.7")) // the model does not know
	g.Expect(play(s, newNaive(b), rand.New(rand.NewPCG(1, 1)), 2000)).NotTo(Succeed())
}

func TestSpaceOfAnyWidth(t *testing.T) {
	for width := 0; width <= 128; width++ {
		g := NewWithT(t)
		base := netip.PrefixFrom(ip("fd00::"), 128-width).Masked()
		s := New(base)
		g.Expect(verify(s)).To(Succeed())
		first := base.Addr()
		last, _ := NthLast(base, 0)
		g.Expect(s.TakeAddr(last)).To(BeTrue())
		g.Expect(s.TakeAddr(last)).To(BeFalse())
		if width > 0 {
			a, ok := s.TakeNextAddr(last)
			g.Expect(ok).To(BeTrue())
			g.Expect(a).To(Equal(first), "wraps around")
		}
		g.Expect(verify(s)).To(Succeed())
		g.Expect(s.ReleaseAddr(last)).To(BeTrue())
		if width > 0 {
			g.Expect(s.ReleaseAddr(first)).To(BeTrue())
		}
		g.Expect(s.Take(base)).To(BeTrue(), "all of /%d", 128-width)
		g.Expect(s.Free()).To(BeZero())
		_, ok := s.TakeNextAddr(netip.Addr{})
		g.Expect(ok).To(BeFalse())
		g.Expect(s.Release(base)).To(BeTrue())
		g.Expect(s.Free()).To(Equal(Size(base)))
		g.Expect(verify(s)).To(Succeed())
	}
}

func TestSpaceRefusesForeignAddresses(t *testing.T) {
	g := NewWithT(t)
	s := New(pfx("10.1.5.0/24"))
	for _, a := range []string{"10.1.4.255", "10.1.6.0", "fd00::1", "::ffff:10.1.5.3"} {
		g.Expect(s.TakeAddr(ip(a))).To(BeFalse(), a)
		g.Expect(s.ReleaseAddr(ip(a))).To(BeFalse(), a)
	}
	g.Expect(s.TakeAddr(netip.Addr{})).To(BeFalse())
	for _, p := range []string{"10.1.4.0/23", "10.1.6.0/24", "fd00::/64", "10.1.5.1/30"} {
		g.Expect(s.Take(pfx(p))).To(BeFalse(), p)
		g.Expect(s.IsFree(pfx(p))).To(BeFalse(), p)
	}
	g.Expect(s.TakeRange(ip("10.1.5.250"), ip("10.1.6.2"))).To(BeFalse())
	g.Expect(s.TakeRange(ip("10.1.5.9"), ip("10.1.5.3"))).To(BeFalse())
	g.Expect(s.Free()).To(BeNumerically("==", 256))
	_, ok := s.Next(netip.Addr{}, 33)
	g.Expect(ok).To(BeFalse())
	_, ok = s.Next(netip.Addr{}, 23)
	g.Expect(ok).To(BeFalse())
}

func TestBlocksOfDifferentSizesDoNotOverlap(t *testing.T) {
	g := NewWithT(t)
	s := New(pfx("10.0.0.0/8"))
	var got []netip.Prefix
	rnd := rand.New(rand.NewPCG(7, 7))
	for range 3000 {
		p, ok := s.TakeNext(netip.Addr{}, 20+rnd.IntN(13))
		g.Expect(ok).To(BeTrue())
		got = append(got, p)
	}
	slices.SortFunc(got, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for i := 1; i < len(got); i++ {
		g.Expect(got[i-1].Overlaps(got[i])).To(BeFalse(), "%s and %s", got[i-1], got[i])
	}
}

func TestFreePrefixesCoverTheFreeAddresses(t *testing.T) {
	g := NewWithT(t)
	s := New(pfx("10.1.5.0/24"))
	s.TakeRange(ip("10.1.5.0"), ip("10.1.5.2"))
	s.TakeAddr(ip("10.1.5.255"))
	g.Expect(fmt.Sprint(slices.Collect(s.FreePrefixes()))).To(Equal("[10.1.5.3/32 10.1.5.4/30 10.1.5.8/29 10.1.5.16/28 10.1.5.32/27 10.1.5.64/26 10.1.5.128/26 10.1.5.192/27 10.1.5.224/28 10.1.5.240/29 10.1.5.248/30 10.1.5.252/31 10.1.5.254/32]"))
}

func TestCoverIsExact(t *testing.T) {
	g := NewWithT(t)
	cover := func(a, b string) string { return fmt.Sprint(slices.Collect(Cover(ip(a), ip(b)))) }
	g.Expect(cover("10.0.0.1", "10.0.0.6")).To(Equal("[10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32]"))
	g.Expect(cover("0.0.0.0", "255.255.255.255")).To(Equal("[0.0.0.0/0]"))
	g.Expect(cover("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")).To(Equal("[::/0]"))
	g.Expect(cover("10.0.0.6", "10.0.0.1")).To(Equal("[]"))
	g.Expect(cover("10.0.0.6", "fd00::")).To(Equal("[]"))
}

func TestSpaceInSteadyUseAllocatesNothing(t *testing.T) {
	for _, base := range []string{"10.1.5.0/24", "10.1.0.0/16", "fd00::/64"} {
		g := NewWithT(t)
		s := New(pfx(base))
		var live [200]netip.Addr
		for i := range live {
			live[i], _ = s.TakeNextAddr(netip.Addr{})
		}
		i := 0
		turn := func() {
			a, _ := s.TakeNextAddr(live[i].Next())
			s.ReleaseAddr(live[i])
			live[i] = a
			i = (i*7 + 3) % len(live)
		}
		for range 5000 {
			turn()
		}
		g.Expect(testing.AllocsPerRun(2000, turn)).To(BeZero(), base)
	}
}

func TestSpaceFreesMemory(t *testing.T) {
	g := NewWithT(t)
	for _, taken := range []bool{false, true} { // one taken where all is free, and the reverse
		s := New(pfx("fd00::/64"))
		if taken {
			g.Expect(s.Take(s.base)).To(BeTrue())
		}
		rnd := rand.New(rand.NewPCG(3, 3))
		for range 20000 {
			a, _ := Nth(s.base, rnd.Uint64())
			p := netip.PrefixFrom(a, 128)
			g.Expect(s.markPrefix(p, taken)).To(BeTrue())
			g.Expect(s.markPrefix(p, !taken)).To(BeTrue())
		}
		g.Expect(verify(s)).To(Succeed())
		g.Expect(s.inUse()).To(BeZero(), "all of one kind is the root alone")
	}
}

func TestMemoryFollowsTheTakenAddresses(t *testing.T) {
	g := NewWithT(t)
	s := New(pfx("fd00::/64"))
	rnd := rand.New(rand.NewPCG(4, 4))
	var all []netip.Addr
	for i := range 3000 {
		a, _ := Nth(s.base, rnd.Uint64()>>(i%3*16)) // far apart, and near
		if s.TakeAddr(a) {
			all = append(all, a)
		}
	}
	g.Expect(verify(s)).To(Succeed())
	g.Expect(s.inUse()).To(BeNumerically("<=", 3*len(all)))
	for _, a := range all {
		g.Expect(s.ReleaseAddr(a)).To(BeTrue())
	}
	g.Expect(verify(s)).To(Succeed(), "and what is kept for later is few")
	g.Expect(s.inUse()).To(BeZero())

	s = New(pfx("10.0.0.0/14"))
	g.Expect(s.TakeAddr(ip("10.0.0.1"))).To(BeTrue())
	for page := range uint64(64) { // each touched once
		a, _ := Nth(s.base, page<<pageBits+7)
		g.Expect(s.TakeAddr(a)).To(BeTrue())
		g.Expect(s.ReleaseAddr(a)).To(BeTrue())
	}
	g.Expect(verify(s)).To(Succeed())
	g.Expect(s.inUse()).To(BeNumerically("<=", 1+freePages))
}

func FuzzSpace(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 250, 4, 5}, uint8(24))
	f.Fuzz(func(t *testing.T, ops []byte, length uint8) {
		base := netip.PrefixFrom(ip("10.1.5.0"), 20+int(length%13)).Masked()
		s, m := New(base), newNaive(base)
		for i := 0; i+1 < len(ops); i += 2 {
			n := int(ops[i+1]) * 17 % len(m.free)
			a := m.addr(n)
			p := netip.PrefixFrom(a, base.Bits()+int(ops[i]>>3)%(33-base.Bits())).Masked()
			switch ops[i] & 3 {
			case 0:
				x, ok := s.TakeNext(a, p.Bits())
				y, ok2 := m.next(a, p.Bits())
				if ok != ok2 || x != y {
					t.Fatalf("next /%d from %s: got %s %v, want %s %v", p.Bits(), a, x, ok, y, ok2)
				}
				if ok {
					m.mark(y, false)
				}
			case 1, 2:
				free := ops[i]&3 == 1
				if got, want := s.markPrefix(p, free), m.mark(p, free); got != want {
					t.Fatalf("mark %s %v: got %v", p, free, got)
				}
			case 3:
				if got, want := s.ReleaseAddr(a), m.mark(netip.PrefixFrom(a, 32), true); got != want {
					t.Fatalf("release %s: got %v", a, got)
				}
			}
			if err := verify(s); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRuns(t *testing.T) {
	g := NewWithT(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		w := rnd.Uint64() | rnd.Uint64() | rnd.Uint64()
		if w == 0 {
			continue
		}
		longest := 0
		for r := range uint(7) {
			var want uint64
			for i := 0; i < 64; i += 1 << r {
				if m := ^uint64(0) >> (64 - 1<<r) << i; w&m == m {
					want |= 1 << i
					longest = int(r)
				}
			}
			g.Expect(runs(w, r)).To(Equal(want))
		}
		g.Expect(longestRun(w)).To(BeNumerically("==", longest))
	}
}
