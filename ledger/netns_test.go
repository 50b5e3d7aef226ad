// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
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
	g.Expect(leases[0].NetNS).To(Equal("/run/netns/a"), "it cannot be told that this is another namespace")

	b.reopen()
	g.Expect(b.Leases()[0].Wired).To(BeTrue(), "after a restart")
	g.Expect(b.Leases()[0].MAC).To(Equal("02:00:00:00:00:09"), "after a restart")
	g.Expect(b.Leases()[0].NetNS).To(Equal("/run/netns/a"), "after a restart")
}

// A runtime that makes a sandbox again repeats the ADD with its new namespace.
func TestARepeatedClaimReplacesTheNetworkNamespace(t *testing.T) {
	one := kv.NetNSID{Boot: "b", Dev: 4, Inode: 100, Cookie: 7}
	later := kv.NetNSID{Boot: "b", Dev: 4, Inode: 100, Cookie: 9}
	for name, c := range map[string]struct{ before, now, want kv.NetNSID }{
		"another one":                        {one, later, later},
		"the same one":                       {one, one, one},
		"one that is not known now":          {one, kv.NetNSID{}, one},
		"one that was not known":             {kv.NetNSID{}, one, one},
		"one that may be the same":           {one, kv.NetNSID{Boot: "b", Dev: 4, Inode: 100}, one},
		"another one, whose number is known": {one, kv.NetNSID{Boot: "b", Dev: 4, Inode: 101}, kv.NetNSID{Boot: "b", Dev: 4, Inode: 101}},
	} {
		for _, reclaiming := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reclaiming %t", name, reclaiming), func(t *testing.T) {
				g := NewWithT(t)
				b := open(g, journal.NewMemory())
				b.pool(ledger.Pool{Name: "default"}, "10.1.5.0/24")
				req := ledger.Request{Pool: "default", Key: key(1), Pod: pod(1), NetNS: "/run/netns/a", NetNSID: c.before}
				first, _, err := b.Claim(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				if reclaiming {
					g.Expect(b.StartExpiry(t.Context(), ledger.Selector{Key: key(1), Reason: "gone"},
						ledger.Expiry{Token: ledger.ReclaimToken, After: time.Hour})).To(Succeed())
				}
				req.NetNSID, req.NetNS = c.now, "/run/netns/b"

				st := b.Begin()
				again, fresh, err := st.Claim(req)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(fresh).To(BeFalse())
				g.Expect(again[0].NetNSID).To(Equal(c.want))
				st.Undo()
				g.Expect(b.ByKey(key(1))[0].NetNSID).To(Equal(c.before), "undone")

				again, _, err = b.Claim(t.Context(), req)
				g.Expect(err).NotTo(HaveOccurred())
				b.reopen()
				have := b.ByKey(key(1))
				g.Expect(have).To(HaveLen(1))
				g.Expect(have[0].NetNSID).To(Equal(c.want))
				g.Expect(have[0].NetNS == "/run/netns/b").To(Equal(c.want == c.now && c.before != c.now))
				g.Expect(have[0].State).To(Equal(ledger.Held))
				g.Expect(have[0].Generation).To(Equal(first[0].Generation))
				_, err = b.Release(t.Context(), ledger.Selector{Key: key(1)})
				g.Expect(err).NotTo(HaveOccurred(), "no stage owns it")
				g.Expect(again).To(HaveLen(1))
			})
		}
	}
}
