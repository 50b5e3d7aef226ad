// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/journaltest"
)

// historyOf returns the reader of the history of a journal, nil if it has none.
func historyOf(j ledger.Journal) ledger.HistoryReader {
	if f, ok := j.(*journal.Faulty); ok {
		if inner, ok := f.Journal.(ledger.Journal); ok {
			j = inner
		}
	}
	r, _ := j.(ledger.HistoryReader)
	return r
}

// memoryOf returns the records of a bench's journal as a crash would leave them now.
func memoryOf(j ledger.Journal) (*journal.Memory, bool) {
	if f, ok := j.(*journal.Faulty); ok {
		m, ok := f.Journal.(*journal.Memory)
		return m, ok
	}
	m, ok := j.(*journal.Memory)
	return m, ok
}

// historyAgrees compares the journal's history with its leases and blocks, as a program
// that starts after a crash now would find both.
func historyAgrees(b *bench) error {
	m, ok := memoryOf(b.journal)
	if !ok {
		return nil
	}
	ctx, after := context.Background(), m.Clone()
	l, err := ledger.Open(ctx, after, ledger.Options{
		Now: func() time.Time { return b.wall }, Uptime: func() time.Duration { return b.uptime }, BootID: b.boot,
		History: ledger.HistoryOptions{Reader: after},
	})
	if err != nil {
		return err
	}
	return journaltest.Agree(ctx, l)
}

// recorded returns the entries of a query, the oldest first, in a few words each.
func (b *bench) recorded(q ledger.HistoryQuery) (lines []string) {
	b.g.Expect(b.tryRecorded(q, &lines)).To(Succeed())
	return lines
}

func (b *bench) tryRecorded(q ledger.HistoryQuery, lines *[]string) error {
	entries, err := b.History(context.Background(), q)
	for _, e := range slices.Backward(entries) {
		line := e.Action.String()
		if e.Addr.IsValid() {
			line += " " + e.Addr.String()
		} else {
			line += " " + e.Block.String()
		}
		if e.Pod.Name != "" {
			line += " " + e.Pod.String()
		}
		if e.EventName != "" {
			line += fmt.Sprintf(" #%d %s", e.Event, e.EventName)
		}
		if e.Reason != "" {
			line += ": " + e.Reason
		}
		*lines = append(*lines, line)
	}
	return err
}

func TestNoTimeAloneEndsAReclaim(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	_, err := b.claim(1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(b.StartExpiry(ctx, ledger.Selector{Key: key(1), Reason: "its sandbox is gone"},
		ledger.Expiry{Token: ledger.ReclaimToken, After: time.Minute})).To(Succeed())
	entries, err := b.History(ctx, ledger.HistoryQuery{Limit: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries[0].Action).To(Equal(ledger.MadePending))
	g.Expect(entries[0].After).To(BeZero())
}

func TestHistoryNamesEveryChange(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	st := b.Begin()
	st.BeginEvent(17, "Add Pod")
	_, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1), Pod: pod(1), NetNS: "/var/run/netns/a"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(st.Commit(ctx)).To(Succeed())
	b.wall = b.wall.Add(time.Minute)
	_, err = b.Release(ctx, ledger.Selector{Key: key(1), Reason: "CNI GC did not list it"})
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = b.Claim(ctx, ledger.Request{
		Pool: "default", Key: key(2), Pod: pod(2), Expiry: ledger.Expiry{Token: "t", After: time.Minute},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(b.StopExpiry(ctx, ledger.Selector{Key: key(2)}, "t")).To(Succeed())
	g.Expect(b.StartExpiry(ctx, ledger.Selector{Key: key(2), Reason: "its sandbox is gone"},
		ledger.Expiry{Token: "u", After: time.Minute})).To(Succeed())
	b.uptime += 2 * time.Minute
	g.Expect(b.Expired()).To(BeEquivalentTo(1))
	_, err = st.Quarantine("default", ip("10.1.5.6"), pod(3), "pod default/web-3 reports it")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(st.Commit(ctx)).To(Succeed())
	g.Expect(b.Exclude(ctx, ledger.Exclusion{Pool: "default", Addr: ip("10.1.5.4"), Owner: "test"})).To(Succeed())
	g.Expect(b.Readmit(ctx, "default", ip("10.1.5.4"))).To(Succeed())
	_, _, err = b.Claim(ctx, ledger.Request{
		Pool: "default", Key: key(9), Purpose: ledger.ForInfra, Wanted: []netip.Addr{ip("10.1.5.1")},
	})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = b.Release(ctx, ledger.Selector{Pool: "default", Addr: ip("10.1.5.6"), Quarantined: true})
	g.Expect(err).NotTo(HaveOccurred())
	b.pool(defaultPool(), "10.2.0.0/29")
	_, err = b.claim(4) // its commit writes the end of the block
	g.Expect(err).NotTo(HaveOccurred())
	want := []string{
		"block opened 10.1.5.0/29",
		"claimed 10.1.5.1 default/web-1 #17 Add Pod",
		"released 10.1.5.1 default/web-1: CNI GC did not list it",
		"claimed 10.1.5.2 default/web-2",
		"confirmed 10.1.5.2 default/web-2",
		"pending 10.1.5.2 default/web-2: its sandbox is gone",
		"expired 10.1.5.2 default/web-2: not confirmed within 1m0s",
		"quarantined 10.1.5.6 default/web-3 #17 Add Pod: pod default/web-3 reports it",
		"excluded 10.1.5.4: test",
		"readmitted 10.1.5.4: test",
		"claimed 10.1.5.1",
		"released 10.1.5.6 default/web-3",
		"block draining 10.1.5.0/29",
		"block opened 10.2.0.0/29",
		"released 10.1.5.1: its block was closed",
		"block closed 10.1.5.0/29",
		"claimed 10.2.0.1 default/web-4",
	}
	g.Expect(b.recorded(ledger.HistoryQuery{})).To(Equal(want))
	g.Expect(historyAgrees(b)).To(Succeed())
	b.reopen()
	g.Expect(b.recorded(ledger.HistoryQuery{})).To(Equal(want), "after a restart")

	g.Expect(b.recorded(ledger.HistoryQuery{Pod: pod(1)})).To(Equal(want[1:3]))
	g.Expect(b.recorded(ledger.HistoryQuery{Addr: ip("10.2.0.1")})).To(Equal([]string{want[13], want[16]}))
	g.Expect(b.recorded(ledger.HistoryQuery{ContainerID: "c2", Limit: 2})).To(Equal(want[5:7]), "the newest ones")
	g.Expect(b.recorded(ledger.HistoryQuery{Pool: "other"})).To(BeEmpty())
	g.Expect(b.recorded(ledger.HistoryQuery{Until: time.Unix(1000030, 0)})).To(Equal(want[:2]))
	g.Expect(b.recorded(ledger.HistoryQuery{Since: time.Unix(1000030, 0)})).To(Equal(want[2:]))
	all, err := b.History(ctx, ledger.HistoryQuery{Pod: pod(1), Limit: 1})
	g.Expect(err).NotTo(HaveOccurred())
	end := all[0]
	g.Expect(end.Since).To(Equal(time.Unix(1000000, 0).UTC()), "an end tells the begin")
	g.Expect(end.Time).To(Equal(time.Unix(1000060, 0).UTC()))
	g.Expect(end.NetNS).To(Equal("/var/run/netns/a"))
	g.Expect(b.recorded(ledger.HistoryQuery{Before: end.Number})).To(Equal(want[:2]), "the next page")
	all, err = b.History(ctx, ledger.HistoryQuery{ContainerID: "c2"})
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range all {
		if e.Action == ledger.MadePending {
			g.Expect(e.After).To(Equal(time.Minute))
		}
	}
}

func TestHistoryStaysWithinItsNumber(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	m := journal.NewMemory()
	b := open(g, m)
	b.entries = 40
	b.reopen()
	b.pool(defaultPool(), "10.1.0.0/16")
	for n := range 200 {
		_, err := b.claim(n)
		g.Expect(err).NotTo(HaveOccurred())
		entries, err := b.History(ctx, ledger.HistoryQuery{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(entries)).To(And(BeNumerically("<=", 40), BeNumerically(">=", min(n, 35))))
		g.Expect(entries[0].Pod).To(Equal(pod(n)))
		if n%50 == 0 {
			b.reopen()
			b.pool(defaultPool(), "10.1.0.0/16")
		}
	}
	st := b.Begin()
	for n := range 300 { // more than the history holds
		_, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1000 + n), Pod: pod(1000 + n)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(st.Commit(ctx)).To(Succeed())
	entries, err := b.History(ctx, ledger.HistoryQuery{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(entries).To(HaveLen(40))
	g.Expect(entries[0].Pod).To(Equal(pod(1299)))
	g.Expect(entries[39].Pod).To(Equal(pod(1260)))
}

func TestHistoryForgetsWhatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(context.Background())
		m := journal.NewMemory()
		began := time.Now()
		l, err := ledger.Open(ctx, m, ledger.Options{
			BootID: "b", Uptime: func() time.Duration { return time.Since(began) + time.Hour },
			History: ledger.HistoryOptions{Reader: m, Age: 24 * time.Hour},
		})
		g.Expect(err).NotTo(HaveOccurred())
		b := &bench{Ledger: l, g: g}
		b.pool(defaultPool(), "10.1.0.0/16")
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		for n := range 100 {
			_, err := b.claim(n)
			g.Expect(err).NotTo(HaveOccurred())
		}
		time.Sleep(20 * time.Hour)
		_, err = b.claim(100)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(HaveLen(102))
		time.Sleep(6 * time.Hour)
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(Equal([]string{"claimed 10.1.0.101 default/web-100"}))
		_, err = b.claim(101)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(HaveLen(2))
		cancel()
		g.Expect(<-done).To(Succeed())
	})
}

// TestAnEntryWaitsForItsRecord lets a lease expire while a stage, which is not committed
// yet, has its address: until then the journal has the lease, and so has the history.
func TestAnEntryWaitsForItsRecord(t *testing.T) {
	g, ctx := NewWithT(t), context.Background()
	b := open(g, journal.NewMemory())
	pool := defaultPool()
	pool.CoolDown = 0
	b.pool(pool, "10.1.5.0/29")
	wanted := []netip.Addr{ip("10.1.5.3")}
	_, _, err := b.Claim(ctx, ledger.Request{
		Pool: "default", Key: key(1), Pod: pod(1), Wanted: wanted, Expiry: ledger.Expiry{Token: "t", After: time.Minute},
	})
	g.Expect(err).NotTo(HaveOccurred())
	b.uptime += 2 * time.Minute
	st := b.Begin()
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(2), Pod: pod(2), Wanted: wanted})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = b.claim(3) // another caller's commit
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(historyAgrees(b)).To(Succeed(), "as a crash now would leave it")
	g.Expect(st.Commit(ctx)).To(Succeed())
	g.Expect(historyAgrees(b)).To(Succeed())
	g.Expect(b.recorded(ledger.HistoryQuery{Addr: wanted[0]})).To(Equal([]string{
		"block opened 10.1.5.0/29",
		"claimed 10.1.5.3 default/web-1",
		"expired 10.1.5.3 default/web-1: not confirmed within 1m0s",
		"claimed 10.1.5.3 default/web-2",
	}))
}

func TestALedgerWithoutHistorySaysSo(t *testing.T) {
	g := NewWithT(t)
	b := open(g, ledger.NullJournal{})
	_, err := b.History(context.Background(), ledger.HistoryQuery{})
	g.Expect(err).To(MatchError(ledger.ErrNoHistory))
}

// TestAClockThatJumpsRemovesNoHistory: entries are too old by their time only if all before
// them are, and not because the clock was set ahead.
func TestAClockThatJumpsRemovesNoHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(context.Background())
		m := journal.NewMemory()
		began := time.Now()
		var jump atomic.Int64 // of the clock
		l, err := ledger.Open(ctx, m, ledger.Options{
			BootID:  "b",
			Now:     func() time.Time { return time.Now().Add(time.Duration(jump.Load())) },
			Uptime:  func() time.Duration { return time.Since(began) + time.Hour },
			History: ledger.HistoryOptions{Reader: m, Age: 24 * time.Hour},
		})
		g.Expect(err).NotTo(HaveOccurred())
		b := &bench{Ledger: l, g: g}
		b.pool(defaultPool(), "10.1.0.0/16")
		claim := func(from, to int) {
			for n := from; n < to; n++ {
				_, err := b.claim(n)
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		claim(0, 10)
		jump.Store(int64(-20 * 365 * 24 * time.Hour)) // a boot before the clock is set
		claim(10, 110)
		jump.Store(0)
		claim(110, 113)
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(3 * time.Hour)
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(HaveLen(114), "the clock was behind for a time")
		jump.Store(int64(5 * 365 * 24 * time.Hour))
		time.Sleep(3 * time.Hour)
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(HaveLen(114), "the clock has jumped ahead")
		time.Sleep(20 * time.Hour)
		g.Expect(b.recorded(ledger.HistoryQuery{})).To(BeEmpty(), "the age is over")
		cancel()
		g.Expect(<-done).To(Succeed())
	})
}
