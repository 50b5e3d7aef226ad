// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

func TestBlocks(t *testing.T) {
	old := as(poolplan.Draining, pool("default", "10.1.0.0/16 24", "fd00:1::/48 64"))
	next, more := pool("pods-2", "10.2.0.0/16 23"), pool("a-pool", "10.3.0.0/16 25", "fd00:3::/48 60")
	for _, c := range []struct {
		name           string
		pools          []poolplan.Pool
		network        string
		id             uint32
		open, draining string
		errs           []string
	}{
		{"by name", []poolplan.Pool{next, more}, "default", 5, "[a-pool 10.3.2.128/25 a-pool fd00:3:0:50::/60 pods-2 10.2.10.0/23]", "[]", nil},
		{"default is the first", []poolplan.Pool{more, pool("default", "10.1.0.0/16 24")}, "default", 5,
			"[default 10.1.5.0/24 a-pool 10.3.2.128/25 a-pool fd00:3:0:50::/60]", "[]", nil},
		{"states", []poolplan.Pool{next, old, as(poolplan.Removed, more)}, "default", 5, "[pods-2 10.2.10.0/23]",
			"[default 10.1.5.0/24 default fd00:1:0:5::/64]", nil},
		{"networks", []poolplan.Pool{next, in("blue", more)}, "blue", 5, "[a-pool 10.3.2.128/25 a-pool fd00:3:0:50::/60]", "[]", nil},
		{"no such network", []poolplan.Pool{next}, "blue", 5, "[]", "[]", nil},
		{"the last ID", []poolplan.Pool{next}, "default", 128, "[pods-2 10.2.0.0/23]", "[]", nil},
		{"an ID that fits one of two pools, and one of two ranges", []poolplan.Pool{next, more, pool("c", "10.4.0.0/24 29", "fd00:4::/48 64")}, "default", 129,
			"[a-pool 10.3.64.128/25 a-pool fd00:3:0:810::/60]", "[]",
			[]string{"pool c: prefix of node 129 in 10.4.0.0/24 cut in /29", "pool pods-2: prefix of node 129 in 10.2.0.0/16 cut in /23"}},
		{"two that overlap", []poolplan.Pool{pool("b", "10.1.0.0/16 24"), pool("a", "10.1.128.0/17 24"), next}, "default", 5,
			"[pods-2 10.2.10.0/23]", "[a 10.1.133.0/24 b 10.1.5.0/24]",
			[]string{"pool a: 10.1.128.0/17 overlaps pool b, 10.1.0.0/16: nothing is allocated from it until one of them is removed",
				"pool b: 10.1.0.0/16 overlaps pool a, 10.1.128.0/17: nothing is allocated from it until one of them is removed"}},
		{"one overlaps what drains", []poolplan.Pool{old, pool("b", "10.1.0.0/17 24")}, "default", 5, "[]",
			"[default 10.1.5.0/24 default fd00:1:0:5::/64 b 10.1.5.0/24]", []string{"pool b: 10.1.0.0/17 overlaps pool default, 10.1.0.0/16"}},
		{"one overlaps what is removed", []poolplan.Pool{as(poolplan.Removed, more), pool("b", "10.3.0.0/16 24")}, "default", 5, "[b 10.3.5.0/24]", "[]", nil},
		{"a custom network does not stop the cluster's", []poolplan.Pool{next, in("a", pool("a", "10.2.0.0/16 24"))}, "default", 5, "[pods-2 10.2.10.0/23]", "[]", nil},
		{"but it is stopped", []poolplan.Pool{next, in("a", pool("a", "10.2.0.0/16 24"))}, "a", 5, "[]", "[a 10.2.5.0/24]",
			[]string{"pool a: 10.2.0.0/16 overlaps pool pods-2, 10.2.0.0/16"}},
		{"and so are two", []poolplan.Pool{in("b", pool("b", "10.2.0.0/16 24")), in("a", pool("a", "10.2.0.0/16 24"))}, "b", 5, "[]", "[b 10.2.5.0/24]",
			[]string{"pool b: 10.2.0.0/16 overlaps pool a, 10.2.0.0/16"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			before := slices.Clone(c.pools)
			open, draining, errs := poolplan.Blocks(c.pools, c.network, c.id)
			g.Expect(fmt.Sprint(open)).To(Equal(c.open))
			g.Expect(fmt.Sprint(draining)).To(Equal(c.draining))
			g.Expect(errs).To(HaveLen(len(c.errs)), "%v", errs)
			for i, want := range c.errs {
				g.Expect(errs[i]).To(MatchError(HavePrefix(want)))
			}
			g.Expect(c.pools).To(Equal(before), "what was given is not sorted in place")
		})
	}
	g := NewWithT(t)
	open, draining, _ := poolplan.Blocks([]poolplan.Pool{next, old}, "default", 5)
	g.Expect(open[0].Generation).To(Equal(uint64(1)))
	g.Expect(draining[0].Generation).To(Equal(uint64(2)))
	_, _, errs := poolplan.Blocks([]poolplan.Pool{next}, "default", 0)
	g.Expect(errs).To(ConsistOf(MatchError(addrspace.ErrNodeID)))
	_, _, errs = poolplan.Blocks([]poolplan.Pool{in("default", poolplan.Pool{Ranges: make([]poolplan.Range, 1)})}, "default", 1)
	g.Expect(errs).To(HaveLen(1), "a range that is none")
}

func TestLargest(t *testing.T) {
	g := NewWithT(t)
	small := pool("small", "10.9.0.0/24 28")
	g.Expect(poolplan.Largest(nil)).To(Equal(^uint32(0)))
	g.Expect(poolplan.Largest([]poolplan.Pool{pool("a", "10.1.0.0/16 24", "fd00::/48 64")})).To(Equal(uint32(256)))
	g.Expect(poolplan.Largest([]poolplan.Pool{pool("a", "10.1.0.0/16 24"), as(poolplan.Draining, small)})).To(Equal(uint32(16)), "leases may be there still")
	g.Expect(poolplan.Largest([]poolplan.Pool{pool("a", "10.1.0.0/16 24"), as(poolplan.Removed, small)})).To(Equal(uint32(256)))
	g.Expect(poolplan.Largest([]poolplan.Pool{in("blue", small), pool("a", "10.1.0.0/16 24")})).To(Equal(uint32(16)))
}
