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

func TestFirstFreeReturnsThePoolOrTheRestOfTheCoolDown(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	policy := func(name string) ledger.Pool { return ledger.Pool{Name: name, CoolDown: time.Minute} }
	b.pool(policy("default"), "10.1.5.1/32")
	b.pool(policy("second"), "10.1.6.1/32", "fd00::1/128")

	pools := []string{"default", "none", "second"}
	expect := func(f ledger.Family, want string, rest time.Duration) {
		t.Helper()
		pool, wait, ok := b.FirstFree(f, pools)
		g.Expect(pool).To(Equal(want))
		g.Expect(wait).To(Equal(rest))
		g.Expect(ok).To(Equal(want != ""))
	}
	expect(ledger.IPv4, "default", 0)
	expect(ledger.IPv6, "second", 0)
	g.Expect(b.claim(1)).To(Equal("10.1.5.1"))
	expect(ledger.IPv4, "second", 0)
	_, _, err := b.Claim(t.Context(), ledger.Request{Pool: "second", Key: key(2), Families: []ledger.Family{ledger.IPv4}})
	g.Expect(err).NotTo(HaveOccurred())
	expect(ledger.IPv4, "", -1)

	b.release(2)
	b.uptime += 20 * time.Second
	b.release(1)
	expect(ledger.IPv4, "", 40*time.Second)
	b.uptime += 40 * time.Second
	expect(ledger.IPv4, "second", 0)
}

func TestFirstFreePassesOverDrainingBlocks(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(defaultPool(), "10.1.5.0/29")
	b.claim(1)
	b.claim(2)
	b.release(2)
	b.pool(defaultPool())
	_, wait, ok := b.FirstFree(ledger.IPv4, []string{"default"})
	g.Expect(ok).To(BeFalse())
	g.Expect(wait).To(BeNumerically("<", 0))
}
