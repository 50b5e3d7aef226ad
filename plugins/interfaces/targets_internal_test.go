// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"testing"

	. "github.com/onsi/gomega"
)

// It checks all small states.
func TestExcessNeverCreatesNeed(t *testing.T) {
	g := NewWithT(t)
	for total := range 24 {
		for used := range total + 1 {
			for warm := range 8 {
				for minimum := range 12 {
					targets := targets{warmIPs: warm, minimumIPs: minimum}
					c := Counts{Total: total, Assigned: used / 2, Cooling: used - used/2}
					short, over := targets.want(c)
					g.Expect(short == 0 || over == 0).To(BeTrue())
					c.Total += short - over
					short, over = targets.want(c)
					g.Expect([]int{short, over}).To(Equal([]int{0, 0}), "%+v %+v", targets, c)
				}
			}
		}
	}
}

func TestShortAndExcess(t *testing.T) {
	three := func(used int) Counts { return Counts{Total: 3, Assigned: used} }
	prefixes := func(n, used int) Counts {
		return Counts{Total: 16 * n, Assigned: used, Prefixes: n, FreePrefixes: n - (used+15)/16}
	}
	for _, c := range []struct {
		perInterface int
		targets      targets
		counts       Counts
		short        int
		excess       int
	}{
		{14, targets{warmInterfaces: 1, maxPods: 500}, Counts{}, 14, 0},
		{14, targets{warmInterfaces: 1, maxPods: 5}, Counts{}, 5, 0},
		{14, targets{}, Counts{}, 14, 0},
		{14, targets{warmIPs: 3}, Counts{}, 3, 0},
		{3, targets{warmInterfaces: 1, warmIPs: 1}, three(0), 0, 2},
		{3, targets{warmInterfaces: 1}, three(1), 3, 0},
		{3, targets{}, three(1), 0, 0},
		{3, targets{}, three(3), 3, 0},
		{3, targets{warmIPs: 5, maxPods: 3}, three(3), 0, 0},
		{3, targets{warmIPs: 2}, three(0), 0, 1},
		{0, targets{warmPrefixes: 1, prefixes: true}, prefixes(1, 0), 0, 0},
		{0, targets{warmPrefixes: 1, prefixes: true}, prefixes(1, 1), 1, 0},
		{0, targets{prefixes: true}, prefixes(1, 1), 0, 0},
		{0, targets{prefixes: true}, prefixes(1, 0), 0, 1},
		{0, targets{warmPrefixes: 1, maxPods: 4, prefixes: true}, prefixes(1, 3), 0, 0},
		{0, targets{warmIPs: 5, prefixes: true}, Counts{}, 1, 0},
		{0, targets{warmIPs: 5, prefixes: true}, prefixes(1, 0), 0, 0},
		{0, targets{warmIPs: 5, prefixes: true}, prefixes(2, 0), 0, 1},
	} {
		g := NewWithT(t)
		g.Expect(c.targets.short(c.counts, c.perInterface)).To(Equal(c.short), "short: %+v", c)
		g.Expect(c.targets.excess(c.counts)).To(Equal(c.excess), "excess: %+v", c)
	}
}

// An interface with unused addresses stays if the targets need them.
func TestNeedOfAnInterface(t *testing.T) {
	one := Counts{Total: 16, Prefixes: 1, FreePrefixes: 1}
	both := one.plus(Counts{Total: 16, Assigned: 1, Prefixes: 1})
	mixed := both.plus(Counts{Total: 1}) // a single address is left from before
	for _, c := range []struct {
		targets targets
		mine    Counts
		why     string
	}{
		{targets{prefixes: true}, one, ""},
		{targets{warmPrefixes: 1, prefixes: true}, one, "too few prefixes would be free"},
		{targets{warmIPs: 1, prefixes: true}, one, "too few addresses would be free"}, // rounded up to 16, and 15 would be free
		{targets{minimumIPs: 16, prefixes: true}, one, ""},
		{targets{minimumIPs: 17, prefixes: true}, one, "too few addresses would be left"},
		{targets{}, Counts{Total: 16, Assigned: 1}, "pods have addresses of it"},
		{targets{}, Counts{Total: 16, Cooling: 1}, "addresses of it are cooling"},
	} {
		NewWithT(t).Expect(c.targets.need(c.mine, both)).To(Equal(c.why), "%+v", c)
	}
	NewWithT(t).Expect(targets{minimumIPs: 17, prefixes: true}.need(one, mixed)).To(Equal("too few addresses would be left"),
		"17 are rounded up to two prefixes, and 17 would be left")
}
