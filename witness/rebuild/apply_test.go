// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rebuild_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness/rebuild"
)

// The agent ends the quarantines that it has begun, and knows them by their key: a
// quarantine under another key would keep the address for ever.
func TestAQuarantineOfARebuiltDatabaseCanEnd(t *testing.T) {
	g := NewWithT(t)
	l, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	a := netip.MustParseAddr("10.1.5.7")
	pools := []rebuild.Pool{{Name: "default", Blocks: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}}}
	plan := &rebuild.Plan{Quarantined: []rebuild.Unattributed{{Addr: a, Pool: "default", Reason: "a link has it"}}}
	g.Expect(rebuild.Apply(t.Context(), l, pools, plan)).To(Succeed())
	lease, ok := l.Lookup("default", a)
	g.Expect(ok).To(BeTrue())
	g.Expect(lease.State).To(Equal(ledger.Quarantined))
	g.Expect(lease.Key).To(Equal(ledger.Key{Network: ledger.WitnessNetwork, ContainerID: "kernel", IfName: "10.1.5.7"}))
	g.Expect(lease.Reason).To(ContainSubstring("a link has it"))
}
