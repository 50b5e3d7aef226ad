// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

func TestLeaseKeepsTheNetworkNamespaceOfItsFirstClaim(t *testing.T) {
	g := NewWithT(t)
	b := open(g, journal.NewMemory())
	b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/24")
	req := ledger.Request{Pool: "default", Key: key(1), Pod: pod(1), NetNS: "/run/netns/a", Wired: true, MAC: "02:00:00:00:00:09"}
	leases, fresh, err := b.Claim(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeTrue())
	g.Expect(leases[0].NetNS).To(Equal("/run/netns/a"))

	req.NetNS = "/run/netns/b"
	leases, fresh, err = b.Claim(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(fresh).To(BeFalse())
	g.Expect(leases[0].NetNS).To(Equal("/run/netns/a"), "a repeated claim writes nothing")

	b.reopen()
	g.Expect(b.Leases()[0].Wired).To(BeTrue(), "after a restart")
	g.Expect(b.Leases()[0].MAC).To(Equal("02:00:00:00:00:09"), "after a restart")
	g.Expect(b.Leases()[0].NetNS).To(Equal("/run/netns/a"), "after a restart")
}
