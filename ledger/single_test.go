// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// TestAnswersAreTheSameWithTheNullJournal runs the same calls with a journal in
// memory and with the null journal.
func TestAnswersAreTheSameWithTheNullJournal(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			g := NewWithT(t)
			written, null := open(g, journal.NewMemory()), open(g, ledger.NullJournal{})
			rnd := rand.New(rand.NewPCG(seed, 11))
			pool := ledger.Pool{Name: "default", ReserveEdges: true, CoolDown: time.Duration(seed%3) * time.Minute, Order: ledger.Order(seed % 2)}
			written.pool(pool, "10.1.5.0/28", "fd00::/125")
			null.pool(pool, "10.1.5.0/28", "fd00::/125")
			for step := range 300 {
				what, f := call(rnd, pool)
				g.Expect(f(null)).To(Equal(f(written)), "step %d: %s", step, what)
				g.Expect(null.Leases()).To(Equal(written.Leases()), "step %d: %s", step, what)
				g.Expect(null.Stats()).To(Equal(written.Stats()), "step %d: %s", step, what)
				g.Expect(null.Exclusions()).To(Equal(written.Exclusions()), "step %d: %s", step, what)
				g.Expect(null.Check(t.Context())).To(BeEmpty(), "step %d: %s", step, what)
			}
			g.Expect(written.Check(t.Context())).To(BeEmpty())
		})
	}
}

// call returns a random call, for any ledger, and what it is.
func call(rnd *rand.Rand, pool ledger.Pool) (what string, f func(*bench) string) {
	ctx, k, n := context.Background(), rnd.IntN(12), rnd.IntN(24)
	a := ip("10.1.5.0")
	if n%3 == 0 {
		a = ip("fd00::")
	}
	for range n % 16 {
		a = a.Next()
	}
	req := ledger.Request{Pool: "default", Key: key(k), Pod: pod(k), More: n%4 == 0, Rested: n%5 == 0}
	switch n % 7 {
	case 0:
		req.Expiry = ledger.Expiry{Token: "token", After: time.Duration(n) * time.Second}
	case 1:
		req.Purpose = ledger.ForInfra
	}
	one := req
	if n%2 == 0 {
		one.Wanted = []netip.Addr{a}
	} else {
		one.Families = []ledger.Family{ledger.Family(n % 3 / 2)}
	}
	sel := []ledger.Selector{
		{Key: key(k)}, {Addr: a, Pool: "default", Purpose: req.Purpose}, {Pod: pod(k)},
		{Addr: a, Pool: "default", Network: "net"}, {Key: key(k), Generation: uint64(n)},
	}[n%5]
	said := func(v any, err error) string { return fmt.Sprintf("%+v, %v", v, err) }
	switch op := rnd.IntN(20); {
	case op < 4:
		return fmt.Sprintf("ClaimOne %+v", one), func(b *bench) string { return said(b.ClaimOne(ctx, one)) }
	case op < 8:
		return fmt.Sprintf("ClaimAddr %+v", one), func(b *bench) string {
			got, fresh, err := b.ClaimAddr(ctx, &one)
			return fmt.Sprint(got, fresh, err)
		}
	case op < 9:
		return fmt.Sprintf("Claim %+v", req), func(b *bench) string {
			leases, fresh, err := b.Claim(ctx, req)
			return fmt.Sprint(leases, fresh, err)
		}
	case op < 12:
		return fmt.Sprintf("Free %+v", sel), func(b *bench) string { return said(b.Free(ctx, sel)) }
	case op < 14:
		return fmt.Sprint("FreeKey ", key(k)), func(b *bench) string {
			freed, from, err := b.FreeKey(ctx, key(k))
			return fmt.Sprint(freed, from, err)
		}
	case op < 15:
		return fmt.Sprintf("a stage: %+v, release %+v, undone: %v", one, sel, n%2 == 0), func(b *bench) string {
			st := b.Begin()
			got, fresh, err := st.Claim(one)
			freed, rerr := b.Free(ctx, sel) // from outside, of what may be staged
			if n%2 == 0 {
				st.Undo()
			}
			return fmt.Sprint(got, fresh, err, freed, rerr, st.Commit(ctx))
		}
	default:
		return change(rnd, n, pool, a, sel)
	}
}

// change returns a random call that changes the free addresses.
func change(rnd *rand.Rand, n int, pool ledger.Pool, a netip.Addr, sel ledger.Selector) (what string, f func(*bench) string) {
	ctx := context.Background()
	switch op := rnd.IntN(5); op {
	case 0:
		blocks := [][]string{{"10.1.5.0/28", "fd00::/125"}, {"10.1.5.0/28", "10.1.6.0/30"}, {"10.1.5.0/29", "fd00::/125"}}[n%3]
		return fmt.Sprint("blocks ", blocks), func(b *bench) string { return fmt.Sprint(b.tryPool(pool, blocks...)) }
	case 1:
		return fmt.Sprint("exclude ", a), func(b *bench) string {
			return fmt.Sprint(b.Exclude(ctx, ledger.Exclusion{Pool: "default", Addr: a, Owner: "test"}))
		}
	case 2:
		return fmt.Sprint("readmit ", a), func(b *bench) string { return fmt.Sprint(b.Readmit(ctx, "default", a)) }
	case 3:
		return fmt.Sprintf("stop the expiry of %+v", sel), func(b *bench) string { return fmt.Sprint(b.StopExpiry(ctx, sel, "token")) }
	default:
		return "time passes", func(b *bench) string {
			b.uptime, b.wall = b.uptime+time.Duration(n)*time.Second, b.wall.Add(time.Duration(n)*time.Second)
			return ""
		}
	}
}

func TestClaimOneWantsOneFamilyOrAddress(t *testing.T) {
	for name, j := range map[string]ledger.Journal{"with a journal": journal.NewMemory(), "null": ledger.NullJournal{}} {
		t.Run(name, func(t *testing.T) {
			g, ctx := NewWithT(t), t.Context()
			b := open(g, j)
			b.pool(defaultPool(), "10.1.5.0/29", "fd00::/124")
			both := ledger.Request{Pool: "default", Key: key(1)}
			_, _, err := b.ClaimAddr(ctx, &both)
			g.Expect(err).To(MatchError(ContainSubstring("0 families and 0 addresses are named")))
			leases, _, err := b.Claim(ctx, both)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(leases).To(HaveLen(2))
			both.Families = []ledger.Family{ledger.IPv4}
			_, _, err = b.ClaimAddr(ctx, &both)
			g.Expect(err).To(MatchError(ledger.ErrKeyHeld), "it has two")

			over, end := context.WithCancelCause(ctx)
			end(context.DeadlineExceeded)
			one := ledger.Request{Pool: "default", Key: key(2), Families: both.Families}
			_, _, err = b.ClaimAddr(over, &one)
			g.Expect(err).To(MatchError(context.DeadlineExceeded))
			_, _, err = b.FreeKey(over, key(1))
			g.Expect(err).To(MatchError(context.DeadlineExceeded))
			g.Expect(b.ByKey(key(1))).To(HaveLen(2), "nothing has changed")
			g.Expect(b.ByKey(key(2))).To(BeEmpty())
		})
	}
}

func TestRestedClaimWaitsForTheCoolDown(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/30", "10.1.6.0/30")
	block := pfx("10.1.5.0/30")
	req := ledger.Request{Pool: "default", Key: key(1), Families: []ledger.Family{ledger.IPv4}, Within: []netip.Prefix{block}, Rested: true}
	for n := range 2 {
		req.Key = key(n)
		_, _, err := b.ClaimAddr(ctx, &req)
		g.Expect(err).NotTo(HaveOccurred())
	}
	for n := range 2 {
		b.uptime, b.wall = b.uptime+time.Second, b.wall.Add(time.Second)
		b.release(n)
	}
	_, _, err := b.ClaimAddr(ctx, &req)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	wanted := req
	wanted.Families, wanted.Within, wanted.Wanted = nil, nil, []netip.Addr{ip("10.1.5.1")}
	_, _, err = b.ClaimAddr(ctx, &wanted)
	g.Expect(err).To(And(MatchError(ledger.ErrTaken), MatchError(ContainSubstring("cooling"))))
	b.uptime += time.Minute - time.Second
	g.Expect(b.ClaimOne(ctx, wanted)).To(HaveField("Addr", ip("10.1.5.1")))
	g.Expect(b.Check(ctx)).To(BeEmpty())
}

// TestConcurrentCallsWithTheNullJournal is for the race detector.
func TestConcurrentCallsWithTheNullJournal(t *testing.T) {
	g := NewWithT(t)
	b := open(g, ledger.NullJournal{})
	b.pool(noCoolDown(), "10.1.5.0/26")
	var all sync.WaitGroup
	for n := range 4 {
		all.Go(func() {
			for i := range 500 {
				k := key(n*1000 + i%7)
				_, _, _ = b.ClaimAddr(context.Background(), &ledger.Request{Pool: "default", Key: k, Pod: pod(n), Families: []ledger.Family{ledger.IPv4}})
				if i%3 == 0 {
					_, _, _ = b.FreeKey(context.Background(), k)
				}
				if i%50 == 0 {
					st := b.Begin()
					_, _, _ = st.Claim(ledger.Request{Pool: "default", Key: key(n*1000 + 8)})
					st.Undo()
				}
			}
		})
	}
	all.Wait()
	g.Expect(b.Check(t.Context())).To(BeEmpty())
}

func TestOpenWithoutAJournalIsRefused(t *testing.T) {
	g := NewWithT(t)
	_, err := ledger.Open(t.Context(), nil, ledger.Options{})
	g.Expect(err).To(MatchError(ContainSubstring("NullJournal")))
}
