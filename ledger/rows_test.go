// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// onBoth runs a test on a ledger with a journal, and on one with the null journal.
func onBoth(t *testing.T, test func(b *bench)) {
	for name, j := range map[string]ledger.Journal{"journal": journal.NewMemory(), "null": ledger.NullJournal{}} {
		t.Run(name, func(t *testing.T) {
			b := open(NewWithT(t), j)
			test(b)
			b.consistent()
		})
	}
}

// free returns the number of free addresses of each block.
func (b *bench) free() (free []uint64) {
	for _, s := range b.Stats() {
		free = append(free, s.Free)
	}
	return free
}

// want claims certain addresses for n.
func (b *bench) want(n int, all ...string) error {
	_, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(n), Wanted: addrList(all...)})
	return err
}

func TestNumberOfFreeAddressesOfABlock(t *testing.T) {
	onBoth(t, func(b *bench) {
		for _, c := range []struct {
			block      string
			edges, all uint64
		}{
			{"10.1.0.0/16", 65534, 65536}, {"10.1.5.0/24", 254, 256}, {"10.1.5.0/30", 2, 4}, {"10.1.5.0/31", 0, 2}, {"10.1.5.0/32", 1, 1},
			{"fd00::/112", 65534, 65536}, {"fd00::/120", 254, 256}, {"fd00::/128", 1, 1},
		} {
			b.pool(noCoolDown(), c.block)
			b.g.Expect(b.free()).To(Equal([]uint64{c.edges}), c.block)
			b.pool(ledger.Pool{Name: "default"}, c.block)
			b.g.Expect(b.free()).To(Equal([]uint64{c.all}), "%s without edges", c.block)
		}
	})
}

// TestClaimsFillTwoBlocks claims all addresses of two blocks, in the pool's order or
// with one of them preferred.
func TestClaimsFillTwoBlocks(t *testing.T) {
	for _, c := range []struct {
		name, first string
		within      []netip.Prefix
	}{{"none is preferred", "10.1.5.1", nil}, {"the second is", "10.1.6.1", prefixes("10.1.6.0/24", "10.1.5.0/24")}} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(b *bench) {
				b.pool(noCoolDown(), "10.1.5.0/24", "10.1.6.0/24")
				seen := map[netip.Addr]bool{}
				claim := func(n int) (netip.Addr, error) {
					a, _, err := b.ClaimAddr(context.Background(), &ledger.Request{
						Pool: "default", Key: key(n), Families: []ledger.Family{ledger.IPv4}, Within: c.within,
					})
					return a, err
				}
				for n := range 508 {
					a, err := claim(n)
					b.g.Expect(err).NotTo(HaveOccurred(), "step %d", n)
					b.g.Expect(seen).NotTo(HaveKey(a))
					seen[a] = true
					b.g.Expect(pfx(c.first+"/24").Masked().Contains(a)).To(Equal(n < 254), "step %d: %s", n, a)
				}
				b.g.Expect(seen).To(HaveKey(ip(c.first)))
				_, err := claim(508)
				b.g.Expect(err).To(MatchError(ledger.ErrExhausted))
				b.g.Expect(b.free()).To(Equal([]uint64{0, 0}))
				b.release(300)
				_, err = claim(508)
				b.g.Expect(err).NotTo(HaveOccurred())
				_, err = claim(509)
				b.g.Expect(err).To(MatchError(ledger.ErrExhausted))
			})
		})
	}
}

// TestReleasedAddressesAreFree: once, and nothing else is.
func TestReleasedAddressesAreFree(t *testing.T) {
	onBoth(t, func(b *bench) {
		b.pool(noCoolDown(), "10.1.5.0/24", "10.1.6.0/24", "fd00::/120")
		b.g.Expect(b.want(1, "10.1.6.9")).To(Succeed())
		b.g.Expect(b.free()).To(Equal([]uint64{254, 253, 254}), "the block is found by the address")
		b.g.Expect(b.want(1, "10.1.6.9")).To(Succeed(), "repeated")
		b.g.Expect(b.want(2, "10.1.6.9")).To(MatchError(ledger.ErrTaken))
		for _, foreign := range []string{"10.1.7.1", "1.1.1.1", "fd01::1"} {
			b.g.Expect(b.want(2, foreign)).To(MatchError(ledger.ErrOutside), foreign)
		}
		_, _, err := b.Claim(context.Background(), ledger.Request{Pool: "other", Key: key(2), Wanted: addrList("10.1.6.8")})
		b.g.Expect(err).To(MatchError(ledger.ErrNoPool))
		b.g.Expect(b.free()).To(Equal([]uint64{254, 253, 254}))
		for _, never := range []ledger.Selector{
			{Key: key(2)}, {Addr: ip("10.1.5.9"), Pool: "default"}, {Addr: ip("10.1.5.0"), Pool: "default"},
			{Addr: ip("1.1.1.1"), Pool: "default"}, {Addr: ip("fd01::1"), Pool: "default"}, {Addr: ip("10.1.6.9"), Pool: "other"},
		} {
			b.g.Expect(b.Free(context.Background(), never)).To(BeZero(), "%+v", never)
		}
		b.g.Expect(b.free()).To(Equal([]uint64{254, 253, 254}), "a free address is not released")
		b.g.Expect(b.release(1)).To(Equal("10.1.6.9"))
		b.g.Expect(b.free()).To(Equal([]uint64{254, 254, 254}))
		b.g.Expect(b.release(1)).To(BeEmpty())
		b.g.Expect(b.free()).To(Equal([]uint64{254, 254, 254}))
	})
}

// TestExclusionsOutsideOfBlocks: those that no block has are kept, too, for the
// block that may come, and make no difference until then.
func TestExclusionsOutsideOfBlocks(t *testing.T) {
	onBoth(t, func(b *bench) {
		ctx := context.Background()
		b.pool(noCoolDown(), "10.1.5.0/24")
		for range 2 {
			for _, a := range []string{"10.1.5.1", "10.1.5.128", "1.1.1.1"} {
				b.g.Expect(b.Exclude(ctx, exclusion(a))).To(Succeed())
			}
			b.g.Expect(b.free()).To(Equal([]uint64{252}))
		}
		b.g.Expect(b.claim(1)).To(Equal("10.1.5.2"))
		b.pool(noCoolDown(), "10.1.5.0/24", "1.1.1.0/24")
		b.g.Expect(b.free()).To(Equal([]uint64{253, 251}))
		for _, a := range []string{"10.1.5.1", "10.1.5.128", "1.1.1.1", "1.1.1.2"} {
			b.g.Expect(b.Readmit(ctx, "default", ip(a))).To(Succeed())
		}
		b.g.Expect(b.free()).To(Equal([]uint64{254, 253}))
	})
}

// TestClaimOfSeveralAddressesIsAllOrNothing asks for four addresses where three are free.
func TestClaimOfSeveralAddressesIsAllOrNothing(t *testing.T) {
	for name, four := range map[string]func(b *bench) error{
		"by name": func(b *bench) error { return b.want(9, "10.1.5.4", "10.1.5.5", "10.1.5.6", "10.1.5.1") },
		"by name, one outside": func(b *bench) error {
			return b.want(9, "10.1.5.4", "10.1.5.5", "10.1.5.6", "10.1.5.7")
		},
		"any, in one stage": func(b *bench) (err error) {
			st := b.Begin()
			defer st.Undo()
			for n := range 4 {
				if _, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(20 + n)}); err != nil {
					return err
				}
			}
			return st.Commit(context.Background())
		},
		"any, of both families": func(b *bench) error {
			_, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(9), Families: []ledger.Family{ledger.IPv4, ledger.IPv6}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(b *bench) {
				b.pool(noCoolDown(), "10.1.5.0/29")
				for n := range 3 {
					_, err := b.claim(n)
					b.g.Expect(err).NotTo(HaveOccurred())
				}
				b.g.Expect(b.free()).To(Equal([]uint64{3}))
				before := b.list()
				b.g.Expect(four(b)).NotTo(Succeed())
				b.g.Expect(b.free()).To(Equal([]uint64{3}))
				b.g.Expect(b.list()).To(Equal(before))
				b.g.Expect(b.want(9, "10.1.5.4", "10.1.5.5", "10.1.5.6")).To(Succeed(), "three there are")
				b.g.Expect(b.free()).To(Equal([]uint64{0}))
			})
		})
	}
}

// TestPolicyLimitsABlockToAPart claims from a part of a block, the lowest address first. What the
// node itself needs it takes out before.
func TestPolicyLimitsABlockToAPart(t *testing.T) {
	onBoth(t, func(b *bench) {
		pool := noCoolDown()
		pool.Order = ledger.Lowest
		b.pool(pool, "10.1.5.0/24")
		for n, want := range []string{"10.1.5.1", "10.1.5.2"} {
			own := ledger.Key{Network: "i", ContainerID: fmt.Sprint(n), IfName: "gw"}
			leases, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: own, Purpose: ledger.ForInfra})
			b.g.Expect(err).NotTo(HaveOccurred())
			b.g.Expect(addrs(leases)).To(Equal(want))
		}
		b.g.Expect(b.free()).To(Equal([]uint64{252}))

		pool.Exclude = slices.Concat(
			slices.Collect(addrspace.Cover(ip("10.1.5.0"), ip("10.1.5.9"))), slices.Collect(addrspace.Cover(ip("10.1.5.13"), ip("10.1.5.255"))))
		b.pool(pool, "10.1.5.0/24")
		b.g.Expect(b.free()).To(Equal([]uint64{3}))
		b.g.Expect(b.claim(0)).To(Equal("10.1.5.10"))
		b.g.Expect(b.claim(1)).To(Equal("10.1.5.11"))
		b.release(0)
		b.g.Expect(b.claim(0)).To(Equal("10.1.5.10"))
		b.g.Expect(b.claim(2)).To(Equal("10.1.5.12"))
		_, err := b.claim(3)
		b.g.Expect(err).To(MatchError(ledger.ErrExhausted), "though the block has more")
		b.g.Expect(b.want(3, "10.1.5.13")).To(MatchError(ledger.ErrOutside))
		b.release(1)
		b.g.Expect(b.claim(3)).To(Equal("10.1.5.11"))
		b.pool(noCoolDown(), "10.1.5.0/24")
		b.g.Expect(b.free()).To(Equal([]uint64{249}), "leases stay")
	})
}

// TestPoolWithoutBlocks: releases work all the same.
func TestPoolWithoutBlocks(t *testing.T) {
	onBoth(t, func(b *bench) {
		b.pool(noCoolDown())
		b.g.Expect(b.free()).To(BeEmpty())
		_, err := b.claim(1)
		b.g.Expect(err).To(MatchError(ledger.ErrNoBlock))
		b.g.Expect(b.want(1, "10.1.5.1")).To(MatchError(ledger.ErrOutside))
		b.g.Expect(b.release(1)).To(BeEmpty())
	})
}
