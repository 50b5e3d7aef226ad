// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"
)

// TestOverlappingClaims compares the index with a look at all claims.
func TestOverlappingClaims(t *testing.T) {
	block := rapid.Custom(func(rt *rapid.T) netip.Prefix {
		base := rapid.SampledFrom([]string{"10.1.2.0", "10.1.3.0", "fd00::"}).Draw(rt, "base")
		a := netip.MustParseAddr(base)
		bytes := a.AsSlice()
		bytes[len(bytes)-1] = rapid.Byte().Draw(rt, "at")
		a, _ = netip.AddrFromSlice(bytes)
		return netip.PrefixFrom(a, a.BitLen()-rapid.IntRange(0, 12).Draw(rt, "size")).Masked()
	})
	order := func(a, b Claim) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	rapid.Check(t, func(rt *rapid.T) {
		g := NewWithT(rt)
		var all, want []Claim
		for i, p := range rapid.SliceOfN(block, 0, 30).Draw(rt, "claims") {
			all = append(all, Claim{Node: fmt.Sprint(i % 5), Block: p, Held: i%3 > 0})
		}
		p := block.Draw(rt, "block")
		for _, c := range all {
			if c.Block.Overlaps(p) {
				want = append(want, c)
			}
		}
		got := slices.Collect(indexOf(all).overlapping(p))
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		g.Expect(got).To(Equal(want))
	})
}
