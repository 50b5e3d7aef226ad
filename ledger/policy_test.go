// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// A lease that is released after a restart, before the pool is set again, cools for the
// cool-down that the pool had before.
func TestTheLastCoolDownOfAPoolSurvivesARestart(t *testing.T) {
	withCoolDown := func(d time.Duration) ledger.Pool { return ledger.Pool{Name: "default", CoolDown: d} }
	for name, c := range map[string]struct {
		before func(b *bench)
		want   time.Duration
	}{
		"a minute": {func(b *bench) { b.pool(withCoolDown(time.Minute), "10.1.5.0/28") }, time.Minute},
		"none":     {func(b *bench) { b.pool(withCoolDown(0), "10.1.5.0/28") }, 0},
		"the default": {
			func(b *bench) { b.pool(withCoolDown(ledger.DefaultCoolDown), "10.1.5.0/28") },
			ledger.DefaultCoolDown,
		},
		"changed": {func(b *bench) {
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			b.pool(withCoolDown(time.Hour), "10.1.5.0/28")
		}, time.Hour},
		"changed to the default": {func(b *bench) {
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			b.pool(withCoolDown(ledger.DefaultCoolDown), "10.1.5.0/28")
		}, ledger.DefaultCoolDown},
		"a change that was undone": {func(b *bench) {
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			st := b.Begin()
			b.g.Expect(st.SetPool(withCoolDown(time.Hour))).To(Succeed())
			st.Undo()
		}, time.Minute},
		"a pool whose blocks came later": {func(b *bench) {
			b.pool(withCoolDown(time.Minute))
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
		}, time.Minute},
		"a pool whose blocks came again": {func(b *bench) {
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			b.pool(withCoolDown(time.Minute))
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
		}, time.Minute},
		"restarts": {func(b *bench) {
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			b.reopen()
			b.pool(withCoolDown(time.Minute), "10.1.5.0/28")
			b.reopen()
		}, time.Minute},
		"a pool that never had a policy": {func(b *bench) {
			st := b.Begin()
			b.g.Expect(st.SetBlocks("default", []netip.Prefix{pfx("10.1.5.0/28")})).To(Succeed())
			b.g.Expect(st.Commit(context.Background())).To(Succeed())
		}, ledger.DefaultCoolDown},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			b := open(g, journal.NewMemory())
			c.before(b)
			g.Expect(b.claim(1)).To(Equal("10.1.5.0"))
			b.reopen()
			b.release(1)
			if c.want == 0 {
				g.Expect(b.list()).To(BeEmpty())
				return
			}
			g.Expect(b.list()).To(Equal("10.1.5.0:cooling:c1"))
			b.uptime += c.want - time.Second
			g.Expect(b.rested(2)).NotTo(Equal("10.1.5.0"))
			b.uptime += time.Second
			g.Expect(b.rested(3)).To(Equal("10.1.5.0"))
			b.consistent()
		})
	}
}

// rested claims the lowest address that does not cool.
func (b *bench) rested(n int) string {
	l, err := b.ClaimOne(context.Background(), ledger.Request{
		Pool: "default", Key: key(n), Pod: pod(n), Order: ledger.Lowest, Rested: true,
	})
	b.g.Expect(err).NotTo(HaveOccurred())
	return l.Addr.String()
}

// A commit of a policy that fails leaves memory and journal as they were, or is repaired.
func TestACommitOfAPolicyFails(t *testing.T) {
	for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
		g, next := NewWithT(t), journal.None
		b := open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return next }})
		b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "10.1.5.0/28")
		next = fault
		g.Expect(b.tryPool(ledger.Pool{Name: "default", CoolDown: time.Hour}, "10.1.5.0/28")).To(MatchError(journal.ErrInjected))
		next = journal.None
		g.Expect(b.claim(1)).To(Equal("10.1.5.0"))
		b.consistent()
		b.reopen()
		b.release(1)
		b.uptime += time.Minute
		g.Expect(b.rested(2)).To(Equal("10.1.5.0"))
	}
}

// A pool that has lost its last block leaves no record behind.
func TestThePolicyOfAPoolWithoutBlocks(t *testing.T) {
	g, m := NewWithT(t), journal.NewMemory()
	b := open(g, m)
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "10.1.5.0/28", "fd00::/124")
	g.Expect(records(g, m)).To(ContainElement("Pdefault"))
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute}, "fd00::/124")
	g.Expect(records(g, m)).To(ContainElement("Pdefault"))
	b.pool(ledger.Pool{Name: "default", CoolDown: time.Minute})
	g.Expect(b.Begin().Commit(context.Background())).To(Succeed())
	b.pool(ledger.Pool{Name: "other", CoolDown: time.Minute}, "10.9.0.0/24") // writes what is due
	g.Expect(records(g, m)).NotTo(ContainElement("Pdefault"))
	b.consistent()
}

// records returns the keys that a journal holds.
func records(g Gomega, j ledger.Journal) (keys []string) {
	g.Expect(j.Load(context.Background(), func(r kvdb.KeyValue) error { keys = append(keys, r.Key); return nil })).To(Succeed())
	return keys
}
