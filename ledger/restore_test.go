// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

func TestCoolMakesAFreeAddressCoolSinceAnUptime(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"))
	g.Expect(b.Cool(ctx, "default", ip("10.1.5.3"), b.uptime-20*time.Second)).To(Succeed())
	g.Expect(b.Cool(ctx, "default", ip("10.1.5.2"), b.uptime-30*time.Second)).To(Succeed(), "in any order")
	x, _ := b.Lookup("default", ip("10.1.5.2"))
	g.Expect(x.Since).To(BeTemporally("==", b.wall.Add(-30*time.Second)))
	for _, c := range []struct {
		pool, addr string
		want       error
	}{
		{"default", "10.1.5.1", ledger.ErrTaken}, {"default", "10.1.5.3", ledger.ErrTaken},
		{"default", "10.1.5.0", ledger.ErrTaken}, {"default", "10.1.6.1", ledger.ErrOutside}, {"none", "10.1.5.4", ledger.ErrNoPool},
	} {
		g.Expect(b.Cool(ctx, c.pool, ip(c.addr), 0)).To(MatchError(c.want), "%s in %s", c.addr, c.pool)
	}
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1 10.1.5.2:cooling: 10.1.5.3:cooling:"))
	b.consistent()
	b.uptime += 30 * time.Second
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1 10.1.5.3:cooling:"))
	b.consistent()
	b.reopen()
	b.pool(defaultPool(), "10.1.5.0/29")
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1 10.1.5.3:cooling:"))
	b.uptime += 10 * time.Second
	g.Expect(b.list()).To(Equal("10.1.5.1:held:c1"))
	b.consistent()
}

func TestMoveKeepsTheLease(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	j := &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return journal.None }}
	b := open(g, j)
	to := ledger.Pool{Name: "to", CoolDown: time.Minute}
	b.pool(defaultPool(), "10.1.5.0/29", "10.1.6.0/29")
	b.pool(to, "10.1.5.0/30")
	for n := 1; n <= 4; n++ {
		b.claim(n)
	}
	b.release(2)
	before, _ := b.Lookup("default", ip("10.1.5.1"))
	g.Expect(b.free()).To(Equal([]uint64{2, 6, 4}))
	g.Expect(b.Move(ctx, "default", "to", ip("10.1.5.1"))).To(Succeed())
	before.Pool, before.Block = "to", pfx("10.1.5.0/30")
	g.Expect(b.ByKey(key(1))).To(Equal([]ledger.Lease{before}))
	g.Expect(b.free()).To(Equal([]uint64{3, 6, 3}))

	g.Expect(b.want(9, "10.1.5.1")).To(Succeed(), "it is free where it was")
	b.release(9)

	j.Plan = func(int64) journal.Fault { return journal.Fail }
	b.uptime += 20 * time.Second
	g.Expect(b.Move(ctx, "default", "to", ip("10.1.5.2"))).To(MatchError(journal.ErrInjected))
	j.Plan = func(int64) journal.Fault { return journal.None }
	for _, c := range []struct {
		from, to, addr string
		want           error
	}{
		{"default", "to", "10.1.5.5", ledger.ErrOutside}, {"default", "to", "10.1.5.4", ledger.ErrOutside},
		{"to", "default", "10.1.6.1", ledger.ErrOutside}, {"to", "to", "10.1.5.1", ledger.ErrTaken},
		{"none", "to", "10.1.5.4", ledger.ErrNoPool}, {"default", "none", "10.1.5.3", ledger.ErrNoPool},
	} {
		g.Expect(b.Move(ctx, c.from, c.to, ip(c.addr))).To(MatchError(c.want), "%s from %s to %s", c.addr, c.from, c.to)
	}
	st := b.Begin()
	_, err := st.Release(ledger.Selector{Key: key(3)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(b.Move(ctx, "default", "to", ip("10.1.5.3"))).To(MatchError(ledger.ErrBusy))
	st.Undo()

	g.Expect(b.Move(ctx, "default", "to", ip("10.1.5.3"))).To(Succeed())
	b.consistent()
	b.reopen()
	b.pool(defaultPool(), "10.1.5.0/29", "10.1.6.0/29")
	b.pool(to, "10.1.5.0/30")
	g.Expect(b.list()).To(Equal("10.1.5.1:cooling:c9 10.1.5.4:held:c4 10.1.5.1:held:c1 10.1.5.2:cooling:c2 10.1.5.3:held:c3"))
	b.uptime += 40 * time.Second
	g.Expect(b.list()).To(Equal("10.1.5.4:held:c4 10.1.5.1:held:c1 10.1.5.3:held:c3"))
	b.consistent()
}
