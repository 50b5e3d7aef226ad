// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
)

func TestAllYieldsCommittedLeases(t *testing.T) {
	g := NewWithT(t)
	b := open(g, ledger.NullJournal{})
	b.pool(ledger.Pool{Name: "a"}, "10.1.0.0/16", "fd00::/112")
	b.pool(ledger.Pool{Name: "b"}, "10.2.0.0/16")
	claim := func(st *ledger.Stage, pool string, i int) {
		_, _, err := st.Claim(ledger.Request{Pool: pool, Key: ledger.Key{Network: pool, ContainerID: fmt.Sprint(i)}})
		g.Expect(err).NotTo(HaveOccurred())
	}
	st := b.Begin()
	for i := range 1000 {
		claim(st, "a", i)
		claim(st, "b", i)
	}
	g.Expect(st.Commit(context.Background())).To(Succeed())
	staged := b.Begin()
	claim(staged, "a", 5000)
	all, want := map[netip.Addr]ledger.Lease{}, map[netip.Addr]ledger.Lease{}
	for l := range b.All() {
		g.Expect(all).NotTo(HaveKey(l.Addr))
		all[l.Addr] = *l
	}
	for _, l := range b.Leases() {
		want[l.Addr] = l
	}
	g.Expect(want).To(HaveLen(3000))
	g.Expect(all).To(Equal(want))
	for range b.All() {
		break // a caller may stop
	}
	staged.Undo()

	seen, next := map[ledger.Key]int{}, 5000
	for l := range b.All() {
		seen[l.Key]++
		if next < 9000 { // the tables grow meanwhile
			more := b.Begin()
			claim(more, "a", next)
			next++
			g.Expect(more.Commit(context.Background())).To(Succeed())
		}
	}
	for i := range 1000 {
		g.Expect(seen[ledger.Key{Network: "a", ContainerID: fmt.Sprint(i)}]).To(BeNumerically(">=", 2), "%d", i)
		g.Expect(seen[ledger.Key{Network: "b", ContainerID: fmt.Sprint(i)}]).To(BeNumerically(">=", 1), "%d", i)
	}
}
