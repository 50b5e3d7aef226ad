// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

func TestMessages(t *testing.T) {
	for _, p := range []poolplan.Pool{
		pool("default", "10.1.0.0/16 24"),
		as(poolplan.Draining, pool("pods-2", "10.2.0.0/16 25", "fd00:2::/48 64")),
		as(poolplan.Removed, in("blue", pool("b.1", "fd00:2::/48 125"))),
	} {
		g := NewWithT(t)
		wire, err := proto.Marshal(p.Message())
		g.Expect(err).NotTo(HaveOccurred())
		m := &kv.Pool{}
		g.Expect(proto.Unmarshal(wire, m)).To(Succeed())
		back, err := poolplan.FromMessage(m)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(back.Equal(p)).To(BeTrue(), "%s is %s", p, back)
	}
	g := NewWithT(t)
	g.Expect(as(poolplan.Removed, pool("x", "10.1.0.0/16 24")).Message().Draining).To(BeTrue(), "a reader that knows only draining allocates nothing either")
	p, err := poolplan.FromMessage(&kv.Pool{Name: "x", Network: "y", Generation: 1, Removed: true, Ranges: []*kv.PoolRange{{Cidr: "10.1.0.0/16", OneNodePrefixLen: 24}}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(p.State).To(Equal(poolplan.Removed))
	g.Expect(p.String()).To(Equal("pool x of network y: 10.1.0.0/16 cut in /24, removed, generation 1"))
}

func TestEqualLooksAtEverything(t *testing.T) {
	g := NewWithT(t)
	p := pool("a", "10.1.0.0/16 24")
	for _, change := range []func(*poolplan.Pool){
		func(p *poolplan.Pool) { p.Name = "b" },
		func(p *poolplan.Pool) { p.Network = "b" },
		func(p *poolplan.Pool) { p.State = poolplan.Draining },
		func(p *poolplan.Pool) { p.Generation++ },
		func(p *poolplan.Pool) { p.Origin = "b" },
		func(p *poolplan.Pool) { p.Ranges = []poolplan.Range{rng("10.1.0.0/16 25")} },
		func(p *poolplan.Pool) { p.Ranges = []poolplan.Range{rng("10.2.0.0/16 24")} },
		func(p *poolplan.Pool) { p.Ranges = nil },
	} {
		q := p
		change(&q)
		g.Expect(p.Equal(q)).To(BeFalse(), "%s", q)
	}
	g.Expect(p.Equal(pool("a", "10.1.0.0/16 24"))).To(BeTrue())
}

func TestBadMessages(t *testing.T) {
	good := func() *kv.Pool {
		return &kv.Pool{Name: "pods", Network: "default", Generation: 3, Ranges: []*kv.PoolRange{{Cidr: "10.1.0.0/16", OneNodePrefixLen: 24}}}
	}
	for _, c := range []struct {
		name   string
		change func(*kv.Pool)
		want   []string
	}{
		{"names", func(m *kv.Pool) { m.Name, m.Network = "", "Blue" }, []string{
			`name: is missing: write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as "pods-2"`,
			`network: "Blue" is not a name: write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as "pods-2"`}},
		{"generation", func(m *kv.Pool) { m.Generation = 0 }, []string{`generation: "0" is not a generation: the first one is 1`}},
		{"no range", func(m *kv.Pool) { m.Ranges = nil }, []string{`ranges: is missing: a pool has one or two ranges`}},
		{"no network", func(m *kv.Pool) { m.Ranges[0].Cidr = "x" },
			[]string{`ranges[0].cidr: "x" is not a network: write address/length, such as 10.2.0.0/16 or fd00:2::/48`}},
		{"a length from nowhere", func(m *kv.Pool) { m.Ranges[0].OneNodePrefixLen = 1<<32 - 1 },
			[]string{`ranges[0].oneNodePrefixLen: "65536" leaves no room for network, gateway, a pod, NAT loopback and the last address: write 17 to 29`}},
		{"family twice", func(m *kv.Pool) {
			m.Ranges = append(m.Ranges, &kv.PoolRange{Cidr: "10.2.0.0/16", OneNodePrefixLen: 24})
		},
			[]string{`ranges[1].cidr: "10.2.0.0/16" is of the same family as ranges[0], 10.1.0.0/16: a pool has one range a family, so write another pool for it`}},
		{"a hole", func(m *kv.Pool) { m.Ranges[0] = nil },
			[]string{`ranges[0].cidr: is not a network: write address/length, such as 10.2.0.0/16 or fd00:2::/48`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			m := good()
			_, err := poolplan.FromMessage(m)
			g.Expect(err).NotTo(HaveOccurred())
			c.change(m)
			p, err := poolplan.FromMessage(m)
			g.Expect(lines(g, err)).To(Equal(c.want))
			g.Expect(err).To(MatchError(HavePrefix(fmt.Sprintf("stored pool %q: ", m.Name))))
			g.Expect(p).To(BeZero())
		})
	}
	g := NewWithT(t)
	_, err := poolplan.FromMessage(nil)
	g.Expect(err).To(HaveOccurred())
}

// A range is valid if and only if it has room for a pod.
func TestRangesHaveRoomForAPod(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]string{"10.0.0.0", "fd00::"}).Draw(t, "base")
		addr := netip.MustParseAddr(base)
		p := netip.PrefixFrom(addr, rapid.IntRange(0, addr.BitLen()).Draw(t, "bits")).Masked()
		length := rapid.IntRange(0, addr.BitLen()+2).Draw(t, "one node")
		_, err := poolplan.FromMessage(&kv.Pool{Name: "p", Network: "n", Generation: 1, Ranges: []*kv.PoolRange{{Cidr: p.String(), OneNodePrefixLen: uint32(length)}}})
		block, blockErr := addrspace.NodePrefix(p, length, 1)
		if (err == nil) != (blockErr == nil && addrplan.Capacity(block) > 0) {
			t.Fatalf("%s cut in /%d: %v, %v", p, length, err, blockErr)
		}
	})
}

func TestFromNetwork(t *testing.T) {
	for _, c := range []struct {
		name    string
		m       *kv.CustomNetwork
		want    string // the pool
		problem []string
	}{
		{"IPv4", &kv.CustomNetwork{Name: "blue", SubnetCidr: "10.5.0.0/16", SubnetOneNodePrefixLen: 24},
			"pool blue of network blue: 10.5.0.0/16 cut in /24, active, generation 1", nil},
		{"IPv6 alone has the one length", &kv.CustomNetwork{Name: "blue", SubnetCidr: " fd00:5::/48 ", SubnetOneNodePrefixLen: 64, SubnetOneNodePrefixLenIpv6: 60},
			"pool blue of network blue: fd00:5::/48 cut in /64, active, generation 1", nil},
		{"both", &kv.CustomNetwork{Name: "blue", SubnetCidr: "fd00:5::/48, 10.5.0.0/16", SubnetOneNodePrefixLen: 25, SubnetOneNodePrefixLenIpv6: 60},
			"pool blue of network blue: fd00:5::/48 cut in /60, 10.5.0.0/16 cut in /25, active, generation 1", nil},
		{"name", &kv.CustomNetwork{Name: "default", SubnetCidr: "10.5.0.0/16", SubnetOneNodePrefixLen: 24}, "",
			[]string{`name: "default" is the pod network of the cluster: choose another name`}},
		{"nothing", nil, "", []string{
			`name: is missing: write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as "pods-2"`,
			`subnetCIDR: is missing: write a network, such as 10.5.0.0/16, or one of each family with a comma between them`}},
		{"no networks", &kv.CustomNetwork{Name: "blue", SubnetCidr: "10.5.0.0,x"}, "", []string{
			`subnetCIDR: "10.5.0.0" is not a network: write address/length, with the length of its prefix, such as 10.5.0.0/16`,
			`subnetCIDR: "x" is not a network: write address/length, such as 10.2.0.0/16 or fd00:2::/48`}},
		{"lengths", &kv.CustomNetwork{Name: "blue", SubnetCidr: "10.5.0.0/16,fd00:5::/48", SubnetOneNodePrefixLenIpv6: 126}, "", []string{
			`subnetOneNodePrefixLen: "0" must be higher than the prefix length of 10.5.0.0/16: write 17 to 29`,
			`subnetOneNodePrefixLenIPv6: "126" leaves no room for network, gateway, a pod, NAT loopback and the last address: write 49 to 125`}},
		{"one family twice", &kv.CustomNetwork{Name: "blue", SubnetCidr: "10.5.0.0/16,10.6.0.0/16", SubnetOneNodePrefixLen: 24}, "",
			[]string{`subnetCIDR: "10.5.0.0/16,10.6.0.0/16" names two networks of one family: write one network, or one IPv4 and one IPv6 network`}},
		{"host bits", &kv.CustomNetwork{Name: "blue", SubnetCidr: "10.5.0.1/16", SubnetOneNodePrefixLen: 24}, "",
			[]string{`subnetCIDR: "10.5.0.1/16" has host bits set: write 10.5.0.0/16`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			p, err := poolplan.FromNetwork(c.m)
			if c.problem != nil {
				g.Expect(lines(g, err)).To(Equal(c.problem))
				g.Expect(p).To(BeZero())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(p.String()).To(Equal(c.want))
			g.Expect(p.Origin).To(Equal("network/blue"))
			_, err = poolplan.FromMessage(p.Message())
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}

func TestFromCluster(t *testing.T) {
	g := NewWithT(t)
	p := poolplan.FromCluster(addrplan.Cluster{Families: []addrplan.Family{
		{Pods: netip.MustParsePrefix("fd00:1::/48"), PodsOneNode: 64}, {Pods: netip.MustParsePrefix("10.1.0.0/16"), PodsOneNode: 24},
	}})
	g.Expect(p.String()).To(Equal("pool default of network default: fd00:1::/48 cut in /64, 10.1.0.0/16 cut in /24, active, generation 1"))
	g.Expect(p.Origin).To(Equal("contiv.conf"))
}

func TestMerge(t *testing.T) {
	g := NewWithT(t)
	active := pool("pods", "10.1.0.0/16 24")
	draining := as(poolplan.Draining, active)
	for _, c := range []struct {
		name                string
		known, stored, want poolplan.Pool
		write               bool
	}{
		{"the store has the same", active, active, active, false},
		{"the store is newer", active, draining, draining, false},
		{"the store is older", draining, active, draining, true},
		{"the store is empty", draining, poolplan.Pool{}, draining, true},
		{"nothing was known", poolplan.Pool{}, draining, draining, false},
		{"there is nothing", poolplan.Pool{}, poolplan.Pool{}, poolplan.Pool{}, false},
	} {
		p, write := poolplan.Merge(c.known, c.stored)
		g.Expect(p).To(Equal(c.want), c.name)
		g.Expect(write).To(Equal(c.write), c.name)
		g.Expect(poolplan.Conflict(c.known, c.stored)).To(Succeed(), c.name)
	}
	other := active
	other.State = poolplan.Draining
	p, write := poolplan.Merge(active, other)
	g.Expect(p).To(Equal(other), "the stored one counts on every node")
	g.Expect(write).To(BeFalse())
	err := poolplan.Conflict(active, other)
	g.Expect(err).To(MatchError(ContainSubstring("two pools of one name")))
	g.Expect(err).To(MatchError("two pools of one name: known is pool pods of network default: 10.1.0.0/16 cut in /24, active, generation 1; " +
		"stored is pool pods of network default: 10.1.0.0/16 cut in /24, draining, generation 1"))
	g.Expect(poolplan.Conflict(draining, pool("pods", "10.2.0.0/16 24"))).To(MatchError(ContainSubstring("two pools of one name")), "a range has changed")
	g.Expect(poolplan.Conflict(draining, in("blue", active))).To(MatchError(ContainSubstring("two pools of one name")), "the network has changed")
}

// Of the values that one pool had in its life, any order and grouping of merges
// ends in the newest.
func TestMergeIsAJoin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		history := []poolplan.Pool{{}, pool("pods", "10.1.0.0/16 24")}
		for range rapid.IntRange(0, 5).Draw(t, "changes") {
			next := history[len(history)-1]
			next.Generation++
			next.State = rapid.SampledFrom([]poolplan.State{poolplan.Active, poolplan.Draining, poolplan.Removed}).Draw(t, "state")
			history = append(history, next)
		}
		draw := rapid.SampledFrom(history)
		a, b, c := draw.Draw(t, "a"), draw.Draw(t, "b"), draw.Draw(t, "c")
		join := func(a, b poolplan.Pool) poolplan.Pool {
			p, write := poolplan.Merge(a, b)
			if write == p.Equal(b) {
				t.Fatalf("%s and stored %s make %s, write %v", a, b, p, write)
			}
			if err := poolplan.Conflict(a, b); err != nil {
				t.Fatal(err)
			}
			return p
		}
		if !join(a, b).Equal(join(b, a)) || !join(a, join(b, c)).Equal(join(join(a, b), c)) || !join(a, a).Equal(a) {
			t.Fatalf("no join: %s, %s, %s", a, b, c)
		}
		if want := max(a.Generation, b.Generation, c.Generation); join(a, join(b, c)).Generation != want {
			t.Fatalf("not generation %d", want)
		}
	})
}
