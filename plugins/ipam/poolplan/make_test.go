// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// summary is the changes, a line each.
func summary(p poolplan.Plan) []string {
	var all []string
	for _, c := range p.Changes {
		all = append(all, fmt.Sprintf("%s: %s %d -> %s %d", c.To.Name, c.From.State, c.From.Generation, c.To.State, c.To.Generation))
	}
	return all
}

const (
	add  = "pools: [{name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]"
	grow = "pools: [{name: default, state: draining}, {name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 23}]}]"
	gone = "pools: [{name: default, state: removed}]"
)

func TestLifeOfAPool(t *testing.T) {
	g := NewWithT(t)
	c := with(poolplan.FromCluster(cut("10.1.0.0/16 24"))).node(5, "default 1 open 12").node(6, "default 1 open 0")
	do := func(file string) []string {
		t.Helper()
		p := c.apply(t, file)
		g.Expect(p.Err()).NotTo(HaveOccurred())
		again := c.plan(t, file)
		g.Expect(again).To(BeZero(), "applied twice")
		return summary(p)
	}
	g.Expect(do(grow)).To(Equal([]string{"pods-2: active 0 -> active 1", "default: active 1 -> draining 2"}))
	g.Expect(c.Pools[1]).To(Equal(poolplan.Pool{Name: "pods-2", Network: "default", Ranges: []poolplan.Range{rng("10.2.0.0/16 23")}, Generation: 1, Origin: "apply"}))
	g.Expect(do("pools: [{name: default}]")).To(Equal([]string{"default: draining 2 -> active 3"}))
	g.Expect(do("pools: [{name: default, state: draining}]")).To(Equal([]string{"default: active 3 -> draining 4"}))
	c.Beats[0].Pools = []*kv.PoolUse{{Pool: "default", Generation: 4}}
	c.Beats[1].Pools = []*kv.PoolUse{{Pool: "default", Generation: 4}}
	g.Expect(do(gone)).To(Equal([]string{"default: draining 4 -> removed 5"}))
	g.Expect(c.Pools[0].Ranges).To(Equal([]poolplan.Range{rng("10.1.0.0/16 24")}), "the tombstone says what it was")
	g.Expect(c.Pools[0].Origin).To(Equal("contiv.conf"))
	g.Expect(do("pools: [{name: pods-3, ranges: [{cidr: 10.1.0.0/17, oneNodePrefixLen: 25}]}]")).To(Equal([]string{"pods-3: active 0 -> active 1"}),
		"what was removed is free")
}

// A file is applied as a whole: removals come first, whatever the
// order in the file.
func TestOrderOfChanges(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24"), as(poolplan.Draining, pool("old", "10.3.0.0/16 24")), as(poolplan.Draining, pool("back", "10.4.0.0/16 24")),
		as(poolplan.Draining, pool("also-old", "10.5.0.0/16 24")))
	entries := []string{"{name: default, state: draining}", "{name: back}", "{name: a, ranges: [{cidr: 10.3.0.0/16, oneNodePrefixLen: 20}]}",
		"{name: old, state: removed}", "{name: b, ranges: [{cidr: 10.5.0.0/16, oneNodePrefixLen: 20}]}", "{name: also-old, state: removed}"}
	want := []string{"also-old: draining 2 -> removed 3", "old: draining 2 -> removed 3", "a: active 0 -> active 1", "b: active 0 -> active 1",
		"back: draining 2 -> active 3", "default: active 1 -> draining 2"}
	for range 2 {
		p := c.plan(t, "pools: ["+strings.Join(entries, ", ")+"]")
		g.Expect(p.Err()).NotTo(HaveOccurred())
		g.Expect(summary(p)).To(Equal(want))
		slices.Reverse(entries)
	}
}

func TestPoolsThatAreNotNamedStay(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24"), as(poolplan.Draining, in("blue", pool("blue", "10.5.0.0/16 24")))).node(5)
	for _, file := range []string{"pools: []", "pools: [{name: default}]", "pools: [{name: default, network: default, state: active}]",
		"pools: [{name: blue, state: draining}]", "pools: [{name: blue, network: blue, state: draining, ranges: [{cidr: 10.5.0.0/16, oneNodePrefixLen: 24}]}]"} {
		g.Expect(c.plan(t, file)).To(BeZero(), file)
	}
	p := c.plan(t, "pools: [{name: blue}]")
	g.Expect(p.Err()).NotTo(HaveOccurred())
	g.Expect(p.Changes[0].To.Network).To(Equal("blue"), "a network that is left out is the pool's")
	g.Expect(p.Changes[0].Message().Generation).To(Equal(uint64(3)))
}

// rule is a file, and what is wrong with it in the cluster.
type rule struct {
	name string
	c    *cluster
	file string
	want []string
}

const instead = ": add a pool with addresses of its own, and drain this one, such as pools: "

func expectRules(t *testing.T, rules ...rule) {
	for _, c := range rules {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			before := fmt.Sprint(c.c.Pools)
			p := c.c.plan(t, c.file)
			g.Expect(fmt.Sprint(c.c.Pools)).To(Equal(before))
			if c.want == nil {
				g.Expect(p.Err()).NotTo(HaveOccurred())
				return
			}
			g.Expect(lines(g, p.Err())).To(Equal(c.want))
			g.Expect(p.Changes).To(BeEmpty(), "all or nothing")
			g.Expect(p.Moves).To(BeEmpty())
			for _, one := range c.want {
				if _, file, ok := strings.Cut(one, instead); ok {
					expectAccepted(t, c.c, one, "pools: "+file)
				}
			}
		})
	}
}

func TestRangesDoNotChange(t *testing.T) {
	v4 := pool("default", "10.1.0.0/16 24")
	dual := pool("default", "10.1.0.0/16 24", "fd00:1::/48 64")
	expectRules(t,
		rule{"a range is not changed", with(v4), "pools: [{name: default, ranges: [{cidr: 10.0.0.0/15, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].ranges[0].cidr: "10.0.0.0/15" is not the range of pool default, which is 10.1.0.0/16 cut in /24 and does not change` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/15", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"nor where the new one is free", with(v4), "pools: [{name: default, ranges: [{cidr: 10.7.0.0/16, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].ranges[0].cidr: "10.7.0.0/16" is not the range of pool default, which is 10.1.0.0/16 cut in /24 and does not change` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.7.0.0/16", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"nor is a length", with(dual), "pools: [{name: default, ranges: [{cidr: 10.1.0.0/16, oneNodePrefixLen: 25}, {cidr: 'fd00:1::/48', oneNodePrefixLen: 60}]}]", []string{
			`pools[0].ranges[0].oneNodePrefixLen: "25" is not the length of pool default, which is 10.1.0.0/16 cut in /24 and does not change`,
			`pools[0].ranges[1].oneNodePrefixLen: "60" is not the length of pool default, which is fd00:1::/48 cut in /64 and does not change` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/16", oneNodePrefixLen: 25}, {cidr: "fd00:1:1::/48", oneNodePrefixLen: 60}]}, {name: "default", state: draining}]`}},
		rule{"no family is added", with(in("blue", pool("blue-7", "10.5.0.0/16 24"))), "pools: [{name: blue-7, ranges: [{cidr: 10.5.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd00:5::/48', oneNodePrefixLen: 64}]}]", []string{
			`pools[0].ranges[1].cidr: "fd00:5::/48" is a range that pool blue-7 does not have, and ranges do not change` + instead +
				`[{name: "blue-2", network: "blue", ranges: [{cidr: "10.6.0.0/16", oneNodePrefixLen: 24}, {cidr: "fd00:5::/48", oneNodePrefixLen: 64}]}, {name: "blue-7", state: draining}]`}},
		rule{"no family is taken away", with(dual), "pools: [{name: default, state: draining, ranges: [{cidr: 'fd00:1::/48', oneNodePrefixLen: 64}]}, {name: x, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd00:2::/48', oneNodePrefixLen: 64}]}]", []string{
			`pools[0].ranges: is without 10.1.0.0/16 cut in /24 of pool default, and ranges do not change: write it, or remove the key` + instead +
				`[{name: "default-2", ranges: [{cidr: "fd00:1:1::/48", oneNodePrefixLen: 64}, {cidr: "10.3.0.0/16", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"what is suggested has room for all nodes, and may be what was removed", with(pool("default", "10.1.0.0/16 26"), as(poolplan.Removed, pool("gone", "10.2.0.0/15 26"))).node(512),
			"pools: [{name: default, ranges: [{cidr: 10.1.0.0/16, oneNodePrefixLen: 24}]}]", []string{
				`pools[0].ranges[0].oneNodePrefixLen: "24" is not the length of pool default, which is 10.1.0.0/16 cut in /26 and does not change` + instead +
					`[{name: "default-2", ranges: [{cidr: "10.2.0.0/15", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"the order of families is nothing", with(dual), "pools: [{name: default, ranges: [{cidr: 'fd00:1::/48', oneNodePrefixLen: 64}, {cidr: 10.1.0.0/16, oneNodePrefixLen: 24}]}]", nil},
		rule{"no private network is left to suggest", with(pool("default", "8.0.0.0/16 24")), "pools: [{name: default, ranges: [{cidr: 8.0.0.0/15, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].ranges[0].cidr: "8.0.0.0/15" is not the range of pool default, which is 8.0.0.0/16 cut in /24 and does not change` +
				`: add a pool with addresses of its own, and drain this one`}},
		rule{"the network is not changed", with(v4), "pools: [{name: default, network: blue}]", []string{
			`pools[0].network: "blue" is not the network of pool default, which is default and does not change: write that, or remove the key`}},
	)
}

func TestPoolsAreDisjoint(t *testing.T) {
	v4 := pool("default", "10.1.0.0/16 24")
	expectRules(t,
		rule{"overlap with a pool", with(v4, as(poolplan.Draining, in("blue", pool("blue", "10.5.0.0/16 24")))), `pools:
- {name: a, ranges: [{cidr: 10.1.128.0/17, oneNodePrefixLen: 24}]}
- {name: b, network: blue, ranges: [{cidr: 10.4.0.0/15, oneNodePrefixLen: 24}]}`, []string{
			`pools[0].ranges[0].cidr: "10.1.128.0/17" overlaps pool default, 10.1.0.0/16: give it addresses of its own, such as 10.2.0.0/17`,
			`pools[1].ranges[0].cidr: "10.4.0.0/15" overlaps pool blue, 10.5.0.0/16: give it addresses of its own, such as 10.6.0.0/15`}},
		rule{"overlap within the file", with(v4), `pools:
- {name: a, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd00:2::/48', oneNodePrefixLen: 64}]}
- {name: b, network: blue, ranges: [{cidr: 10.2.0.0/17, oneNodePrefixLen: 24}, {cidr: 'fd00:2::/47', oneNodePrefixLen: 64}]}`, []string{
			`pools[1].ranges[0].cidr: "10.2.0.0/17" overlaps pool a, 10.2.0.0/16: give it addresses of its own, such as 10.3.0.0/17`,
			`pools[1].ranges[1].cidr: "fd00:2::/47" overlaps pool a, fd00:2::/48: give it addresses of its own, such as fd00:2:2::/47`}},
		rule{"overlap with what is reserved", with(v4), "pools: [{name: a, ranges: [{cidr: 10.64.0.0/10, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].ranges[0].cidr: "10.64.0.0/10" overlaps serviceCIDR, 10.96.0.0/12: give it addresses of its own, such as 10.128.0.0/10`}},
		rule{"overlap with everything", with(pool("default", "10.0.0.0/8 24")), "pools: [{name: a, ranges: [{cidr: 10.64.0.0/10, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].ranges[0].cidr: "10.64.0.0/10" overlaps pool default, 10.0.0.0/8: give it addresses of its own`,
			`pools[0].ranges[0].cidr: "10.64.0.0/10" overlaps serviceCIDR, 10.96.0.0/12: give it addresses of its own`}},
		rule{"overlap of one that is opened again", with(as(poolplan.Draining, v4), pool("b", "10.1.0.0/17 24")), "pools: [{name: default}]", []string{
			`pools[0].state: "active" cannot be: 10.1.0.0/16 overlaps pool b, 10.1.0.0/17`}},
		rule{"what contiv.conf allowed is opened again", with(as(poolplan.Draining, pool("default", "192.168.0.0/16 24"))), "pools: [{name: default}]", nil},
		rule{"overlap with what is removed", with(v4, as(poolplan.Removed, pool("old", "10.2.0.0/16 24"))), add, nil},
	)
}

func TestEveryNodeFits(t *testing.T) {
	v4 := pool("default", "10.1.0.0/16 24")
	expectRules(t,
		rule{"a node does not fit", with(v4).node(5).node(257).node(300), add, []string{
			`pools[0].ranges[0].cidr: "10.2.0.0/16" has no block for node 300 (node-300) and 1 other: the largest node ID that fits is 256; write a network of /15 or less, or oneNodePrefixLen 25 or more`}},
		rule{"a node is the last of a longer length", with(v4).node(512), add, []string{
			`pools[0].ranges[0].cidr: "10.2.0.0/16" has no block for node 512 (node-512): the largest node ID that fits is 256; write a network of /15 or less, or oneNodePrefixLen 25 or more`}},
		rule{"a node fits no length", with(v4).node(5000), "pools: [{name: a, ranges: [{cidr: 10.2.0.0/20, oneNodePrefixLen: 26}]}]", []string{
			`pools[0].ranges[0].cidr: "10.2.0.0/20" has no block for node 5000 (node-5000): the largest node ID that fits is 64; write a network of /13 or less`}},
		rule{"a node does not fit any more", with(as(poolplan.Draining, pool("a", "10.2.0.0/24 28"))).node(17), "pools: [{name: a}]", []string{
			`pools[0].state: "active" cannot be: 10.2.0.0/24 has no block for node 17 (node-17): the largest node ID that fits is 16`}},
		rule{"the last ID fits", with(v4).node(256), add, nil},
		rule{"a released ID need not fit", released(with(v4).node(300)), add, nil},
	)
}

func TestNetworkDefaultKeepsItsFamilies(t *testing.T) {
	v4 := pool("default", "10.1.0.0/16 24")
	dual := pool("default", "10.1.0.0/16 24", "fd00:1::/48 64")
	expectRules(t,
		rule{"the last active pool", with(v4), "pools: [{name: default, state: draining}]", []string{
			`pools[0].state: "draining" leaves network default without an active pool for IPv4` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/16", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"the last active pool of a family", with(dual, pool("b", "10.3.0.0/16 24")), "pools: [{name: default, state: draining}]", []string{
			`pools[0].state: "draining" leaves network default without an active pool for IPv6` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/16", oneNodePrefixLen: 24}, {cidr: "fd00:1:1::/48", oneNodePrefixLen: 64}]}, {name: "default", state: draining}]`}},
		rule{"two at once are the last", with(v4, pool("b", "10.3.0.0/16 24")), "pools: [{name: default, state: draining}, {name: b, state: draining}]", []string{
			`pools[0].state: "draining" leaves network default without an active pool for IPv4` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/16", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`,
			`pools[1].state: "draining" leaves network default without an active pool for IPv4` + instead +
				`[{name: "b-2", ranges: [{cidr: "10.4.0.0/16", oneNodePrefixLen: 24}]}, {name: "b", state: draining}]`}},
		rule{"another network's pool is none", with(v4), "pools: [{name: default, state: draining}, {name: b, network: blue, ranges: [{cidr: 10.3.0.0/16, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].state: "draining" leaves network default without an active pool for IPv4` + instead +
				`[{name: "default-2", ranges: [{cidr: "10.2.0.0/16", oneNodePrefixLen: 24}]}, {name: "default", state: draining}]`}},
		rule{"the file adds another", with(v4), grow, nil},
		rule{"a custom network may be left empty", with(v4, in("blue", pool("blue", "10.5.0.0/16 24"))), "pools: [{name: blue, state: draining}]", nil},
		rule{"a custom network may have any families", with(v4), "pools: [{name: b, network: blue, ranges: [{cidr: 'fd00::/48', oneNodePrefixLen: 64}]}]", nil},
	)
}

func TestStatesFollowEachOther(t *testing.T) {
	v4 := pool("default", "10.1.0.0/16 24")
	expectRules(t,
		rule{"active is not removed", with(v4, pool("b", "10.3.0.0/16 24")), gone, []string{
			`pools[0].state: "removed" cannot follow active: write draining now, and removed when no node has anything of pool default`}},
		rule{"removed stays removed", with(pool("b", "10.3.0.0/16 24"), as(poolplan.Removed, v4)), "pools: [{name: default}, {name: default-2, ranges: [{cidr: 10.4.0.0/16, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].name: "default" is the name of a pool that was removed, and no pool has it again: choose another one, such as "default-3"; the addresses may be the same`}},
		rule{"with any content", with(as(poolplan.Removed, v4)), "pools: [{name: default, state: draining, network: blue, ranges: [{cidr: 10.4.0.0/16, oneNodePrefixLen: 24}]}]", []string{
			`pools[0].name: "default" is the name of a pool that was removed, and no pool has it again: choose another one, such as "default-2"; the addresses may be the same`}},
		rule{"removed is written again", with(as(poolplan.Removed, v4)), "pools: [{name: default, state: removed, ranges: [{cidr: 10.1.0.0/16, oneNodePrefixLen: 24}]}]", nil},
		rule{"unknown pools", with(v4, as(poolplan.Removed, pool("gone", "10.3.0.0/16 24"))), "pools: [{name: defaults, state: draining}, {name: x, state: removed}, {name: w}]", []string{
			`pools[0].state: "draining" is not a state of a pool that is not there: the pools are default; a new one is active`,
			`pools[1].state: "removed" is not a state of a pool that is not there: the pools are default; a new one is active`,
			`pools[2].ranges: is missing: there is no pool w yet; the pools are default`}},
		rule{"a cluster without pools", with(), "pools: [{name: w}]", []string{`pools[0].ranges: is missing: there is no pool w yet; the pools are none`}},
	)
}

// expectAccepted plans what a problem suggests.
func expectAccepted(t *testing.T, c *cluster, problem, file string) {
	p := c.plan(t, file)
	NewWithT(t).Expect(p.Err()).NotTo(HaveOccurred(), "suggested by %s", problem)
	NewWithT(t).Expect(p.Changes).To(HaveLen(2))
}

func released(c *cluster) *cluster {
	for _, n := range c.Nodes {
		n.Released = 1
	}
	return c
}

// A Wanted that Parse did not make is checked like one that it did.
func TestMakeChecksUncheckedInput(t *testing.T) {
	g := NewWithT(t)
	p := poolplan.Make(with().Situation, []poolplan.Wanted{{Name: "a", Ranges: make([]poolplan.Range, 1), State: 7}, {Name: "a"}})
	g.Expect(lines(g, p.Err())).To(Equal([]string{
		"pools[0].ranges[0].cidr: is not a network: write address/length, such as 10.2.0.0/16",
		`pools[0].state: "state 7" is not a state: write one of active, draining, removed`,
		`pools[1].name: "a" is the name of pools[0] too: keep one of them`}))
}

func TestAdmit(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24"), as(poolplan.Removed, pool("gone", "10.3.0.0/16 24")))
	admit := func(p poolplan.Pool) error { return poolplan.Admit(p, c.Pools, c.Reserved) }
	g.Expect(admit(in("blue", pool("blue", "10.3.0.0/16 24")))).To(Succeed())
	g.Expect(lines(g, admit(in("blue", pool("blue", "10.1.7.0/24 28"))))).To(Equal([]string{
		`ranges[0].cidr: "10.1.7.0/24" overlaps pool default, 10.1.0.0/16: give it addresses of its own, such as 10.2.0.0/24`}))
	g.Expect(lines(g, admit(in("blue", pool("gone", "10.4.0.0/16 30"))))).To(Equal([]string{
		`name: "gone" is the name of a pool that is there, of network default: choose another one`,
		`ranges[0].oneNodePrefixLen: "30" leaves no room for network, gateway, a pod, NAT loopback and the last address: write 17 to 29`}))
}

func TestRemovalWaitsForNodes(t *testing.T) {
	old := as(poolplan.Draining, pool("default", "10.1.0.0/16 24"))
	next := pool("pods-2", "10.2.0.0/16 24")
	for _, c := range []struct {
		name string
		c    *cluster
		want []string
	}{
		{"no node uses it", with(old, next).node(5, "default 2 closed 0", "pods-2 1 open 9"), nil},
		{"there are no nodes", with(old, next), nil},
		{"a lease", with(old, next).node(5, "default 2 closed 1").node(6, "default 2 closed 12"), []string{
			"pool default: node 5 (node-5) has 1 lease", "pool default: node 6 (node-6) has 12 leases"}},
		{"open", with(old, next).node(5, "default 2 open 0"), []string{"pool default: node 5 (node-5) has its block open, with 0 leases"}},
		{"behind", with(old, next).node(5, "default 1 closed 0"), []string{
			"pool default: node 5 (node-5) has not answered yet: it has followed generation 1 of 2, with 0 leases"}},
		{"no word", with(old, next).node(6).node(5, "pods-2 1 open 0"), []string{
			"pool default: node 5 (node-5) has not answered yet", "pool default: node 6 (node-6) has not answered yet"}},
		{"of two words the worse", with(old, next).node(5, "default 2 closed 0", "default 1 closed 0"), []string{
			"pool default: node 5 (node-5) has not answered yet: it has followed generation 1 of 2, with 0 leases"}},
		{"of two words the worse, in the other order", with(old, next).node(5, "default 1 closed 3", "default 2 closed 0"), []string{
			"pool default: node 5 (node-5) has not answered yet: it has followed generation 1 of 2, with 3 leases"}},
		{"released", released(with(old, next).node(5, "default 1 open 7")), nil},
		{"the word of another instance", change(with(old, next).node(5, "default 2 closed 0"), func(_ *kv.NodeRecord, b *kv.NodeBeat) { b.Instance = "other" }),
			[]string{"pool default: node 5 (node-5) has not answered yet"}},
		{"the word of an earlier claim", change(with(old, next).node(5, "default 2 closed 0"), func(_ *kv.NodeRecord, b *kv.NodeBeat) { b.Generation = 1 }),
			[]string{"pool default: node 5 (node-5) has not answered yet"}},
		{"no beat", change(with(old, next).node(5), func(_ *kv.NodeRecord, b *kv.NodeBeat) { b.Id = 6 }),
			[]string{"pool default: node 5 (node-5) has not answered yet"}},
		{"superseded", change(with(old, next).node(5, "default 2 closed 3"), func(n *kv.NodeRecord, _ *kv.NodeBeat) { n.SupersededBy = 9 }),
			[]string{"pool default: node 5 (node-5) has 3 leases; node ID 9 has its name now, so release node ID 5 if it is gone"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			p := c.c.plan(t, gone)
			if c.want == nil {
				g.Expect(p.Err()).NotTo(HaveOccurred())
				g.Expect(summary(p)).To(Equal([]string{"default: draining 2 -> removed 3"}))
				return
			}
			g.Expect(errors.Is(p.Err(), poolplan.ErrBlocked)).To(BeTrue())
			g.Expect(p.Err().Error()).To(Equal("what nodes have stands in the way:\n" + strings.Join(c.want, "\n")))
			g.Expect(p.Changes).To(BeEmpty())
			g.Expect(c.c.plan(t, "pools: [{name: default, state: draining}]")).To(BeZero(), "a plan without changes has no blockers")
			g.Expect(c.c.plan(t, "pools: [{name: default}]").Err()).NotTo(HaveOccurred(), "other changes are not blocked")
		})
	}
}

func change(c *cluster, f func(*kv.NodeRecord, *kv.NodeBeat)) *cluster {
	f(c.Nodes[0], c.Beats[0])
	return c
}

// A node that knows more than the store has says that the store was set back:
// what has been forgotten may overlap, or contradict, anything.
func TestNothingIsChangedInAStoreThatWasSetBack(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24"), pool("b", "10.3.0.0/16 24")).node(7, "b 4 closed 0", "lost 2 open 3", "default 1 open 1").node(5, "default 2 closed 0")
	want := "what nodes have stands in the way:\n" +
		"pool default: node 5 (node-5) has followed generation 2, and 1 is stored: the store was set back; wait until the node has put it back\n" +
		"pool b: node 7 (node-7) has followed generation 4, and 1 is stored: the store was set back; wait until the node has put it back\n" +
		"pool lost: node 7 (node-7) knows this pool, which is not stored: the store was set back; wait until the node has put it back"
	for _, file := range []string{add, "pools: [{name: b, state: draining}]"} {
		g.Expect(c.plan(t, file).Err()).To(MatchError(want), file)
	}
	g.Expect(c.plan(t, "pools: [{name: b}]").Err()).NotTo(HaveOccurred())
	g.Expect(released(c).plan(t, add).Err()).NotTo(HaveOccurred())

	removed := as(poolplan.Removed, pool("a", "10.1.0.0/16 24"))
	g.Expect(with(removed).node(5, "a 3 closed 2").node(6, "a 2 open 0").node(7, "a 2 closed 0").plan(t, add).Err()).To(MatchError("what nodes have stands in the way:\n" +
		"pool a: node 5 (node-5) has 2 leases of this pool, which is removed: the store was set back; wait until they are gone\n" +
		"pool a: node 6 (node-6) has 0 leases of this pool, which is removed: the store was set back; wait until they are gone"))

	g.Expect(with().node(5, "lost 0 closed 0").plan(t, add).Blocks).To(HaveLen(1), "it is not stored, whatever generation was reported")

	c = with(as(poolplan.Draining, pool("a", "10.1.0.0/16 24"))).node(5, "a 3 open 2")
	g.Expect(c.plan(t, "pools: [{name: a, state: removed}]").Blocks).To(HaveLen(1), "it is reported once")
}

func TestMoves(t *testing.T) {
	g := NewWithT(t)
	c := with(pool("default", "10.1.0.0/16 24", "fd00:1::/48 64"), as(poolplan.Draining, pool("back", "10.4.0.0/16 24")), pool("keep", "10.5.0.0/24 28"),
		in("blue", pool("blue", "10.6.0.0/16 24"))).node(17, "default 1 open 2").node(6)
	c.Nodes = append(c.Nodes, &kv.NodeRecord{Id: 9, Released: 1})
	p := c.plan(t, `pools:
- {name: back}
- {name: default, state: draining}
- {name: blue, state: draining}
- {name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 23}, {cidr: 'fd00:2::/48', oneNodePrefixLen: 64}]}`)
	g.Expect(p.Err()).NotTo(HaveOccurred())
	prefixes := func(all ...string) (ps []netip.Prefix) {
		for _, s := range all {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	block := func(pool, prefix string, generation uint64) poolplan.Block {
		return poolplan.Block{Pool: pool, Prefix: netip.MustParsePrefix(prefix), Generation: generation}
	}
	g.Expect(p.Moves).To(Equal([]poolplan.Move{
		{NodeID: 6, NodeName: "node-6", Pool: "default", Drains: prefixes("10.1.6.0/24", "fd00:1:0:6::/64"),
			Opens: []poolplan.Block{block("back", "10.4.6.0/24", 3), block("pods-2", "10.2.12.0/23", 1), block("pods-2", "fd00:2:0:6::/64", 1)},
			Keeps: []poolplan.Block{block("keep", "10.5.0.96/28", 1)}},
		{NodeID: 17, NodeName: "node-17", Pool: "default", Drains: prefixes("10.1.17.0/24", "fd00:1:0:11::/64"), Leases: 2, Followed: 1,
			Opens: []poolplan.Block{block("back", "10.4.17.0/24", 3), block("pods-2", "10.2.34.0/23", 1), block("pods-2", "fd00:2:0:11::/64", 1)}},
		{NodeID: 6, NodeName: "node-6", Pool: "blue", Drains: prefixes("10.6.6.0/24")},
		{NodeID: 17, NodeName: "node-17", Pool: "blue", Drains: prefixes("10.6.17.0/24")},
	}))
}
