// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// TestSpaceOfBlocksAgreesWithSpaceOfAddresses makes the same changes, all of whole
// blocks, to a Space of blocks and to a Space of addresses.
func TestSpaceOfBlocksAgreesWithSpaceOfAddresses(t *testing.T) {
	for _, c := range []struct {
		base string
		unit int
	}{
		{"10.0.0.0/8", 24}, {"10.1.0.0/16", 16}, {"255.255.0.0/16", 32}, {"0.0.0.0/0", 20},
		{"2001:db8::/48", 64}, {"2001:db8::/32", 64}, {"::/0", 128}, {"ffff::/16", 96}, {"::1:0/112", 120},
	} {
		g, rnd := NewWithT(t), rand.New(rand.NewPCG(1, uint64(c.unit)))
		base := pfx(c.base)
		blocks, addrs := NewBlocks(base, c.unit), New(base)
		last := netip.PrefixFrom(base.Addr(), c.unit)
		for range 2000 {
			length := c.unit - rnd.IntN(1+min(4, c.unit-base.Bits()))
			p, _ := Sub(base, length, rnd.Uint64N(1+min(40, ^uint64(0)>>(64-min(6, length-base.Bits())))))
			switch rnd.IntN(4) {
			case 0:
				from := []netip.Addr{{}, p.Addr(), last.Addr()}[rnd.IntN(3)]
				got, ok := blocks.TakeNext(from, length)
				want, ok2 := addrs.TakeNext(from, length)
				g.Expect(ok).To(Equal(ok2))
				g.Expect(got).To(Equal(want), "%s: next /%d from %s", c.base, length, from)
				last = p
			case 1:
				g.Expect(blocks.Take(p)).To(Equal(addrs.Take(p)), "%s: take %s", c.base, p)
			case 2:
				g.Expect(blocks.Release(p)).To(Equal(addrs.Release(p)), "%s: release %s", c.base, p)
			case 3:
				g.Expect(blocks.IsFree(p)).To(Equal(addrs.IsFree(p)), "%s: %s", c.base, p)
			}
		}
		g.Expect(slices.Collect(blocks.FreePrefixes())).To(Equal(slices.Collect(addrs.FreePrefixes())), c.base)
		g.Expect(verify(blocks)).To(Succeed())
		if c.unit < base.Addr().BitLen() {
			g.Expect(blocks.Take(netip.PrefixFrom(last.Addr(), c.unit+1))).To(BeFalse(), "a part of a block")
			g.Expect(blocks.Take(netip.PrefixFrom(last.Addr().Next(), c.unit))).To(BeFalse(), "host bits")
		}
	}
}

func TestFreeWithin(t *testing.T) {
	g, rnd := NewWithT(t), rand.New(rand.NewPCG(3, 4))
	base := pfx("10.1.0.0/24")
	for range 200 {
		s := New(base)
		for range rnd.IntN(40) {
			a, _ := Nth(base, rnd.Uint64N(256))
			s.TakeAddr(a)
		}
		p, _ := Sub(base, 24+rnd.IntN(9), 0)
		p, _ = Sub(base, p.Bits(), rnd.Uint64N(1<<(p.Bits()-24)))
		var want []netip.Prefix
		for free := range s.FreePrefixes() {
			if free.Overlaps(p) {
				want = append(want, netip.PrefixFrom(slices.MaxFunc([]netip.Addr{free.Addr(), p.Addr()}, netip.Addr.Compare), max(free.Bits(), p.Bits())))
			}
		}
		var got []netip.Prefix
		for free := range s.FreeWithin(p) {
			got = append(got, free)
			g.Expect(s.Take(free)).To(BeTrue())
		}
		g.Expect(got).To(Equal(want), "%s of %s", p, s)
	}
	g.Expect(slices.Collect(New(base).FreeWithin(pfx("10.1.0.0/23")))).To(BeEmpty(), "wider than the Space")
}

func TestDistanceCountsBlocks(t *testing.T) {
	for _, c := range []struct {
		base string
		bits int
		n    uint64
	}{
		{"10.0.0.0/8", 24, 0}, {"10.0.0.0/8", 24, 65535}, {"10.0.0.0/8", 8, 0}, {"0.0.0.0/0", 32, 1<<32 - 1},
		{"2001:db8::/32", 64, 1<<32 - 1}, {"::/0", 64, 1<<64 - 1}, {"fd00::/64", 128, 1 << 40},
	} {
		g, base := NewWithT(t), pfx(c.base)
		sub, ok := Sub(base, c.bits, c.n)
		g.Expect(ok).To(BeTrue())
		last, _ := NthLast(sub, 0)
		g.Expect(Distance(base, c.bits, base.Addr(), sub.Addr())).To(Equal(c.n), sub.String())
		g.Expect(Distance(base, c.bits, base.Addr(), last)).To(Equal(c.n), sub.String())
		if width := c.bits - base.Bits(); width < 64 {
			around := (1<<width - c.n) % (1 << width)
			g.Expect(Distance(base, c.bits, sub.Addr(), base.Addr())).To(Equal(around), "from %s around the end", sub)
		}
	}
	NewWithT(t).Expect(Distance(pfx("::/0"), 128, ip("::"), ip("8000::"))).To(Equal(^uint64(0)), "the largest uint64 stands for more")
}
