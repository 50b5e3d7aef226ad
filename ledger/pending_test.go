// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

func (b *bench) claimPending(n int, after time.Duration) (string, error) {
	leases, _, err := b.Claim(context.Background(), ledger.Request{
		Pool: "default", Key: key(n), Pod: pod(n), Expiry: ledger.Expiry{Token: fmt.Sprint("t", n), After: after},
	})
	return addrs(leases), err
}

func (b *bench) start(n int, after time.Duration) error {
	return b.StartExpiry(context.Background(), ledger.Selector{Key: key(n)}, ledger.Expiry{Token: fmt.Sprint("t", n), After: after})
}

func (b *bench) confirm(n int, token string) error {
	return b.StopExpiry(context.Background(), ledger.Selector{Key: key(n)}, token)
}

func (b *bench) consistent() {
	b.g.Expect(b.Check(context.Background())).To(BeEmpty())
}

func noCoolDown() ledger.Pool { return ledger.Pool{Name: "default", ReserveEdges: true} }

func TestPendingLeaseIsReleasedUnlessConfirmed(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/29", "fd00::/125")
	g.Expect(b.claimPending(1, time.Minute)).To(Equal("10.1.5.1 fd00::1"))
	g.Expect(b.claimPending(2, time.Minute)).To(Equal("10.1.5.2 fd00::2"))
	g.Expect(b.claim(3)).To(Equal("10.1.5.3 fd00::3"))
	g.Expect(b.start(3, 2*time.Minute)).To(Succeed())
	g.Expect(b.start(3, time.Minute)).To(MatchError(ledger.ErrPending))
	g.Expect(b.start(4, time.Minute)).To(MatchError(ledger.ErrNoLease))
	g.Expect(b.confirm(2, "t1")).To(MatchError(ledger.ErrToken))
	b.wall = b.wall.Add(time.Second)
	g.Expect(b.confirm(2, "t2")).To(Succeed())
	confirmed, _ := b.Lookup("default", ip("10.1.5.2"))
	g.Expect(confirmed.Since).To(BeTemporally("==", b.wall), "since when it is held")
	g.Expect(b.confirm(2, "t2")).To(MatchError(ledger.ErrNotPending))
	l, _ := b.Lookup("default", ip("10.1.5.1"))
	g.Expect(l.Expiry).To(Equal(ledger.Expiry{Token: "t1", After: time.Minute}))
	g.Expect(l.Expires).To(Equal(b.uptime + time.Minute))
	b.consistent()
	b.uptime += time.Minute - 1
	g.Expect(b.ByKey(key(1))).To(HaveLen(2))
	b.uptime++
	g.Expect(b.ByKey(key(1))).To(BeEmpty(), "its time is over, without Run")
	g.Expect(b.confirm(1, "t1")).To(MatchError(ledger.ErrNoLease))
	b.uptime += time.Minute
	g.Expect(b.list()).To(Equal("10.1.5.2:held:c2 fd00::2:held:c2"))
	g.Expect(b.Expired()).To(Equal(uint64(4)))
	b.consistent()
}

func TestReleaseEndsTheExpiry(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/30")
	b.claimPending(1, time.Minute)
	b.claim(2)
	g.Expect(b.release(1)).To(Equal("10.1.5.1"))
	g.Expect(b.claim(3)).To(Equal("10.1.5.1"))
	b.uptime += time.Hour
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c3 10.1.5.2:held:c2"), "no timer of an earlier lease hits a later one")
}

func TestExpiredLeaseCoolsFromItsDeadline(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	b.claimPending(1, time.Minute)
	b.claim(2)
	b.uptime += 90 * time.Second
	g.Expect(b.list()).To(Equal("10.1.5.1:cooling:c1 10.1.5.2:held:c2"))
	b.release(2)
	b.uptime += 29 * time.Second
	g.Expect(b.list()).To(HavePrefix("10.1.5.1:cooling"))
	b.uptime += time.Second
	g.Expect(b.list()).To(Equal("10.1.5.2:cooling:c2"), "it has cooled since the minute was over")
	b.consistent()
}

func TestExpiryNeedsATokenAndATime(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.claim(1)
	for _, e := range []ledger.Expiry{{}, {Token: "t"}, {After: time.Second}, {Token: "t", After: -1}} {
		g.Expect(b.StartExpiry(context.Background(), ledger.Selector{Key: key(1)}, e)).NotTo(Succeed())
	}
	_, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(2), Expiry: ledger.Expiry{Token: "t", After: -1}})
	g.Expect(err).To(MatchError(ContainSubstring("expiry after -1ns: want a time above 0")))
}

// TestExpirySurvivesARestart opens the database again in the middle of timers.
func TestExpirySurvivesARestart(t *testing.T) {
	g := NewWithT(t)
	path := filepath.Join(t.TempDir(), "cadastre.db")
	file, err := bolt.OpenFile(path, bolt.FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	b := open(g, file.Journal())
	restart := func() {
		g.Expect(file.Close()).To(Succeed())
		file, err = bolt.OpenFile(path, bolt.FileOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		b.journal = file.Journal()
		b.reopen()
	}
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.claimPending(1, time.Minute)
	b.claimPending(2, 2*time.Minute)
	b.claim(3)
	g.Expect(b.start(3, time.Minute)).To(Succeed())
	g.Expect(b.confirm(3, "t3")).To(Succeed())
	b.claimPending(4, 3*time.Minute)
	b.uptime += 59 * time.Second
	b.wall = b.wall.Add(-1000 * time.Hour)
	restart()
	g.Expect(b.list()).To(ContainSubstring("10.1.5.1:pending:c1"))
	b.uptime += time.Second
	g.Expect(b.list()).To(ContainSubstring("10.1.5.1:pending:c1"), "before its pool is known nothing happens")
	b.pool(noCoolDown(), "10.1.5.0/29")
	g.Expect(b.list()).To(Equal("10.1.5.2:pending:c2 10.1.5.3:held:c3 10.1.5.4:pending:c4"))
	g.Expect(b.confirm(2, "t2")).To(Succeed(), "the token is kept")
	b.uptime += time.Hour
	restart()
	b.pool(noCoolDown(), "10.1.5.0/29")
	g.Expect(b.list()).To(Equal("10.1.5.2:held:c2 10.1.5.3:held:c3"), "an expiry of the time without a process is over")
	b.consistent()
	g.Expect(file.Close()).To(Succeed())
}

func TestExpiryBeginsAgainAfterAReboot(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.claimPending(1, time.Minute) // a sandbox, which a reboot ends
	_, _, err := b.Claim(context.Background(), ledger.Request{
		Pool: "default", Key: key(2), Purpose: ledger.ForDocker, Expiry: ledger.Expiry{Token: "t2", After: time.Minute},
	})
	g.Expect(err).NotTo(HaveOccurred())
	b.uptime += 50 * time.Second
	b.boot, b.uptime = "boot-2", time.Second
	b.reopen()
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.uptime += 59 * time.Second
	g.Expect(b.list()).To(Equal("10.1.5.2:pending:c2"))
	b.consistent()
	b.uptime += time.Second
	g.Expect(b.list()).To(BeEmpty())
}

func TestStagedLeaseDoesNotExpire(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.claimPending(1, time.Minute)
	b.claimPending(2, time.Minute)
	st := b.Begin()
	g.Expect(st.StopExpiry(ledger.Selector{Key: key(1)}, "t1")).To(Succeed())
	g.Expect(st.Staged()).To(Equal([]string{`expiry of 10.1.5.1 of pool "default"`}))
	b.uptime += time.Hour
	g.Expect(b.list()).To(Equal("10.1.5.1:pending:c1"), "the stage that changes the lease decides")
	g.Expect(b.start(1, time.Minute)).To(MatchError(ledger.ErrBusy))
	st.Undo()
	g.Expect(b.list()).To(BeEmpty())
	b.consistent()
}

func TestOneStageClaimsStartsStopsAndReleases(t *testing.T) {
	ctx := context.Background()
	for steps := range 5 {
		for _, undo := range []bool{true, false} {
			t.Run(fmt.Sprint(steps, undo), func(t *testing.T) {
				g := NewWithT(t)
				b := open(g, journal.NewMemory())
				b.pool(noCoolDown(), "10.1.5.0/29")
				st := b.Begin()
				sel := ledger.Selector{Key: key(1)}
				for _, step := range []func() error{
					func() error { _, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1)}); return err },
					func() error { return b.stagedTwice(st, sel) },
					func() error { _, err := st.Release(sel); return err },
					func() error { _, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1)}); return err },
				}[:steps] {
					g.Expect(step()).To(Or(Succeed(), MatchError(ledger.ErrBusy)))
				}
				if undo {
					st.Undo()
				} else {
					g.Expect(st.Commit(ctx)).To(Succeed())
				}
				b.consistent()
				before := b.list()
				b.reopen()
				b.pool(noCoolDown(), "10.1.5.0/29")
				g.Expect(b.list()).To(Equal(before))
				b.consistent()
			})
		}
	}
}

// stagedTwice is refused: a staged lease has no expiry that could be changed.
func (b *bench) stagedTwice(st *ledger.Stage, sel ledger.Selector) error {
	return st.StartExpiry(sel, ledger.Expiry{Token: "t", After: time.Minute})
}

func TestRunReleasesUnconfirmedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := journal.NewMemory()
		l, err := ledger.Open(context.Background(), m, ledger.Options{BootID: "b"})
		g.Expect(err).NotTo(HaveOccurred())
		b := &bench{Ledger: l, g: g, journal: m}
		b.pool(noCoolDown(), "10.1.5.0/29")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Run(ctx) }()
		_, err = b.claimPending(1, 10*time.Minute)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = b.claimPending(2, 20*time.Minute)
		g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		records := func() (n int) {
			g.Expect(m.Load(ctx, func(r kvdbKeyValue) error {
				if r.Key[0] == 'L' {
					n++
				}
				return nil
			})).To(Succeed())
			return n
		}
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		g.Expect(records()).To(Equal(1), "Run removes the record without a call")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		g.Expect(records()).To(Equal(0))
		cancel()
		<-done
	})
}

// TestExpiryAndItsFaults makes every commit in turn fail or be torn, then the
// process stop, and looks whether what was answered is true.
func TestExpiryAndItsFaults(t *testing.T) {
	for n := int64(1); n <= 8; n++ {
		for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
			t.Run(fmt.Sprint(n, fault), func(t *testing.T) {
				g := NewWithT(t)
				// the first enters the boot
				b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: journal.At(n+1, fault)})
				if b.tryPool(noCoolDown(), "10.1.5.0/29") != nil {
					b.pool(noCoolDown(), "10.1.5.0/29")
				}
				pending := func(n int) bool {
					l := b.ByKey(key(n))
					return len(l) == 1 && l[0].State == ledger.Pending
				}
				want := map[int]bool{}
				_, err := b.claimPending(1, time.Minute)
				want[1] = err == nil
				_, err = b.claimPending(2, time.Minute)
				want[2] = err == nil
				err2 := b.confirm(2, "t2")
				if want[2] {
					want[2] = err2 != nil
				}
				b.claim(3)
				want[3] = b.start(3, time.Minute) == nil
				if b.Exclude(context.Background(), exclusion("10.1.5.6")) != nil {
					g.Expect(b.Exclude(context.Background(), exclusion("10.1.5.6"))).To(Succeed())
				}
				for i, p := range want {
					g.Expect(pending(i)).To(Equal(p), "lease %d", i)
				}
				b.consistent()
				_, _ = b.Release(context.Background(), ledger.Selector{Key: key(9)})
				_, err = b.claim(4) // any commit writes over what a failed one has left
				if err != nil {
					_, err = b.claim(4)
				}
				g.Expect(err).NotTo(HaveOccurred())
				before := b.list()
				b.reopen()
				b.pool(noCoolDown(), "10.1.5.0/29")
				g.Expect(b.list()).To(Equal(before))
				b.consistent()
			})
		}
	}
}

func exclusion(a string) ledger.Exclusion {
	return ledger.Exclusion{Pool: "default", Addr: ip(a), Owner: "router", Reason: "of the host"}
}

func TestExclusion(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name string
		when func(b *bench, exclude func())
	}{
		{"before there is a pool", func(b *bench, exclude func()) {
			exclude()
			b.pool(noCoolDown(), "10.1.5.0/29")
		}},
		{"before its block", func(b *bench, exclude func()) {
			b.pool(noCoolDown(), "10.2.5.0/29")
			exclude()
			b.pool(noCoolDown(), "10.1.5.0/29")
		}},
		{"free", func(b *bench, exclude func()) {
			b.pool(noCoolDown(), "10.1.5.0/29")
			exclude()
		}},
		{"held", func(b *bench, exclude func()) {
			b.pool(noCoolDown(), "10.1.5.0/29")
			b.claim(98)
			b.claim(99)
			exclude()
			b.g.Expect(b.list()).To(ContainSubstring("10.1.5.2:held:c99"), "the lease stays")
			b.reopen()
			b.pool(noCoolDown(), "10.1.5.0/29")
			b.g.Expect(b.list()).To(ContainSubstring("10.1.5.2:held:c99"))
			b.release(98)
			b.release(99)
		}},
		{"cooling", func(b *bench, exclude func()) {
			b.pool(defaultPool(), "10.1.5.0/29")
			b.claim(98)
			b.claim(99)
			b.release(98)
			b.release(99)
			exclude()
			b.uptime += time.Hour
		}},
		{"pending", func(b *bench, exclude func()) {
			b.pool(noCoolDown(), "10.1.5.0/29")
			_, _ = b.claimPending(98, time.Minute)
			_, _ = b.claimPending(99, time.Minute)
			exclude()
			b.uptime += time.Hour
		}},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, " restart=", restart), func(t *testing.T) {
				g := NewWithT(t)
				b := open(g, journal.NewMemory())
				c.when(b, func() { g.Expect(b.Exclude(ctx, exclusion("10.1.5.2"))).To(Succeed()) })
				b.consistent()
				if restart {
					b.reopen()
					b.pool(noCoolDown(), "10.1.5.0/29")
					b.consistent()
				}
				g.Expect(b.Exclusions()).To(Equal([]ledger.Exclusion{exclusion("10.1.5.2")}))
				for n := range 5 {
					got, err := b.claim(n)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(got).NotTo(Equal("10.1.5.2"))
				}
				_, err := b.claim(5)
				g.Expect(err).To(MatchError(ledger.ErrExhausted))
				_, _, err = b.Claim(ctx, ledger.Request{Pool: "default", Key: key(6), Wanted: addrList("10.1.5.2")})
				g.Expect(err).To(And(MatchError(ledger.ErrExcluded), MatchError(ledger.ErrOutside), MatchError(ContainSubstring("by router (of the host)"))))
				b.consistent()
				g.Expect(b.Readmit(ctx, "default", ip("10.1.5.2"))).To(Succeed())
				g.Expect(b.claim(5)).To(Equal("10.1.5.2"))
				b.consistent()
				b.reopen()
				g.Expect(b.Exclusions()).To(BeEmpty())
				b.consistent()
			})
		}
	}
}

func TestUndoneExclusion(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/30")
	b.claim(1)
	st := b.Begin()
	g.Expect(st.Exclude(exclusion("10.1.5.1"))).To(Succeed())
	g.Expect(st.Exclude(exclusion("10.1.5.2"))).To(Succeed())
	g.Expect(st.Exclude(exclusion("10.1.5.2"))).To(MatchError(ledger.ErrBusy))
	_, ok := b.Excluded("default", ip("10.1.5.2"))
	g.Expect(ok).To(BeFalse(), "it is not answered before it is durable")
	_, err := b.claim(2)
	g.Expect(err).To(MatchError(ledger.ErrExhausted), "the address is not allocated again")
	_, err = b.Release(ctx, ledger.Selector{Key: key(1)})
	g.Expect(err).To(MatchError(ledger.ErrBusy))
	st.Undo()
	b.consistent()
	g.Expect(b.claim(2)).To(Equal("10.1.5.2"))
	g.Expect(b.Exclude(ctx, exclusion("10.1.5.2"))).To(Succeed())
	g.Expect(st.Readmit("default", ip("10.1.5.2"))).To(Succeed())
	st.Undo()
	g.Expect(b.Exclusions()).To(HaveLen(1))
	b.release(2)
	_, err = b.claim(3)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	b.consistent()
}

func TestExclusionsAreChecked(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	g.Expect(b.Exclude(context.Background(), ledger.Exclusion{Addr: ip("10.1.5.2")})).NotTo(Succeed())
	g.Expect(b.Exclude(context.Background(), ledger.Exclusion{Pool: "default"})).NotTo(Succeed())
	g.Expect(b.Exclude(context.Background(), ledger.Exclusion{Pool: "default", Addr: ip("::ffff:10.1.5.2")})).NotTo(Succeed())
	g.Expect(b.Readmit(context.Background(), "default", ip("10.1.5.2"))).To(Succeed())
}

func TestMoreAndWithin(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	b := open(g, journal.NewMemory())
	b.pool(noCoolDown(), "10.1.5.0/30", "10.1.6.0/30", "fd00::/126")
	request := ledger.Request{Pool: "default", Key: key(1), More: true, Families: []ledger.Family{ledger.IPv4}}
	for _, want := range []string{"10.1.6.1", "10.1.6.2", "10.1.5.1", "10.1.5.2"} {
		request.Within = prefixes("fd00::/126", "10.1.6.0/30", "10.1.5.0/30", "10.9.9.0/30")
		leases, fresh, err := b.Claim(ctx, request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(fresh).To(BeTrue())
		g.Expect(addrs(leases)).To(Equal(want))
	}
	_, _, err := b.Claim(ctx, request)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	_, err = b.Release(ctx, ledger.Selector{Addr: ip("10.1.6.2"), Pool: "default", Network: "other"})
	g.Expect(err).To(MatchError(ledger.ErrNotOwner), "another door")
	_, err = b.Release(ctx, ledger.Selector{Addr: ip("10.1.6.2"), Pool: "default", Network: "net"})
	g.Expect(err).NotTo(HaveOccurred())
	request.Within = prefixes("10.1.5.0/30")
	_, _, err = b.Claim(ctx, request)
	g.Expect(err).To(MatchError(ledger.ErrExhausted), "the free addresses are outside of Within")
	g.Expect(b.release(1)).To(Equal("10.1.5.1 10.1.5.2 10.1.6.1"))
	b.consistent()
}

// TestOneKeyWithManyLeases holds a block's worth of leases under one key.
func TestOneKeyWithManyLeases(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	l, err := ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	b := &bench{Ledger: l, g: g}
	b.pool(noCoolDown(), "10.1.0.0/18")
	for range 16382 {
		_, _, err := b.Claim(ctx, ledger.Request{Pool: "default", Key: key(1), More: true})
		g.Expect(err).NotTo(HaveOccurred())
	}
	leases, err := b.Release(ctx, ledger.Selector{Key: key(1)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leases).To(HaveLen(16382))
	g.Expect(b.Leases()).To(BeEmpty())
}

// TestExpiryAgreesWithAModel compares random claims, expiries, exclusions and
// restarts with a model that knows each lease's deadline.
func TestExpiryAgreesWithAModel(t *testing.T) {
	for seed := range uint64(15) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			g := NewWithT(t)
			rnd := rand.New(rand.NewPCG(seed, 11))
			fault := journal.None
			b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return fault }})
			b.pool(noCoolDown(), "10.1.5.0/28")
			ends := map[int]time.Duration{} // 0: never
			for range 200 {
				fault = []journal.Fault{journal.None, journal.None, journal.None, journal.Fail, journal.Tear}[rnd.IntN(5)]
				n, after := rnd.IntN(20), time.Duration(1+rnd.IntN(100))*time.Second
				for k, at := range ends {
					if at > 0 && at <= b.uptime {
						delete(ends, k)
					}
				}
				at, held := ends[n]
				switch rnd.IntN(8) {
				case 0, 1:
					if _, err := b.claimPending(n, after); err == nil && !held {
						ends[n] = b.uptime + after
					}
				case 2:
					if b.start(n, after) == nil {
						g.Expect(held && at == 0).To(BeTrue())
						ends[n] = b.uptime + after
					}
				case 3:
					if b.confirm(n, fmt.Sprint("t", n)) == nil {
						g.Expect(held && at > 0).To(BeTrue())
						ends[n] = 0
					}
				case 4:
					if _, err := b.Release(context.Background(), ledger.Selector{Key: key(n)}); err == nil {
						delete(ends, n)
					}
				case 5:
					b.uptime += time.Duration(rnd.IntN(40)) * time.Second
				case 6:
					e := exclusion(fmt.Sprint("10.1.5.", 1+rnd.IntN(14)))
					if rnd.IntN(2) == 0 {
						_ = b.Exclude(context.Background(), e)
					} else {
						_ = b.Readmit(context.Background(), "default", e.Addr)
					}
				case 7:
					fault = journal.None
					b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(99)})
					_, _ = b.Release(context.Background(), ledger.Selector{Key: key(99)})
					b.reopen()
					b.pool(noCoolDown(), "10.1.5.0/28")
				}
				want := map[int]bool{}
				for k, at := range ends {
					if at == 0 || at > b.uptime {
						want[k] = at > 0
					}
				}
				have := map[int]bool{}
				for _, l := range b.Leases() {
					var k int
					_, err := fmt.Sscanf(l.Key.ContainerID, "c%d", &k)
					g.Expect(err).NotTo(HaveOccurred())
					have[k] = l.State == ledger.Pending
				}
				g.Expect(have).To(Equal(want))
				b.consistent()
			}
		})
	}
}

func addrList(all ...string) (as []netip.Addr) {
	for _, a := range all {
		as = append(as, ip(a))
	}
	return as
}

func prefixes(all ...string) (ps []netip.Prefix) {
	for _, p := range all {
		ps = append(ps, pfx(p))
	}
	return ps
}

// TestOlderVersionReadsTheRecords: one that knows neither expiries nor
// exclusions reads these states, and does not allocate the addresses.
func TestOlderVersionReadsTheRecords(t *testing.T) {
	g := NewWithT(t)
	m := journal.NewMemory()
	b := open(g, m)
	b.pool(noCoolDown(), "10.1.5.0/29")
	b.claimPending(1, time.Minute)
	g.Expect(b.Exclude(context.Background(), exclusion("10.1.5.2"))).To(Succeed())
	g.Expect(b.Exclude(context.Background(), exclusion("10.9.9.9"))).To(Succeed())
	states := map[string]string{}
	g.Expect(m.Load(context.Background(), func(r kvdbKeyValue) error {
		if r.Key[0] != 'L' {
			return nil
		}
		var l kv.Lease
		g.Expect(proto.Unmarshal(r.Value, &l)).To(Succeed())
		a, _ := netip.AddrFromSlice(l.Address)
		states[netip.PrefixFrom(a, int(l.BlockBits)).String()] = ledger.State(l.State).String()
		return nil
	})).To(Succeed())
	g.Expect(states).To(Equal(map[string]string{"10.1.5.1/29": "pending", "10.1.5.2/32": "quarantined", "10.9.9.9/32": "quarantined"}))
}
