// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

// TestRangesDoNotOverlap adds two ranges, in both orders.
func TestRangesDoNotOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b    string
		bits    int
		overlap bool
	}{
		{"10.0.0.0/16", "10.0.0.0/8", 24, true},
		{"10.0.0.0/16", "10.0.0.0/16", 24, true},
		{"10.0.0.0/16", "10.0.255.0/24", 24, true},
		{"10.0.0.0/16", "10.1.0.0/16", 24, false},
		{"fd00::/100", "fd00::/96", 112, true},
		{"fd00::/100", "fd00::1:0:0/96", 112, false},
		{"fd00::/100", "fd00::1000:0/100", 112, false},
	} {
		for _, x := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			g, s := NewWithT(t), setOf(t, x[0], c.bits)
			err := s.AddRange(Range{Prefix: pfx(x[1]), Bits: c.bits})
			if !c.overlap {
				g.Expect(err).NotTo(HaveOccurred(), "%v", x)
				continue
			}
			g.Expect(err).To(And(MatchError(ErrRange), MatchError(ContainSubstring("it overlaps "+x[0]))), "%v", x)
			g.Expect(s.Ranges()).To(HaveLen(1), "nothing of it stays")
		}
	}
}

// After a restart every owner occupies its block again, which needs no free block.
func TestRestartWithFullRange(t *testing.T) {
	g, before := NewWithT(t), setOf(t, "10.0.0.0/22", 24)
	blocks := fill(t, before, 0)
	g.Expect(blocks).To(HaveLen(4))
	s := setOf(t, "10.0.0.0/22", 24)
	for range 2 { // its Node objects are read, and then watched
		for i, p := range blocks {
			g.Expect(s.Occupy(node(i), p, epoch())).To(Succeed())
			g.Expect(allocate(t, s, node(i))).To(Equal(p), "it needs no other")
		}
	}
	g.Expect(s.Stat(epoch()).Ranges[0].Used).To(Equal(uint64(4)))
	_, err := s.Allocate(node(4), nil, epoch())
	g.Expect(err).To(MatchError(ErrExhausted))
}

// A node with a block of one family gets one of the other, if one is left.
func TestNodeWithOneFamilyGetsTheOther(t *testing.T) {
	for _, c := range []struct {
		has, want string // want: the block of the other family, "" if that is full
		left      int    // of IPv6
	}{
		{"10.0.0.64/28", "fd00::/64", 1},
		{"fd00:0:0:5::/64", "10.0.0.0/28", 16},
		{"10.9.9.0/28", "fd00::/64", 1}, // in no range: it serves its family all the same
		{"10.0.0.64/28", "", 0},
	} {
		g, s := NewWithT(t), dual(t, c.left)
		_ = s.Occupy(node(1), pfx(c.has), epoch())
		used := s.Stat(epoch()).Ranges
		got, err := s.Allocate(node(1), nil, epoch())
		if c.want != "" {
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal([]netip.Prefix{pfx(c.has), pfx(c.want)}))
			continue
		}
		g.Expect(err).To(MatchError(ErrExhausted))
		blocks, pending := s.Blocks(node(1))
		g.Expect(blocks).To(Equal([]netip.Prefix{pfx(c.has)}), "it keeps its block")
		g.Expect(pending).To(BeFalse())
		g.Expect(s.Stat(epoch()).Ranges).To(Equal(used))
	}
}

// The next range of a pool serves if one is full, each family on its own.
func TestNextRangeIfOneIsFull(t *testing.T) {
	g, s := NewWithT(t), New(Policy{})
	for _, r := range []Range{
		{Prefix: pfx("10.10.0.0/24"), Bits: 24}, {Prefix: pfx("10.20.0.0/23"), Bits: 24},
		{Prefix: pfx("fd00::/64"), Bits: 64, Pool: 1}, {Prefix: pfx("fd01::/63"), Bits: 64, Pool: 1},
	} {
		g.Expect(s.AddRange(r)).To(Succeed())
	}
	g.Expect(fill(t, s, 0)).To(Equal([]netip.Prefix{
		pfx("10.10.0.0/24"), pfx("fd00::/64"), pfx("10.20.0.0/24"), pfx("fd01::/64"), pfx("10.20.1.0/24"), pfx("fd01:0:0:1::/64"),
	}))
	g.Expect(s.Release(node(0), epoch())).To(Succeed())
	g.Expect(s.Release(node(77), epoch())).To(MatchError(errNotHeld), "an owner without blocks")
	g.Expect(fill(t, s, 9)).To(Equal([]netip.Prefix{pfx("10.10.0.0/24"), pfx("fd00::/64")}), "the first one first, when it has room")
}
