// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// dual returns a Set of two pools. The second has the given number of blocks left.
func dual(t *testing.T, left int) *Set {
	t.Helper()
	s := setOf(t, "10.0.0.0/24", 28)
	NewWithT(t).Expect(s.AddRange(Range{Prefix: pfx("fd00::/60"), Bits: 64, Pool: 1})).To(Succeed())
	for i := range 16 - left {
		block, _ := addrspace.Sub(pfx("fd00::/60"), 64, uint64(15-i))
		NewWithT(t).Expect(s.Occupy(node(100+i), block, epoch())).To(Succeed())
	}
	return s
}

// If one family is exhausted, upstream loses a block of the other with every attempt.
func TestFailedAllocationFreesEverything(t *testing.T) {
	g := NewWithT(t)
	s := dual(t, 1)
	g.Expect(s.Allocate(node(1), nil, epoch())).To(Equal([]netip.Prefix{pfx("10.0.0.0/28"), pfx("fd00::/64")}))
	for range 100 {
		_, err := s.Allocate(node(2), nil, epoch())
		var e *Exhausted
		g.Expect(errors.As(err, &e)).To(BeTrue(), "%v", err)
		g.Expect(e.Pool).To(Equal(1))
	}
	g.Expect(s.Stat(epoch()).Ranges[0].Used).To(Equal(uint64(1)))
	g.Expect(s.Stat(epoch()).Ranges[0].Allocated).To(Equal(uint64(1)))
	g.Expect(s.Stat(epoch()).Owners).To(Equal(16))
	g.Expect(s.Release(node(1), epoch())).To(Succeed())
	g.Expect(s.Allocate(node(2), nil, epoch())).To(Equal([]netip.Prefix{pfx("10.0.0.16/28"), pfx("fd00::/64")}), "the order goes on where it was")
}

func TestAllocationIsRepeatable(t *testing.T) {
	g := NewWithT(t)
	s := dual(t, 16)
	first, err := s.Allocate(node(1), nil, epoch())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Allocate(node(1), nil, epoch())).To(Equal(first))
	g.Expect(s.Stat(epoch()).Pending).To(Equal(2))
	s.Confirm(node(1))
	g.Expect(s.Stat(epoch()).Pending).To(BeZero())
	g.Expect(s.Return(node(1), first[0])).To(Succeed())
	again, err := s.Allocate(node(1), nil, epoch())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again).To(ConsistOf(first[1], pfx("10.0.0.16/28")), "only the missing block is new")
	_, pending := s.Blocks(node(1))
	g.Expect(pending).To(BeTrue())
	g.Expect(s.Occupy(node(1), pfx("10.0.0.16/28"), epoch())).To(Succeed())
	g.Expect(s.Stat(epoch()).Pending).To(BeZero(), "the block of a Node object is not pending")
}

// Upstream frees the block of a live node when one half of it is released.
func TestBlocksOfOtherSizesDoNotOverlap(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 23)
	g.Expect(s.Occupy(node(1), pfx("10.0.0.0/24"), epoch())).To(Succeed())
	g.Expect(s.Occupy(node(2), pfx("10.0.1.0/24"), epoch())).To(Succeed())
	g.Expect(s.Release(node(2), epoch())).To(Succeed())
	for _, p := range fill(t, s, 10) {
		g.Expect(p.Overlaps(pfx("10.0.0.0/24"))).To(BeFalse(), p.String())
	}
	g.Expect(s.Resize(pfx("10.0.0.0/16"), 24)).To(Succeed())
	g.Expect(fill(t, s, 1000)).To(Equal([]netip.Prefix{pfx("10.0.1.0/24")}), "smaller blocks find what is left")
}

func TestNodesChooseTheirSize(t *testing.T) {
	g := NewWithT(t)
	s := dual(t, 16)
	g.Expect(s.Allocate(node(1), []int{26}, epoch())).To(Equal([]netip.Prefix{pfx("10.0.0.0/26"), pfx("fd00::/64")}))
	g.Expect(s.Allocate(node(2), []int{32, 0}, epoch())).To(Equal([]netip.Prefix{pfx("10.0.0.64/32"), pfx("fd00:0:0:1::/64")}))
	g.Expect(s.Allocate(node(3), []int{0, 128}, epoch())).To(Equal([]netip.Prefix{pfx("10.0.0.80/28"), pfx("fd00:0:0:2::/128")}))
	g.Expect(s.Stat(epoch()).Ranges[0].Used).To(Equal(uint64(6)))
	for _, sizes := range [][]int{{23, 0}, {33, 0}, {0, 59}, {0, 129}, {-1, 0}} {
		_, err := s.Allocate(node(9), sizes, epoch())
		g.Expect(err).To(MatchError(ErrSize))
	}
	g.Expect(s.Stat(epoch()).Owners).To(Equal(3))
}

func TestSmallBlocksOfOneBlockCountOnce(t *testing.T) {
	g, s := NewWithT(t), setOf(t, "10.0.0.0/16", 24)
	for i, want := range []uint64{1, 1, 1, 1, 2} {
		_, err := s.Allocate(node(i), []int{26}, epoch())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Stat(epoch()).Ranges[0].Used).To(Equal(want), "after %d blocks", i+1)
	}
}

// Upstream keeps no owners: the first release frees the block of both.
func TestBlockOfTwoOwnersIsFreeWhenBothReleaseIt(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/23", 24)
	g.Expect(s.Occupy(node(1), pfx("10.0.0.0/24"), epoch())).To(Succeed())
	err := s.Occupy(node(2), pfx("10.0.0.0/24"), epoch())
	var conflict *Conflict
	g.Expect(errors.As(err, &conflict)).To(BeTrue())
	g.Expect(*conflict).To(Equal(Conflict{node(2), pfx("10.0.0.0/24"), node(1), pfx("10.0.0.0/24")}))
	g.Expect(err).To(MatchError(`CIDR is taken: 10.0.0.0/24 of node "node-2" overlaps 10.0.0.0/24 of node "node-1"`))
	g.Expect(s.Conflicts(node(1))).To(Equal([]*Conflict{{node(1), pfx("10.0.0.0/24"), node(2), pfx("10.0.0.0/24")}}))

	g.Expect(s.Release(node(1), epoch())).To(Succeed())
	g.Expect(s.Occupy(node(2), pfx("10.0.0.0/24"), epoch())).To(Succeed(), "the conflict is over")
	g.Expect(s.Conflicts(node(2))).To(BeEmpty())
	g.Expect(fill(t, s, 10)).To(Equal([]netip.Prefix{pfx("10.0.1.0/24")}))
	g.Expect(s.Release(node(2), epoch())).To(Succeed())
	g.Expect(fill(t, s, 20)).To(Equal([]netip.Prefix{pfx("10.0.0.0/24")}))
}

func TestReservedBlocksAreInConflict(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/16", 24)
	s.Reserve(pfx("10.0.8.0/21"))
	err := s.Occupy(node(1), pfx("10.0.9.0/24"), epoch())
	g.Expect(err).To(MatchError(`CIDR is taken: 10.0.9.0/24 of node "node-1" is in the reserved range 10.0.8.0/21`))
	g.Expect(err).To(MatchError(errConflict))
	g.Expect(s.Release(node(1), epoch())).To(Succeed())
	g.Expect(fill(t, s, 10)).To(HaveLen(256 - 8))
}

func TestBlocksCoolDown(t *testing.T) {
	g := NewWithT(t)
	at := func(seconds int) time.Time { return epoch().Add(time.Duration(seconds) * time.Second) }
	s := New(Policy{CoolDown: time.Minute})
	g.Expect(s.AddRange(Range{Prefix: pfx("10.0.0.0/23"), Bits: 24})).To(Succeed())
	fill(t, s, 1)
	g.Expect(s.Release(node(1), at(0))).To(Succeed())
	g.Expect(s.Release(node(2), at(10))).To(Succeed())
	_, err := s.Allocate(node(3), nil, at(59))
	var e *Exhausted
	g.Expect(errors.As(err, &e)).To(BeTrue())
	g.Expect(*e).To(Equal(Exhausted{Node: "node-3", bits: 24, capacity: 2, used: 2, cooling: 2, Next: at(60)}))
	g.Expect(err).To(MatchError(ContainSubstring("2 are cooling, the next until 2026-01-01T00:01:00Z")))

	_, err = s.Allocate(node(3), nil, at(-3600))
	g.Expect(err).To(MatchError(ErrExhausted), "a clock that was set back frees nothing")
	g.Expect(s.Allocate(node(3), nil, at(60))).To(Equal([]netip.Prefix{pfx("10.0.0.0/24")}))
	_, err = s.Allocate(node(4), nil, at(60))
	g.Expect(err).To(MatchError(ErrExhausted))
	g.Expect(s.Occupy(node(5), pfx("10.0.1.0/24"), at(61))).To(Succeed(), "the Node object is authoritative")
	_, err = s.Allocate(node(4), nil, at(3600))
	g.Expect(err).To(MatchError(ErrExhausted), "and its block is not allocated when it would have cooled")
	g.Expect(s.Stat(at(3600)).Ranges[0].Cooling).To(BeZero())

	g.Expect(s.Return(node(3), pfx("10.0.0.0/24"))).To(Succeed())
	g.Expect(s.Allocate(node(4), nil, at(3600))).To(Equal([]netip.Prefix{pfx("10.0.0.0/24")}), "a block that was never used need not cool")
}

// A block wider than the range had an owner meanwhile: the same block cools twice, and
// both cool-downs have to pass.
func TestBlockThatCoolsTwiceIsNotPreferred(t *testing.T) {
	g := NewWithT(t)
	at := func(seconds int) time.Time { return epoch().Add(time.Duration(seconds) * time.Second) }
	s := New(Policy{CoolDown: time.Minute})
	g.Expect(s.AddRange(Range{Prefix: pfx("10.0.0.0/24"), Bits: 26})).To(Succeed())
	g.Expect(s.Occupy(node(1), pfx("10.0.0.0/26"), at(0))).To(Succeed())
	g.Expect(s.Release(node(1), at(0))).To(Succeed())
	g.Expect(s.Occupy(node(2), pfx("10.0.0.0/8"), at(1))).To(MatchError(ErrOutOfRange))
	g.Expect(s.Occupy(node(3), pfx("10.0.0.64/26"), at(1))).To(HaveOccurred())
	g.Expect(s.Release(node(2), at(30))).To(Succeed())

	prefer := Choice{Prefer: []netip.Prefix{pfx("10.0.0.0/26")}}
	_, err := s.Choose(node(4), prefer, at(31))
	g.Expect(err).To(MatchError(ErrExhausted))
	g.Expect(s.Choose(node(4), prefer, at(61))).To(Equal([]netip.Prefix{pfx("10.0.0.0/26")}), "the first cool-down is over")
	g.Expect(s.Return(node(4), pfx("10.0.0.0/26"))).To(Succeed())
}

func TestAddRange(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/24", 24)
	s.Reserve(pfx("10.1.3.0/24"))
	g.Expect(s.Occupy(node(1), pfx("10.1.0.0/24"), epoch())).To(MatchError(ErrOutOfRange))
	g.Expect(s.Occupy(node(2), pfx("10.1.0.0/23"), epoch())).To(MatchError(errConflict), "also outside of all ranges")
	g.Expect(s.Stat(epoch()).Foreign).To(Equal(2))
	for _, bad := range []Range{
		{}, {Prefix: pfx("10.1.0.0/22"), Bits: 21}, {Prefix: pfx("10.1.0.0/22"), Bits: 33},
		{Prefix: pfx("10.0.0.128/25"), Bits: 28}, {Prefix: pfx("10.0.0.0/8"), Bits: 24},
		{Prefix: pfx("fd00::/48"), Bits: 64}, {Prefix: pfx("fd00::/48"), Bits: 64, Pool: 2}, {Prefix: pfx("fd00::/48"), Bits: 64, Pool: -1},
	} {
		g.Expect(s.AddRange(bad)).To(Or(MatchError(ErrRange), MatchError(ErrSize)), "%v", bad)
	}
	g.Expect(s.AddRange(Range{Prefix: pfx("10.1.0.0/22"), Bits: 24})).To(Succeed())
	g.Expect(s.Occupy(node(1), pfx("10.1.0.0/24"), epoch())).To(MatchError(errConflict))
	g.Expect(fill(t, s, 10)).To(Equal([]netip.Prefix{pfx("10.0.0.0/24"), pfx("10.1.2.0/24")}))
	g.Expect(s.Release(node(2), epoch())).To(Succeed())
	g.Expect(s.Occupy(node(1), pfx("10.1.0.0/24"), epoch())).To(Succeed(), "it is inside a range now")
	g.Expect(fill(t, s, 20)).To(Equal([]netip.Prefix{pfx("10.1.1.0/24")}))
	g.Expect(s.Ranges()).To(HaveLen(2))
}

func TestDrainAndRemoveRange(t *testing.T) {
	g := NewWithT(t)
	at := func(seconds int) time.Time { return epoch().Add(time.Duration(seconds) * time.Second) }
	s := New(Policy{CoolDown: time.Minute})
	old, young := pfx("10.0.0.0/22"), pfx("10.4.0.0/22")
	g.Expect(s.AddRange(Range{Prefix: old, Bits: 24})).To(Succeed())
	g.Expect(s.AddRange(Range{Prefix: young, Bits: 25})).To(Succeed())
	s.Reserve(pfx("10.0.3.0/24"))
	g.Expect(s.Allocate(node(1), nil, at(0))).To(Equal([]netip.Prefix{pfx("10.0.0.0/24")}))
	g.Expect(s.DrainRange(old)).To(Succeed())
	g.Expect(s.Allocate(node(2), nil, at(0))).To(Equal([]netip.Prefix{pfx("10.4.0.0/25")}), "blocks of its own size")
	g.Expect(s.Allocate(node(1), nil, at(0))).To(Equal([]netip.Prefix{pfx("10.0.0.0/24")}), "its owner keeps it")
	g.Expect(s.RemoveRange(old)).To(MatchError(And(ContainSubstring(`node "node-1" has 10.0.0.0/24`), ContainSubstring("in use"))))
	g.Expect(s.Release(node(1), at(0))).To(Succeed())
	g.Expect(s.RemoveRange(old)).To(MatchError(ErrInUse), "it is cooling")
	g.Expect(s.Allocate(node(3), nil, at(60))).To(Equal([]netip.Prefix{pfx("10.4.0.128/25")}))
	g.Expect(s.RemoveRange(old)).To(Succeed())
	g.Expect(s.AddRange(Range{Prefix: old, Bits: 24})).To(Succeed(), "and added again")
	g.Expect(s.Stat(at(60)).Ranges[1].Used).To(Equal(uint64(1)), "its reserved part still is")

	g.Expect(s.ResumeRange(old)).To(Succeed())
	none := pfx("10.9.0.0/16")
	for _, err := range []error{s.DrainRange(none), s.ResumeRange(none), s.RemoveRange(none), s.Resize(none, 24)} {
		g.Expect(err).To(MatchError(ErrNoRange))
	}
	g.Expect(s.Resize(old, 21)).To(MatchError(ErrSize))
}

func TestAllocationWithoutRange(t *testing.T) {
	g := NewWithT(t)
	s := New(Policy{})
	_, err := s.Allocate(node(1), nil, epoch())
	g.Expect(err).To(MatchError(ErrNoRange))
	g.Expect(s.AddRange(Range{Prefix: pfx("10.0.0.0/24"), Bits: 25})).To(Succeed())
	g.Expect(s.DrainRange(pfx("10.0.0.0/24"))).To(Succeed())
	_, err = s.Allocate(node(1), nil, epoch())
	g.Expect(err).To(MatchError(ErrExhausted))
	g.Expect(s.Stat(epoch()).Owners).To(BeZero())
}

func TestReleaseByAnotherOwner(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/24", 25)
	got := allocate(t, s, node(1))
	other := NewOwner("node-1", "3f2a7c1e-0b9d-4d5e-8f6a-ffffffffffff") // created again under the name
	for _, err := range []error{
		s.Release(other, epoch()), s.Return(other, got), s.ReleaseBlock(other, got, epoch()),
		s.Return(node(1), pfx("10.0.0.128/25")), s.ReleaseBlock(node(1), pfx("10.0.0.0/26"), epoch()),
	} {
		g.Expect(err).To(MatchError(errNotHeld))
	}
	blocks, pending := s.Blocks(node(1))
	g.Expect(blocks).To(Equal([]netip.Prefix{got}))
	g.Expect(pending).To(BeTrue())
	blocks, _ = s.Blocks(other)
	g.Expect(blocks).To(BeEmpty())
}

func TestContinue(t *testing.T) {
	g := NewWithT(t)
	s := setOf(t, "10.0.0.0/22", 24)
	s.Continue(pfx("10.0.1.0/24"))
	g.Expect(allocate(t, s, node(1))).To(Equal(pfx("10.0.2.0/24")))
	s.Continue(pfx("10.0.3.0/24"))
	g.Expect(allocate(t, s, node(2))).To(Equal(pfx("10.0.0.0/24")))
	s.Continue(pfx("10.0.0.0/25")) // smaller than any block so far: unknown
	s.Continue(pfx("10.9.0.0/24"))
	g.Expect(allocate(t, s, node(3))).To(Equal(pfx("10.0.1.0/24")))
}
