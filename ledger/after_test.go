// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// A claim may go on after an address, where the pool's order is another.
func TestClaimAfter(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default", Order: ledger.Lowest, ReserveEdges: true}, "10.1.5.0/29", "fd00:5::/125")
	after := func(n, a string) (all []string) {
		leases, _, err := b.Claim(context.Background(), ledger.Request{Pool: "default", Key: ledger.Key{ContainerID: n}, After: netip.MustParseAddr(a)})
		g.Expect(err).NotTo(HaveOccurred())
		for _, l := range leases {
			all = append(all, l.Addr.String())
		}
		return all
	}
	g.Expect(after("a", "10.1.5.3")).To(Equal([]string{"10.1.5.4", "fd00:5::1"}), "it is of one family")
	g.Expect(b.claim(1)).To(Equal("10.1.5.1 fd00:5::2"), "the lowest")
	g.Expect(after("b", "10.1.5.3")).To(Equal([]string{"10.1.5.5", "fd00:5::3"}))
	g.Expect(after("b", "10.1.5.6")).To(Equal([]string{"10.1.5.5", "fd00:5::3"}), "the same key, the same address")
	g.Expect(after("c", "10.1.5.5")).To(Equal([]string{"10.1.5.6", "fd00:5::4"}))
	g.Expect(after("d", "10.1.5.6")).To(Equal([]string{"10.1.5.2", "fd00:5::5"}), "from the beginning again")
	g.Expect(after("e", "10.9.9.9")).To(Equal([]string{"10.1.5.3", "fd00:5::6"}), "one of another block is as good as none")
}
