// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// Two ledgers get the same events. One stages several of them, each behind a savepoint, and
// undoes some; the other one gets only those that stay. After the commit both are the same,
// in memory, in the journal, in the history, and after a restart.
func TestWhatIsUndoneToASavepointWasNever(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		fault := journal.None
		plan := func(int64) journal.Fault { return fault }
		marked := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: plan})
		plain := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: plan})
		both := []*bench{marked, plain}
		p := ledger.Pool{Name: "default", Order: ledger.Lowest, CoolDown: 10 * time.Second, ReserveEdges: true}
		for _, b := range both {
			b.pool(p, "10.1.5.0/24", "fd00::/120")
		}
		for round := range rapid.IntRange(1, 8).Draw(t, "commits") {
			m, q := marked.Begin(), plain.Begin()
			for n := range rapid.IntRange(1, 6).Draw(t, "events") {
				ev := drawEvent(t)
				undone := rapid.IntRange(0, 2).Draw(t, "undone") == 0
				m.BeginEvent(uint64(round*10+n), "event")
				m.Mark()
				ev(m)
				if undone {
					m.UndoToMark()
				} else {
					q.BeginEvent(uint64(round*10+n), "event")
					q.Mark()
					ev(q)
				}
				g.Expect(m.Staged()).To(Equal(q.Staged()))
			}
			fault = rapid.SampledFrom([]journal.Fault{journal.None, journal.None, journal.Fail, journal.Tear}).Draw(t, "fault")
			errs := [2]error{m.Commit(context.Background()), q.Commit(context.Background())}
			fault = journal.None
			g.Expect(errors.Is(errs[0], journal.ErrInjected)).To(Equal(errors.Is(errs[1], journal.ErrInjected)))
			g.Expect(contents(g, marked)).To(Equal(contents(g, plain)))
			for _, b := range both {
				b.uptime += time.Duration(round) * time.Second
			}
		}
		for _, b := range both { // a commit repairs what a failed one left
			b.pool(ledger.Pool{Name: "other"}, "10.9.0.0/24")
			b.reopen()
		}
		g.Expect(contents(g, marked)).To(Equal(contents(g, plain)))
	})
}

// drawEvent draws some changes, which fail on both ledgers or on none.
func drawEvent(t *rapid.T) func(*ledger.Stage) {
	var steps []func(*ledger.Stage)
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		n := rapid.IntRange(0, 15).Draw(t, "key")
		a := netip.AddrFrom4([4]byte{10, 1, 5, byte(n + 1)})
		switch rapid.IntRange(0, 9).Draw(t, "change") {
		case 0, 1, 2, 3:
			steps = append(steps, func(st *ledger.Stage) {
				_, _, _ = st.Claim(ledger.Request{Pool: "default", Key: key(n), Pod: pod(n)})
			})
		case 4, 5:
			steps = append(steps, func(st *ledger.Stage) { _, _ = st.Release(ledger.Selector{Key: key(n)}) })
		case 6:
			blocks := rapid.SampledFrom([][]netip.Prefix{
				{pfx("10.1.5.0/24"), pfx("fd00::/120")},
				{pfx("10.1.5.0/24"), pfx("10.1.6.0/24"), pfx("fd00::/120")},
				{pfx("10.1.6.0/24"), pfx("fd00::/120")},
			}).Draw(t, "blocks")
			steps = append(steps, func(st *ledger.Stage) { _ = st.SetBlocks("default", blocks) })
		case 7:
			steps = append(steps, func(st *ledger.Stage) { _, _ = st.Quarantine("default", a, pod(n), "test") })
		case 8:
			steps = append(steps, func(st *ledger.Stage) {
				if st.Exclude(ledger.Exclusion{Pool: "default", Addr: a, Owner: "test"}) != nil {
					_ = st.Readmit("default", a)
				}
			})
		case 9:
			steps = append(steps, func(st *ledger.Stage) {
				_ = st.StartExpiry(ledger.Selector{Key: key(n)}, ledger.Expiry{Token: "t", After: time.Hour}) // a claim, also one that is undone, ends what has expired
			})
		}
	}
	return func(st *ledger.Stage) {
		for _, step := range steps {
			step(st)
		}
	}
}

// contents returns what a ledger holds and has recorded, without the numbers of claims:
// undone ones have some.
func contents(g Gomega, b *bench) []string {
	ctx := context.Background()
	findings, err := b.Check(ctx)
	g.Expect(findings, err).To(BeEmpty())
	var all []string
	for _, l := range b.Leases() {
		l.Generation = 0
		all = append(all, fmt.Sprintf("%+v", l))
	}
	for _, s := range b.Stats() {
		all = append(all, fmt.Sprintf("%+v", s))
	}
	entries, err := b.History(ctx, ledger.HistoryQuery{})
	g.Expect(err).NotTo(HaveOccurred())
	for _, e := range entries {
		e.Generation = 0
		all = append(all, fmt.Sprintf("%+v", e))
	}
	return all
}

// A claim that is staged before the savepoint cannot be undone by what comes after it.
func TestAClaimBeforeTheSavepointCannotBeReleased(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "10.1.5.0/24")
	st := b.Begin()
	_, _, err := st.Claim(ledger.Request{Pool: "default", Key: key(1), Pod: pod(1)})
	g.Expect(err).NotTo(HaveOccurred())
	st.Mark()
	_, err = st.Release(ledger.Selector{Key: key(1)})
	g.Expect(err).To(MatchError(ledger.ErrBusy))
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(2), Pod: pod(2)})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = st.Release(ledger.Selector{Key: key(2)})
	g.Expect(err).NotTo(HaveOccurred(), "its own claim it may")
	st.UndoToMark()
	g.Expect(st.Commit(context.Background())).To(Succeed())
	g.Expect(b.ByKey(key(1))).To(HaveLen(1))
	g.Expect(b.ByKey(key(2))).To(BeEmpty())

	_, err = b.Release(context.Background(), ledger.Selector{Key: key(1)}) // no savepoint is left behind
	g.Expect(err).NotTo(HaveOccurred())
	_, _, err = st.Claim(ledger.Request{Pool: "default", Key: key(3), Pod: pod(3)})
	g.Expect(err).NotTo(HaveOccurred())
	st.UndoToMark()
	g.Expect(st.Empty()).To(BeTrue(), "a commit removes the savepoint")
}
