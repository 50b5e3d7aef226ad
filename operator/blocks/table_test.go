// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// setOf returns a Set of one range.
func setOf(t testing.TB, prefix string, bits int) *Set {
	t.Helper()
	s := New(Policy{})
	NewWithT(t).Expect(s.AddRange(Range{Prefix: pfx(prefix), Bits: bits})).To(Succeed())
	return s
}

func node(n int) Owner {
	return NewOwner(fmt.Sprintf("node-%d", n), fmt.Sprintf("3f2a7c1e-0b9d-4d5e-8f6a-%012x", n))
}

func allocate(t testing.TB, s *Set, o Owner) netip.Prefix {
	t.Helper()
	got, err := s.Allocate(o, nil, epoch())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(got).To(HaveLen(1))
	return got[0]
}

func TestRangeOfOneBlock(t *testing.T) {
	for _, prefix := range []string{"127.123.234.0/30", "beef:1234::/30"} {
		g := NewWithT(t)
		s := setOf(t, prefix, 30)
		want := pfx(prefix).Masked()
		g.Expect(allocate(t, s, node(1))).To(Equal(want))
		_, err := s.Allocate(node(2), nil, epoch())
		g.Expect(err).To(MatchError(ErrExhausted))
		var e *Exhausted
		g.Expect(errors.As(err, &e)).To(BeTrue())
		g.Expect(*e).To(Equal(Exhausted{Node: "node-2", bits: 30, capacity: 1, used: 1}))
		g.Expect(s.Release(node(1), epoch())).To(Succeed())
		g.Expect(allocate(t, s, node(2))).To(Equal(want))
	}
}

// blocksByNumber returns numbers of blocks in ranges.
func blocksByNumber() []struct {
	cluster string
	bits    int
	number  uint64
	block   string
} {
	return []struct {
		cluster string
		bits    int
		number  uint64
		block   string
	}{
		{"127.123.3.0/16", 24, 0, "127.123.0.0/24"},
		{"127.123.0.0/16", 24, 15, "127.123.15.0/24"},
		{"192.168.5.219/28", 32, 5, "192.168.5.213/32"},
		{"2001:db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"},
		{"2001:db8:1234::/48", 64, 15, "2001:db8:1234:f::/64"},
		{"2001:db8:85a3::8a2e:370:7334/50", 63, 6425, "2001:db8:85a3:3232::/63"},
		{"2001:db8::/32", 48, 15, "2001:db8:f::/48"},
		{"2001:db8::/32", 48, 6425, "2001:db8:1919::/48"},
		{"2001:db8:1234:ff00::/56", 72, 15, "2001:db8:1234:ff00:f00::/72"},
		{"2001:db8:1234:ff00::/56", 72, 6425, "2001:db8:1234:ff19:1900::/72"},
		{"2001:db8:1234:0:1234::/80", 96, 15, "2001:db8:1234:0:1234:f::/96"},
		{"2001:db8:1234:0:1234::/80", 96, 6425, "2001:db8:1234:0:1234:1919::/96"},
		{"127.0.0.0/8", 16, 0, "127.0.0.0/16"},
		{"127.0.0.0/8", 16, 123, "127.123.0.0/16"},
		{"127.0.0.0/8", 16, 224, "127.224.0.0/16"},
		{"192.168.0.0/16", 24, 12, "192.168.12.0/24"},
		{"192.168.0.0/16", 24, 151, "192.168.151.0/24"},
		{"be00::/8", 16, 0, "be00::/16"},
		{"be00::/8", 16, 0xef, "beef::/16"},
		{"be00::/8", 16, 0x68, "be68::/16"},
		{"beef::/16", 24, 0x12, "beef:1200::/24"},
		{"beef::/16", 24, 0x97, "beef:9700::/24"},
		{"10.0.0.0/8", 32, 1<<24 - 1, "10.255.255.255/32"},
		{"0.0.0.0/0", 32, 1<<32 - 1, "255.255.255.255/32"},
		{"2001:db8::/32", 64, 1<<32 - 1, "2001:db8:ffff:ffff::/64"},      // the last number of 32 bits
		{"2001:db8::/32", 65, 1<<33 - 1, "2001:db8:ffff:ffff:8000::/65"}, // the first of 33 bits
		{"2001:db8::/32", 80, 1 << 47, "2001:db8:8000::/80"},
		{"::/0", 64, 1<<64 - 1, "ffff:ffff:ffff:ffff::/64"},
		{"::/0", 128, 1<<64 - 1, "::ffff:ffff:ffff:ffff/128"},
	}
}

func TestBlocksByNumber(t *testing.T) {
	for _, x := range blocksByNumber() {
		g := NewWithT(t)
		r := newRange(Range{Prefix: pfx(x.cluster).Masked(), Bits: x.bits})
		block, ok := addrspace.Sub(r.Prefix, x.bits, x.number)
		g.Expect(ok).To(BeTrue(), x.cluster)
		g.Expect(block).To(Equal(pfx(x.block)), x.cluster)
		g.Expect(addrspace.Distance(r.Prefix, x.bits, r.Prefix.Addr(), block.Addr())).To(Equal(x.number), x.cluster)
		g.Expect(r.take(block)).To(BeTrue(), x.block)
		g.Expect(r.take(block)).To(BeFalse(), x.block)
	}
}

func TestOccupyOutsideTheRange(t *testing.T) {
	for _, x := range []struct{ cluster, block string }{
		{"192.168.0.0/16", "192.169.0.0/24"},
		{"be00::/8", "aa00::/16"},
		{"beef::/16", "10.1.0.0/24"},
		{"10.0.0.0/16", "::ffff:10.0.0.0/120"},
	} {
		s := setOf(t, x.cluster, 24)
		NewWithT(t).Expect(s.Occupy(node(1), pfx(x.block), epoch())).To(MatchError(ErrOutOfRange), x.block)
		NewWithT(t).Expect(s.Stat(epoch()).Ranges[0].Used).To(BeZero())
	}
}

// fill allocates until nothing is left.
func fill(t testing.TB, s *Set, first int) (blocks []netip.Prefix) {
	t.Helper()
	for i := first; ; i++ {
		got, err := s.Allocate(node(i), nil, epoch())
		if errors.Is(err, ErrExhausted) {
			return blocks
		}
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		blocks = append(blocks, got...)
	}
}

func TestRefillGivesTheSameOrder(t *testing.T) {
	for _, x := range []struct {
		cluster string
		bits    int
	}{{"127.123.0.0/16", 24}, {"beef:1234::/16", 24}} {
		g := NewWithT(t)
		s := setOf(t, x.cluster, x.bits)
		once := fill(t, s, 0)
		g.Expect(once).To(HaveLen(256))
		g.Expect(slices.IsSortedFunc(once, netip.Prefix.Compare)).To(BeTrue())
		for i := range once {
			g.Expect(s.Release(node(i), epoch())).To(Succeed())
		}
		g.Expect(fill(t, s, 0)).To(Equal(once))
	}
}

func TestUpperHalfOccupied(t *testing.T) {
	for _, cluster := range []string{"127.123.0.0/16", "beef:1234::/16"} {
		g := NewWithT(t)
		s := setOf(t, cluster, 24)
		all := fill(t, s, 0)
		for i := range all {
			g.Expect(s.Release(node(i), epoch())).To(Succeed())
		}
		for i, p := range all[128:] {
			g.Expect(s.Occupy(node(1000+i), p, epoch())).To(Succeed())
		}
		g.Expect(s.Occupy(node(1000), all[128], epoch())).To(Succeed())
		g.Expect(fill(t, s, 0)).To(Equal(all[:128]))
	}
}

// TestRepeatedOccupyAndRelease runs upstream's table of double occupations. If two
// owners hold one block, upstream's second release frees what is in use.
func TestRepeatedOccupyAndRelease(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.42.0.0/16", 24)
	const conflict, not = "conflict", "not held"
	for i, x := range []struct {
		occupy bool
		owner  int
		block  string
		used   uint64
		want   string
	}{
		{true, 5, "10.42.5.0/24", 1, ""},
		{true, 9, "10.42.9.0/24", 2, ""},
		{true, 8, "10.42.8.0/22", 5, conflict},
		{true, 9, "10.42.9.0/24", 5, conflict},
		{false, 9, "10.42.9.0/24", 5, ""}, // upstream: 4, and allocates what node 8 holds
		{false, 9, "10.42.9.0/24", 5, not},
		{true, 8, "10.42.8.0/22", 5, ""},
		{false, 4, "10.42.4.0/22", 5, not}, // upstream: frees what node 5 holds
		{false, 5, "10.42.5.0/24", 4, ""},
		{false, 5, "10.42.5.0/24", 4, not},
	} {
		do := s.ReleaseBlock
		if x.occupy {
			do = s.Occupy
		}
		err := do(node(x.owner), pfx(x.block), epoch())
		switch x.want {
		case conflict:
			g.Expect(err).To(MatchError(errConflict), "step %d", i)
		case not:
			g.Expect(err).To(MatchError(errNotHeld), "step %d", i)
		default:
			g.Expect(err).NotTo(HaveOccurred(), "step %d", i)
		}
		g.Expect(s.Stat(epoch()).Ranges[0].Used).To(Equal(x.used), "step %d", i)
	}
	g.Expect(fill(t, s, 100)).To(HaveLen(252))
}

func TestOccupiedIntervals(t *testing.T) {
	for _, x := range []struct {
		cluster     string
		bits        int
		block       string
		first, last int
	}{
		{"127.0.0.0/8", 16, "127.0.0.0/8", 0, 255},
		{"127.0.0.0/8", 16, "127.0.0.0/2", 0, 255},
		{"127.0.0.0/8", 16, "127.0.0.0/16", 0, 0},
		{"127.0.0.0/8", 32, "127.0.0.0/16", 0, 65535},
		{"126.0.0.0/7", 16, "127.0.0.0/15", 256, 257},
		{"126.0.0.0/7", 15, "127.0.0.0/15", 128, 128},
		{"126.0.0.0/7", 18, "127.0.0.0/15", 1024, 1031},
		{"2001:beef::/32", 40, "2001:beef::/32", 0, 255},
		{"2001:beef::/32", 40, "2001:b000::/20", 0, 255},
		{"2001:beef::/32", 40, "2001:beef::/40", 0, 0},
		{"2001:beef::/32", 56, "2001:beef::/40", 0, 65535},
		{"2001:beee::/31", 40, "2001:beef::/39", 256, 257},
		{"2001:beee::/31", 39, "2001:beef::/39", 128, 128},
		{"2001:beee::/31", 42, "2001:beef::/39", 1024, 1031},
	} {
		g := NewWithT(t)
		s := setOf(t, x.cluster, x.bits)
		err := s.Occupy(node(1), pfx(x.block), epoch())
		g.Expect(err == nil).To(Equal(pfx(x.block).Bits() >= pfx(x.cluster).Bits()), "%v", err)
		r := s.ranges[0]
		g.Expect(r.Used).To(Equal(uint64(x.last-x.first+1)), x.block)
		for _, n := range []int{x.first - 1, x.first, x.last, x.last + 1} {
			if n < 0 || uint64(n) >= r.Capacity {
				continue
			}
			block, _ := addrspace.Sub(r.Prefix, r.Bits, uint64(n))
			g.Expect(r.free.IsFree(block)).To(Equal(n < x.first || n > x.last), "%s, block %d", x.block, n)
		}
	}
}

func TestNoLimitBetweenRangeAndBlock(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "2001:beef:1234:369b::/60", 64)
	g.Expect(allocate(t, s, node(1))).To(Equal(pfx("2001:beef:1234:3690::/64")))
	g.Expect(allocate(t, s, node(2))).To(Equal(pfx("2001:beef:1234:3691::/64")))
	for _, x := range []struct {
		cluster  string
		bits     int
		capacity uint64
	}{
		{"127.0.0.0/8", 32, 1 << 24}, {"beef:1234::/32", 49, 1 << 17}, // upstream allows 16 bits only
		{"2001:db8::/32", 64, 1 << 32}, {"2001:db8::/32", 112, 1 << 63}, {"::/0", 128, 1 << 63}, {"10.0.0.0/24", 24, 1}, {"::1/128", 128, 1},
	} {
		s := setOf(t, x.cluster, x.bits)
		g.Expect(s.Stat(epoch()).Ranges[0].Capacity).To(Equal(x.capacity), x.cluster)
		first := allocate(t, s, node(1))
		g.Expect(first).To(Equal(netip.PrefixFrom(pfx(x.cluster).Masked().Addr(), x.bits)))
		if x.capacity > 1 {
			second := allocate(t, s, node(2))
			g.Expect(second.Overlaps(first)).To(BeFalse())
		}
	}
}

func TestCounters(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 24)
	stat := func() RangeStat { return s.Stat(epoch()).Ranges[0] }
	for i := range 256 {
		allocate(t, s, node(i))
		g.Expect(stat().Used).To(Equal(uint64(i + 1)))
		g.Expect(stat().Allocated).To(Equal(uint64(i + 1)))
		g.Expect(stat().Free()).To(Equal(uint64(255 - i)))
	}
	g.Expect(stat().Skipped).To(Equal(Skips{Count: 256, Buckets: [5]uint64{256, 256, 256, 256, 256}}))
	for i := range 256 {
		g.Expect(s.Release(node(i), epoch())).To(Succeed())
	}
	g.Expect(stat().Used).To(BeZero())
	g.Expect(stat().Released).To(Equal(uint64(256)))
	g.Expect(s.Occupy(node(0), pfx("10.0.0.0/16"), epoch())).To(Succeed())
	g.Expect(stat().Allocated).To(Equal(uint64(512)))
	g.Expect(stat().Used).To(Equal(uint64(256)))
}

func TestSkippedBlocksAreCounted(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 24)
	for i := range 128 {
		g.Expect(s.Occupy(node(i), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i)}), 24), epoch())).To(Succeed())
	}
	g.Expect(allocate(t, s, node(128))).To(Equal(pfx("10.0.128.0/24")))
	skips := s.Stat(epoch()).Ranges[0].Skipped
	g.Expect(skips).To(Equal(Skips{Count: 1, Sum: 128, Buckets: [5]uint64{0, 0, 0, 0, 1}}))
}

func TestRangesAreCountedSeparately(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "2001:db8::/48", 64)
	g.Expect(s.AddRange(Range{Prefix: pfx("10.0.0.0/16"), Bits: 24, Pool: 1})).To(Succeed())
	got, err := s.Allocate(node(1), nil, epoch())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got).To(Equal([]netip.Prefix{pfx("2001:db8::/64"), pfx("10.0.0.0/24")}))
	stat := s.Stat(epoch())
	g.Expect([]uint64{stat.Ranges[0].Capacity, stat.Ranges[1].Capacity}).To(Equal([]uint64{65536, 256}))
	g.Expect([]uint64{stat.Ranges[0].Used, stat.Ranges[1].Used}).To(Equal([]uint64{1, 1}))
}

// TestReservedRangesAreNotAllocated runs upstream's table of service ranges.
func TestReservedRangesAreNotAllocated(t *testing.T) {
	for _, x := range []struct {
		service string
		left    int
	}{
		{"10.0.255.0/24", 256},
		{"10.1.0.0/24", 255},
		{"10.1.255.0/24", 255},
		{"10.2.0.0/24", 256},
		{"10.1.255.128/25", 255},
		{"10.0.0.0/8", 0},
		{"fd00::/8", 256},
	} {
		g := NewWithT(t)
		s := setOf(t, "10.1.0.0/16", 24)
		s.Reserve(pfx(x.service))
		all := fill(t, s, 0)
		g.Expect(all).To(HaveLen(x.left), x.service)
		for _, p := range all {
			g.Expect(p.Overlaps(pfx(x.service))).To(BeFalse(), "%s, %s", p, x.service)
		}
	}
}

func TestSizesOutsideTheLimits(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 24)
	g.Expect(s.AddRange(Range{Prefix: pfx("10.8.0.0/16"), Bits: 24})).To(Succeed())
	fits := func(r Range, bits int) bool { return r.Prefix == pfx("10.8.0.0/16") && bits >= 20 }
	for i, x := range []struct {
		bits int
		want string // "" for none
	}{{0, "10.0.0.0/24"}, {24, "10.0.1.0/24"}, {20, "10.8.0.0/20"}, {19, ""}, {15, ""}, {33, ""}} {
		got, err := s.Choose(node(i), Choice{Sizes: []int{x.bits}, Fits: fits}, epoch())
		if x.want == "" {
			g.Expect(err).To(MatchError(ErrSize), "/%d", x.bits)
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), "/%d", x.bits)
		g.Expect(got).To(Equal([]netip.Prefix{pfx(x.want)}))
	}
}

func TestCheckBlocks(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 24)
	g.Expect(s.AddRange(Range{Prefix: pfx("fd00::/48"), Bits: 64, Pool: 1})).To(Succeed())
	own := func(r Range, bits int) bool { return bits == r.Bits }
	for _, x := range []struct {
		blocks []string
		want   error
	}{
		{nil, nil},
		{[]string{"10.0.7.0/24"}, nil},
		{[]string{"10.0.7.0/24", "fd00:0:0:7::/64"}, nil},
		{[]string{"10.0.7.0/24", "fd00:0:0:7::/63"}, errNotOneBlock},
		{[]string{"10.0.7.0/24", "10.0.8.0/24"}, errNotOneBlock},
		{[]string{"10.0.7.0/24", "10.0.7.0/24"}, errNotOneBlock},
		{[]string{"10.0.7.1/24"}, errNotOneBlock},
		{[]string{"10.0.0.0/16"}, errNotOneBlock},
		{[]string{"10.0.0.0/15"}, ErrOutOfRange},
		{[]string{"10.1.0.0/24"}, ErrOutOfRange},
	} {
		var all []netip.Prefix
		for _, p := range x.blocks {
			all = append(all, netip.MustParsePrefix(p))
		}
		err := s.CheckBlocks(all, own)
		if x.want == nil {
			g.Expect(err).NotTo(HaveOccurred(), "%v", x.blocks)
			continue
		}
		g.Expect(err).To(MatchError(x.want), "%v", x.blocks)
	}
	g.Expect(s.Stat(epoch()).Owners).To(BeZero())
}
