// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness/findings"
)

// A repair that changes nothing must not say that it is done.
func TestRepairQuarantinesOnlyFreeAddresses(t *testing.T) {
	g := NewWithT(t)
	l, err := ledger.Open(t.Context(), journal.NewMemory(), ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	st := l.Begin()
	g.Expect(st.SetPool(ledger.Pool{Name: "default", ReserveEdges: true})).To(Succeed())
	g.Expect(st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")})).To(Succeed())
	g.Expect(st.Commit(t.Context())).To(Succeed())
	quarantine := func(a string) error {
		f := &findings.Finding{Number: "C202", Subject: findings.Subject{Addr: netip.MustParseAddr(a)}}
		return repairs{&assembly{ledger: l}}.Quarantine(t.Context(), "default", f)
	}
	g.Expect(quarantine("10.1.5.9")).To(Succeed())
	g.Expect(quarantine("10.1.5.9")).To(MatchError(ContainSubstring("it is reserved or has a lease")))
	g.Expect(quarantine("10.1.5.255")).To(MatchError(ContainSubstring("quarantine 10.1.5.255 of pool \"default\": it is reserved")))
	g.Expect(quarantine("10.9.9.9")).To(MatchError(ledger.ErrOutside))
}
