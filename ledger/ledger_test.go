// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// bench is a ledger with a clock that the test turns.
type bench struct {
	*ledger.Ledger
	g       Gomega
	journal ledger.Journal
	uptime  time.Duration
	wall    time.Time
	boot    string
	entries int // limits of the history; 0: the default
	age     time.Duration
}

func open(g Gomega, j ledger.Journal) *bench {
	b := &bench{g: g, journal: j, uptime: time.Hour, wall: time.Unix(1000000, 0), boot: "boot-1"}
	b.reopen()
	return b
}

func (b *bench) reopen() {
	l, err := ledger.Open(context.Background(), b.journal, ledger.Options{
		Now: func() time.Time { return b.wall }, Uptime: func() time.Duration { return b.uptime }, BootID: b.boot,
		History: ledger.HistoryOptions{Reader: historyOf(b.journal), Entries: b.entries, Age: b.age},
	})
	b.g.Expect(err).NotTo(HaveOccurred())
	b.Ledger = l
}

func (b *bench) pool(p ledger.Pool, blocks ...string) {
	b.g.Expect(b.tryPool(p, blocks...)).To(Succeed())
}

func (b *bench) tryPool(p ledger.Pool, blocks ...string) error {
	st := b.Begin()
	var prefixes []netip.Prefix
	for _, s := range blocks {
		prefixes = append(prefixes, pfx(s))
	}
	if err := st.SetPool(p); err != nil {
		st.Undo()
		return err
	}
	if err := st.SetBlocks(p.Name, prefixes); err != nil {
		st.Undo()
		return err
	}
	return st.Commit(context.Background())
}

func key(n int) ledger.Key {
	return ledger.Key{Network: "net", ContainerID: fmt.Sprint("c", n), IfName: "eth0"}
}
func pod(n int) ledger.Pod { return ledger.Pod{Namespace: "default", Name: fmt.Sprint("web-", n)} }

func (b *bench) claim(n int) (string, error) {
	leases, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(n), Pod: pod(n)})
	return addrs(leases), err
}

// ClaimOne returns the first lease of a claim.
func (b *bench) ClaimOne(ctx context.Context, req ledger.Request) (ledger.Lease, error) {
	leases, _, err := b.Claim(ctx, req)
	if err != nil {
		return ledger.Lease{}, err
	}
	return leases[0], nil
}

func (b *bench) release(n int) string {
	leases, err := b.Release(context.Background(), ledger.Selector{Key: key(n)})
	b.g.Expect(err).NotTo(HaveOccurred())
	return addrs(leases)
}

func addrs(leases []ledger.Lease) string {
	var s []string
	for _, l := range leases {
		s = append(s, l.Addr.String())
	}
	return strings.Join(s, " ")
}

// list returns all leases of the ledger in one line.
func (b *bench) list() string {
	var s []string
	for _, l := range b.Leases() {
		s = append(s, fmt.Sprintf("%s:%s:%s", l.Addr, l.State, l.Key.ContainerID))
	}
	return strings.Join(s, " ")
}

func defaultPool() ledger.Pool {
	return ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true}
}

func TestClaimAndRelease(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"))
	g.Expect(b.claim(2)).To(Equal("10.1.5.2"))
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"), "the same key, the same address")
	g.Expect(b.release(1)).To(Equal("10.1.5.1"))
	g.Expect(b.release(1)).To(BeEmpty(), "released already")
	g.Expect(b.claim(3)).To(Equal("10.1.5.3"), "not the one just released")
	g.Expect(b.list()).To(Equal("10.1.5.1:cooling:c1 10.1.5.2:held:c2 10.1.5.3:held:c3"))
}

func TestRepeatedClaimWritesNothing(t *testing.T) {
	g := NewWithT(t)
	m := journal.NewMemory()
	b := open(g, m)
	b.pool(defaultPool(), "10.1.5.0/24")
	b.claim(1)
	before := m.Commits()
	for range 10 {
		b.claim(1)
		b.release(99)
	}
	g.Expect(m.Commits()).To(Equal(before))
}

func TestCoolDown(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true, Order: ledger.Lowest}, "10.1.5.0/29")
	b.claim(1)
	b.release(1)
	b.wall = b.wall.Add(100 * time.Hour) // a clock that jumps shortens nothing
	g.Expect(b.claim(2)).To(Equal("10.1.5.2"))
	b.wall = b.wall.Add(-500 * time.Hour)
	b.uptime += 59 * time.Second
	b.reopen() // nor does a restart
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true, Order: ledger.Lowest}, "10.1.5.0/29")
	g.Expect(b.claim(3)).To(Equal("10.1.5.3"))
	b.uptime += time.Second
	g.Expect(b.claim(4)).To(Equal("10.1.5.1"))
}

func TestClaimOfAFullPoolEndsTheLongestCoolDown(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	for n := 1; n <= 6; n++ {
		b.claim(n)
	}
	_, err := b.claim(7)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	g.Expect(err).To(MatchError(ContainSubstring(`default/web-7 (net/c7/eth0): no IP address is free in pool "default" (ipv4): of 8 addresses 6 are held, 0 infra, 0 cooling, 0 quarantined, 2 reserved`)))
	b.release(4)
	b.uptime += time.Second
	b.release(2)
	g.Expect(b.claim(7)).To(Equal("10.1.5.4"), "the one that has cooled longest")
	g.Expect(b.claim(8)).To(Equal("10.1.5.2"))
	_, err = b.claim(9)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
}

func TestRebootEndsOnlySandboxLeases(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24")
	b.claim(1)
	for _, r := range []ledger.Request{
		{Pool: "default", Key: ledger.Key{Network: "d", ContainerID: "docker", IfName: "e"}, Purpose: ledger.ForDocker},
		{Pool: "default", Key: ledger.Key{Network: "i", ContainerID: "infra", IfName: "gw"}, Purpose: ledger.ForInfra},
		{Pool: "default", Key: ledger.Key{Network: ledger.APINetwork, ContainerID: "pod:default/x", IfName: "eth0"}},
	} {
		_, _, err := b.Claim(context.Background(), r)
		g.Expect(err).NotTo(HaveOccurred())
	}
	b.reopen()
	g.Expect(b.Rebooted()).To(Equal(0), "a restart is not a reboot")
	b.boot, b.uptime = "boot-2", time.Second
	b.reopen()
	g.Expect(b.Rebooted()).To(Equal(1))
	g.Expect(b.list()).To(Equal("10.1.5.1:cooling:c1 10.1.5.2:held:docker 10.1.5.3:held:infra 10.1.5.4:held:pod:default/x"))
	b.reopen()
	g.Expect(b.list()).To(HavePrefix("10.1.5.1:cooling:c1"), "it is durable")
}

func TestDualStackIsAllOrNothing(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24", "fd00::/126")
	g.Expect(b.claim(1)).To(Equal("10.1.5.1 fd00::1"))
	g.Expect(b.claim(2)).To(Equal("10.1.5.2 fd00::2"))
	_, err := b.claim(3)
	g.Expect(err).To(MatchError(ContainSubstring("(ipv6)")))
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1 10.1.5.2:held:c2 fd00::1:held:c1 fd00::2:held:c2"))
	g.Expect(b.claim(1)).To(Equal("10.1.5.1 fd00::1"))
	g.Expect(b.release(1)).To(Equal("10.1.5.1 fd00::1"))
	g.Expect(b.claim(3)).To(Equal("10.1.5.4 fd00::1"))
}

func TestWantedAddresses(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute, ReserveEdges: true, Exclude: []netip.Prefix{pfx("10.1.5.64/28")}}, "10.1.5.0/24")
	want := func(n int, a string) error {
		_, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: key(n), Wanted: []netip.Addr{ip(a)}})
		return err
	}
	g.Expect(want(1, "10.1.5.9")).To(Succeed())
	g.Expect(want(1, "10.1.5.9")).To(Succeed())
	g.Expect(want(1, "10.1.5.10")).To(MatchError(ledger.ErrKeyHeld))
	g.Expect(want(2, "10.1.5.9")).To(MatchError(ledger.ErrTaken))
	g.Expect(want(2, "10.1.6.9")).To(MatchError(ledger.ErrOutside))
	g.Expect(want(2, "fd00::1")).To(MatchError(ledger.ErrOutside))
	g.Expect(want(2, "10.1.5.0")).To(MatchError(ledger.ErrOutside))
	g.Expect(want(2, "10.1.5.70")).To(MatchError(ledger.ErrOutside))
	b.release(1)
	g.Expect(want(2, "10.1.5.9")).To(Succeed(), "a cooling one may be had by name")
}

func TestReleaseNeedsTheOwner(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24")
	b.pool(ledger.Pool{Name: "other"}, "10.2.5.0/24")
	b.claim(1)
	for _, sel := range []ledger.Selector{
		{Key: ledger.Key{Network: "net", ContainerID: "c2", IfName: "eth0"}},
		{Key: ledger.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}},
		{Key: key(1), Generation: 999},
		{Addr: ip("10.1.5.1"), Pool: "other"},
		{Addr: ip("10.1.5.2"), Pool: "default"},
		{Pod: ledger.Pod{Namespace: "default", Name: "web-1"}, Purpose: ledger.ForDocker},
		{Pod: ledger.Pod{Namespace: "other", Name: "web-1"}},
	} {
		leases, err := b.Release(ctx, sel)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(leases).To(BeEmpty(), "%+v", sel)
	}
	_, err := b.Release(ctx, ledger.Selector{Addr: ip("10.1.5.1"), Pool: "default", Purpose: ledger.ForDocker})
	g.Expect(err).To(MatchError(ledger.ErrNotOwner))
	_, err = b.Release(ctx, ledger.Selector{})
	g.Expect(err).To(HaveOccurred())
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1"))
	leases, err := b.Release(ctx, ledger.Selector{Addr: ip("10.1.5.1"), Pool: "default"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(addrs(leases)).To(Equal("10.1.5.1"))
	b.claim(3)
	leases, err = b.Release(ctx, ledger.Selector{Pod: pod(3)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leases).To(HaveLen(1))
}

func TestBlocksDrain(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24")
	b.claim(1)
	b.claim(2)
	infra := ledger.Request{Pool: "default", Key: ledger.Key{Network: "i", ContainerID: "x", IfName: "gw"}, Purpose: ledger.ForInfra, Wanted: []netip.Addr{ip("10.1.5.254")}}
	_, _, err := b.Claim(context.Background(), infra)
	g.Expect(err).NotTo(HaveOccurred())
	b.pool(defaultPool(), "10.1.7.0/24")
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"), "a live pod keeps its address")
	g.Expect(b.claim(3)).To(Equal("10.1.7.1"), "a draining block allocates nothing")
	blocks := func() (s []string) {
		for _, x := range b.Stats() {
			s = append(s, fmt.Sprint(x.Block, " ", x.State))
		}
		return s
	}
	b.reopen()
	b.pool(defaultPool(), "10.1.7.0/24")
	g.Expect(blocks()).To(Equal([]string{"10.1.5.0/24 draining", "10.1.7.0/24 active"}))
	b.release(1)
	g.Expect(b.list()).To(Equal("10.1.5.2:held:c2 10.1.5.254:held:x 10.1.7.1:held:c3"), "no cooling in a draining block")
	b.release(2)
	g.Expect(blocks()).To(Equal([]string{"10.1.7.0/24 active"}), "released with its infra leases")
	b.claim(4)
	b.reopen()
	g.Expect(blocks()).To(Equal([]string{"10.1.7.0/24 active"}), "in the journal, too")
}

func TestResizedBlockNeverAllocatesALeasedAddress(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", Order: ledger.Lowest}, "10.1.4.0/30")
	for n := range 3 {
		b.claim(n)
	}
	b.pool(ledger.Pool{Name: "default", Order: ledger.Lowest}, "10.1.4.0/29")
	g.Expect(b.claim(10)).To(Equal("10.1.4.3"))
	b.reopen()
	b.pool(ledger.Pool{Name: "default", Order: ledger.Lowest}, "10.1.4.0/29")
	g.Expect(b.claim(11)).To(Equal("10.1.4.4"))
	b.release(1)
	g.Expect(b.claim(12)).To(Equal("10.1.4.1"))
	b.pool(ledger.Pool{Name: "default", Order: ledger.Lowest}, "10.1.4.0/30") // and back
	_, err := b.claim(13)
	g.Expect(err).To(MatchError(ledger.ErrExhausted))
	g.Expect(b.tryPool(defaultPool(), "10.1.4.0/29", "10.1.4.0/30")).To(MatchError(ledger.ErrOverlap))
	g.Expect(b.tryPool(defaultPool(), "10.1.4.1/29")).To(MatchError(ContainSubstring("want 10.1.4.0/29")))
}

func TestQuarantine(t *testing.T) {
	g := NewWithT(t)
	ctx := context.Background()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	st := b.Begin()
	fresh, err := st.Quarantine("default", ip("10.1.5.1"), pod(9), "pod default/web-9 has it")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeTrue())
	g.Expect(st.Commit(ctx)).To(Succeed())
	g.Expect(b.claim(1)).To(Equal("10.1.5.2"))
	_, err = b.Release(ctx, ledger.Selector{Addr: ip("10.1.5.1"), Pool: "default"})
	g.Expect(err).To(MatchError(ContainSubstring("it is quarantined (pod default/web-9 has it)")))
	leases, err := b.Release(ctx, ledger.Selector{Pod: pod(9)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leases).To(BeEmpty())
	b.reopen()
	g.Expect(b.list()).To(Equal("10.1.5.1:quarantined: 10.1.5.2:held:c1"))
	leases, err = b.Release(ctx, ledger.Selector{Addr: ip("10.1.5.1"), Pool: "default", Quarantined: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(leases).To(HaveLen(1))
}

func TestSuspendedAllocation(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24")
	b.claim(1)
	b.Suspend("store", "the store came back older")
	b.Suspend("node ID", "it is taken")
	b.Suspend("node ID", "")
	b.Suspend("never", "")
	_, err := b.claim(2)
	g.Expect(err).To(MatchError(ContainSubstring("allocation of new addresses is suspended: the store came back older")))
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"))
	g.Expect(b.release(1)).To(Equal("10.1.5.1"))
	b.Suspend("store", "")
	g.Expect(b.claim(2)).To(Equal("10.1.5.2"))
}

// A commit that fails, with the journal having taken it or not, changes nothing.
func TestFailedCommitChangesNothing(t *testing.T) {
	for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
		t.Run(fmt.Sprint("fault=", fault), func(t *testing.T) {
			g := NewWithT(t)
			m := journal.NewMemory()
			bad := false
			b := open(g, &journal.Faulty{Journal: m, Plan: func(int64) journal.Fault {
				if bad {
					return fault
				}
				return journal.None
			}})
			b.pool(defaultPool(), "10.1.5.0/29")
			b.claim(1)
			b.claim(2)
			b.release(2) // .2 cools
			before := b.list()

			bad = true
			_, err := b.claim(3)
			g.Expect(err).To(MatchError(journal.ErrInjected))
			_, err = b.Release(context.Background(), ledger.Selector{Key: key(1)})
			g.Expect(err).To(MatchError(journal.ErrInjected))
			g.Expect(b.tryPool(defaultPool(), "10.9.0.0/24")).To(MatchError(journal.ErrInjected))
			g.Expect(b.list()).To(Equal(before))
			g.Expect(b.ByKey(key(3))).To(BeEmpty())

			bad = false
			g.Expect(b.claim(4)).NotTo(BeEmpty())
			after := b.list()
			b.reopen()
			g.Expect(b.list()).To(Equal(after), "the next commit wrote over what the failed ones may have left")
		})
	}
}

// A commit that failed may have been applied. What is answered after it must
// survive a crash, also where memory alone would not need a write.
func TestAnswerAfterAFailedCommitIsDurable(t *testing.T) {
	g := NewWithT(t)
	tear := false
	b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault {
		if tear {
			return journal.Tear
		}
		return journal.None
	}})
	b.pool(defaultPool(), "10.1.5.0/24")
	b.claim(1)

	tear = true
	_, err := b.Release(context.Background(), ledger.Selector{Key: key(1)})
	g.Expect(err).To(MatchError(journal.ErrInjected))
	_, err = b.claim(1)
	g.Expect(err).To(MatchError(journal.ErrInjected), "it cannot be made sure of")
	tear = false
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"))
	b.reopen() // a crash
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1"))

	b.pool(defaultPool(), "10.1.5.0/24")
	tear = true
	_, err = b.claim(2)
	g.Expect(err).To(MatchError(journal.ErrInjected))
	tear = false
	g.Expect(b.release(2)).To(BeEmpty(), "memory has nothing to release")
	b.reopen()
	g.Expect(b.ByKey(key(2))).To(BeEmpty(), "and neither has the journal")
}

func TestConcurrentClaimsOfOneKeyShareOneLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := journal.NewMemory()
		b := open(g, &journal.Faulty{Journal: m, Lag: time.Second, Plan: func(int64) journal.Fault { return journal.Delay }})
		b.pool(defaultPool(), "10.1.5.0/24")
		var wg sync.WaitGroup
		got := make([]string, 20)
		for i := range got {
			wg.Go(func() { got[i], _ = b.claim(1) })
		}
		wg.Wait()
		for _, a := range got {
			g.Expect(a).To(Equal("10.1.5.1"))
		}
	})
}

func TestConcurrentClaimsShareOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		m := journal.NewMemory()
		b := open(g, &journal.Faulty{Journal: m, Lag: time.Second, Plan: func(int64) journal.Fault { return journal.Delay }})
		b.pool(defaultPool(), "10.1.0.0/16")
		before, began := m.Commits(), time.Now()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				_, err := b.claim(i)
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		g.Expect(m.Commits() - before).To(BeNumerically("<=", 3))
		g.Expect(time.Since(began)).To(BeNumerically("<=", 3*time.Second))
	})
}

func TestClaimOfAStagedKeyIsBusy(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/24")
	st := b.Begin()
	_, fresh, err := st.Claim(ledger.Request{Pool: "default", Key: key(1)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeTrue())
	g.Expect(b.ByKey(key(1))).To(BeEmpty(), "a staged lease is not visible")
	_, err = b.claim(1)
	g.Expect(err).To(MatchError(ledger.ErrBusy), "it could be its own handler that asks")
	_, err = b.Release(context.Background(), ledger.Selector{Key: key(1)})
	g.Expect(err).To(MatchError(ledger.ErrBusy))
	g.Expect(b.claim(2)).To(Equal("10.1.5.2"), "another key is not busy")
	g.Expect(b.Check(context.Background())).To(BeEmpty())
	st.Undo()
	g.Expect(b.claim(1)).To(Equal("10.1.5.3"))
}

func TestUndoneClaimOfACoolingAddressKeepsItsPlace(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	for n := 1; n <= 6; n++ {
		b.claim(n)
	}
	for _, n := range []int{3, 1, 5} {
		b.uptime += time.Second
		b.release(n)
	}
	st := b.Begin()
	_, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(9), Wanted: []netip.Addr{ip("10.1.5.1")}})
	g.Expect(err).NotTo(HaveOccurred())
	st.Undo()
	g.Expect(b.claim(11)).To(Equal("10.1.5.3"))
	g.Expect(b.claim(12)).To(Equal("10.1.5.1"))
	g.Expect(b.claim(13)).To(Equal("10.1.5.5"))
}

func TestRunRemovesCooledLeasesFromTheJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(context.Background())
		m := journal.NewMemory()
		l, err := ledger.Open(ctx, m, ledger.Options{BootID: "b"})
		g.Expect(err).NotTo(HaveOccurred())
		b := &bench{Ledger: l, g: g}
		b.pool(defaultPool(), "10.1.5.0/24")
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		b.claim(1)
		b.release(1)
		n := 0
		count := func() int {
			n = 0
			g.Expect(m.Load(ctx, func(r kvdbKeyValue) error { n++; return nil })).To(Succeed())
			return n
		}
		before := count()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		g.Expect(count()).To(Equal(before - 1))
		cancel()
		g.Expect(<-done).To(Succeed())
	})
}
