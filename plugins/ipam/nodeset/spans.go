// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"net/netip"
	"slices"
)

// spans holds sorted prefixes, none of which is within another one. There may be
// thousands, and as many look-ups.
type spans []netip.Prefix

func spansOf(all []netip.Prefix) spans {
	sorted := slices.SortedFunc(slices.Values(all), netip.Prefix.Compare)
	return withoutInner(sorted, func(netip.Prefix, netip.Prefix) {})
}

// overlap reports whether p shares an address with one of them: p is within the one
// before its place, or the one after its place is within p.
func (s spans) overlap(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return i < len(s) && s[i].Overlaps(p) || i > 0 && s[i-1].Overlaps(p)
}

// contain reports whether p is one of them, or within one.
func (s spans) contain(p netip.Prefix) bool {
	i, found := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return found || i > 0 && s[i-1].Overlaps(p)
}

// withoutInner leaves out each block that lies within an earlier one, and reports it.
func withoutInner(sorted []netip.Prefix, report func(inner, outer netip.Prefix)) (all []netip.Prefix) {
	for _, p := range sorted {
		if n := len(all); n > 0 && all[n-1].Overlaps(p) {
			if all[n-1] != p {
				report(p, all[n-1])
			}
			continue
		}
		all = append(all, p)
	}
	return all
}

// Contains reports whether an address is of one of the blocks of Usable.Open.
func Contains(open []netip.Prefix, a netip.Addr) bool {
	return spans(open).contain(netip.PrefixFrom(a, a.BitLen()))
}
