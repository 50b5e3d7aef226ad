// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// inPart claims for a container within the parts that are named.
func (b *bench) inPart(n int, order ledger.Order, except []netip.Prefix, parts ...string) (string, error) {
	req := ledger.Request{Pool: "default", Key: key(n), Purpose: ledger.ForDocker, Order: order, Except: except, Families: []ledger.Family{ledger.IPv4}}
	for _, s := range parts {
		req.Within = append(req.Within, pfx(s))
	}
	x, err := b.ClaimOne(context.Background(), req)
	if err != nil {
		return "", err
	}
	return x.Addr.String(), nil
}

func TestClaimWithinAPartOfABlock(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", ReserveEdges: true}, "10.1.5.0/24", "10.1.7.0/24")
	edges := []netip.Prefix{pfx("10.1.5.16/32"), pfx("10.1.5.31/32")}
	const part = "10.1.5.16/28"
	g.Expect(b.inPart(1, ledger.Lowest, edges, part)).To(Equal("10.1.5.17"))
	g.Expect(b.claim(2)).To(Equal("10.1.5.1"), "a pod does not continue where a container does")
	g.Expect(b.inPart(3, ledger.Lowest, edges, part)).To(Equal("10.1.5.18"))
	g.Expect(b.inPart(4, ledger.Next, nil, "10.1.5.128/25")).To(Equal("10.1.5.128"))
	g.Expect(b.inPart(5, ledger.Next, nil, "10.1.5.128/25")).To(Equal("10.1.5.129"))
	b.release(4)
	g.Expect(b.inPart(6, ledger.Next, nil, "10.1.5.128/25")).To(Equal("10.1.5.130"), "the pool's order is next")
	g.Expect(b.inPart(7, ledger.Lowest, nil, "10.1.5.128/25")).To(Equal("10.1.5.128"), "an order of its own")
	g.Expect(b.inPart(8, ledger.Serial, nil, part)).To(Equal("10.1.5.16"), "the last address is of another part")
	b.release(8)
	g.Expect(b.claim(9)).To(Equal("10.1.5.2"))
	b.release(1)
	g.Expect(b.inPart(10, ledger.Serial, edges, part)).To(Equal("10.1.5.17"), "continues in the part")
	b.release(10)
	g.Expect(b.inPart(10, ledger.Serial, edges, part)).To(Equal("10.1.5.19"), "continues in the part")
	g.Expect(b.inPart(11, ledger.Lowest, nil, "10.1.7.0/31", "10.1.5.0/30")).To(Equal("10.1.7.1"), "an edge of the block is reserved")
	g.Expect(b.inPart(12, ledger.Lowest, nil, "10.1.7.0/31", "10.1.5.0/30")).To(Equal("10.1.5.3"), "the second part has room")
	for _, outside := range []string{"10.2.0.0/28", "10.1.4.0/23", "fd00::/112"} {
		_, err := b.inPart(13, ledger.Lowest, nil, outside)
		g.Expect(err).To(MatchError(ledger.ErrExhausted), outside)
	}
	g.Expect(b.findings()).To(BeEmpty())
}

func TestAPoolWithoutBlocksStartsAtItsLowestAddress(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/24")
	for n := range 2 {
		g.Expect(b.claim(n)).To(Equal(fmt.Sprint("10.1.5.", n)))
		b.release(n)
	}
	b.pool(ledger.Pool{Name: "default"})
	b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/24")
	g.Expect(b.claim(3)).To(Equal("10.1.5.0"))
}

func TestCooledAddressesOfAPart(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Hour}, "10.1.5.0/24")
	const part = "10.1.5.16/30"
	g.Expect(b.claim(100)).To(Equal("10.1.5.0"))
	for n := range 4 {
		g.Expect(b.inPart(n, ledger.Lowest, nil, part)).To(Equal(fmt.Sprint("10.1.5.", 16+n)))
	}
	for _, n := range []int{100, 2, 1} {
		b.uptime += time.Second
		b.release(n)
	}
	rested := ledger.Request{
		Pool: "default", Key: key(200), Families: []ledger.Family{ledger.IPv4}, Within: []netip.Prefix{pfx(part)}, Rested: true,
	}
	_, err := b.ClaimOne(context.Background(), rested)
	var full *ledger.Exhausted
	g.Expect(errors.As(err, &full)).To(BeTrue())
	g.Expect(*full).To(Equal(ledger.Exhausted{Pool: "default", Size: 4, Held: 2, Cooling: 2}), "the cooling address outside does not count")
	g.Expect(b.inPart(5, ledger.Lowest, []netip.Prefix{pfx("10.1.5.18/32")}, part)).To(Equal("10.1.5.17"), "not the excepted one")
	g.Expect(b.inPart(6, ledger.Lowest, nil, part)).To(Equal("10.1.5.18"))
	_, err = b.inPart(7, ledger.Lowest, nil, part)
	g.Expect(errors.As(err, &full)).To(BeTrue())
	g.Expect(*full).To(Equal(ledger.Exhausted{Pool: "default", Size: 4, Held: 4}))
	g.Expect(b.findings()).To(BeEmpty())
}

func TestExclusionsInAPart(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", Exclude: []netip.Prefix{pfx("10.1.5.16/31")}}, "10.1.5.0/24")
	g.Expect(b.Exclude(context.Background(), ledger.Exclusion{Pool: "default", Addr: ip("10.1.5.18"), Owner: "test"})).To(Succeed())
	g.Expect(b.inPart(1, ledger.Lowest, nil, "10.1.5.16/30")).To(Equal("10.1.5.19"))
	_, err := b.inPart(2, ledger.Lowest, nil, "10.1.5.16/30")
	var full *ledger.Exhausted
	g.Expect(errors.As(err, &full)).To(BeTrue())
	g.Expect(*full).To(Equal(ledger.Exhausted{Pool: "default", Size: 4, Held: 1, Reserved: 3}))
}

// TestPartsAgreeWithAModel compares claims within random parts, by random orders, with a
// search of all addresses one by one.
func TestPartsAgreeWithAModel(t *testing.T) {
	for seed := range uint64(20) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 7))
		b := open(g, journal.NewMemory())
		b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/26", "10.1.5.64/27")
		taken, holder := map[netip.Addr]int{}, map[int]netip.Addr{}
		cursor := netip.Addr{}
		for n := range 150 {
			part := netip.PrefixFrom(ip(fmt.Sprint("10.1.5.", rnd.IntN(96))), 26+rnd.IntN(6)).Masked()
			except := netip.PrefixFrom(ip(fmt.Sprint("10.1.5.", rnd.IntN(96))), 30+rnd.IntN(3)).Masked()
			order := []ledger.Order{ledger.Lowest, ledger.Serial}[rnd.IntN(2)]
			want := netip.Addr{}
			inBlock := part.Addr().Less(ip("10.1.5.64")) || part.Bits() >= 27
			for a := part.Addr(); inBlock && part.Contains(a); a = a.Next() {
				if _, ok := taken[a]; ok || except.Contains(a) {
					continue
				}
				above := order == ledger.Serial && part.Contains(cursor) && cursor.Less(a)
				if !want.IsValid() || above && !cursor.Less(want) {
					want = a
				}
			}
			got, err := b.inPart(n, order, []netip.Prefix{except}, part.String())
			if !want.IsValid() {
				g.Expect(err).To(MatchError(ledger.ErrExhausted))
			} else {
				g.Expect(got).To(Equal(want.String()), "seed %d, step %d: %s but %s by %s after %s", seed, n, part, except, order, cursor)
				taken[want], holder[n], cursor = n, want, want
			}
			if old := rnd.IntN(n + 1); holder[old].IsValid() {
				b.release(old)
				delete(taken, holder[old])
				delete(holder, old)
			}
		}
		g.Expect(b.findings()).To(BeEmpty())
	}
}

func (b *bench) findings() []string {
	findings, err := b.Check(context.Background())
	b.g.Expect(err).NotTo(HaveOccurred())
	return findings
}

// A full block tells what its addresses are used for.
func TestAFullBlock(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", Exclude: []netip.Prefix{pfx("10.1.5.0/32")}}, "10.1.5.0/30")
	st := b.Begin()
	_, err := st.Quarantine("default", ip("10.1.5.2"), ledger.Pod{}, "in use")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(st.Commit(context.Background())).To(Succeed())
	b.claim(1)
	b.claim(2)
	_, err = b.ClaimOne(context.Background(), ledger.Request{Pool: "default", Key: key(3), Families: []ledger.Family{ledger.IPv4}})
	var full *ledger.Exhausted
	g.Expect(errors.As(err, &full)).To(BeTrue(), "%v", err)
	g.Expect(*full).To(Equal(ledger.Exhausted{Pool: "default", Size: 4, Held: 2, Quarantined: 1, Reserved: 1}))
}
