// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// TestTableAgreesWithAModel puts leases in and takes them out, some of them under
// one hash, and compares the table with lists.
func TestTableAgreesWithAModel(t *testing.T) {
	for seed := range uint64(20) {
		g, rnd := NewWithT(t), rand.New(rand.NewPCG(seed, 3))
		tab, model := table{by: byKey}, map[uint32][]*lease{} // the newest first
		for step := range 2000 {
			h := rnd.Uint32() >> (rnd.Uint32() % 30)
			if grow := step%1000 < 600; grow == (rnd.IntN(4) > 0) {
				x := &lease{gen: uint64(step)}
				tab.put(x, h)
				model[h] = slices.Insert(model[h], 0, x)
			} else if all := model[h]; len(all) > 0 {
				i := rnd.IntN(len(all))
				tab.remove(all[i])
				model[h] = slices.Delete(all, i, i+1)
			}
			if step%100 > 0 {
				continue
			}
			n := 0
			for h, want := range model {
				n += len(want)
				var found []*lease
				for x := tab.first(h); x != nil; x = tab.next(x) {
					found = append(found, x)
				}
				g.Expect(found).To(HaveExactElements(want))
			}
			g.Expect(tab.n).To(Equal(n))
			g.Expect(slices.Collect(tab.all())).To(HaveLen(n))
			g.Expect(tab.first(h | 1<<31 | 1)).To(Or(BeNil(), HaveField("gen", BeNumerically(">=", 0))))
		}
		for x := range tab.all() { // while it is looked at
			tab.remove(x)
		}
		g.Expect(tab.n).To(BeZero())
		g.Expect(slices.Collect(tab.all())).To(BeEmpty())
	}
}

// TestHashAddrSpreadsAddresses looks for the longest chain of addresses that are a
// certain distance apart, as interfaces are.
func TestHashAddrSpreadsAddresses(t *testing.T) {
	g := NewWithT(t)
	for _, first := range []string{"10.0.0.5", "fd00::", "2001:db8:1:2:8000::"} {
		for _, apart := range []int{1, 2, 8, 16, 64, 256, 4096, 65536} {
			tab := table{by: byAddr}
			b := netip.MustParseAddr(first).As16()
			for range 4096 {
				tab.put(&lease{}, hashAddr(netip.AddrFrom16(b).Unmap()))
				for i, n := 15, apart; n > 0 && i >= 0; i-- {
					n += int(b[i])
					b[i], n = byte(n), n>>8
				}
			}
			longest := 0
			for _, x := range tab.heads {
				n := 0
				for ; x != nil; x = x.chains[byAddr].next {
					n++
				}
				longest = max(longest, n)
			}
			g.Expect(longest).To(BeNumerically("<=", 24), "%s, %d apart", first, apart)
		}
	}
}
