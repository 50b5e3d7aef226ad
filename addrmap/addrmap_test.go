// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func ctx() context.Context { return context.Background() }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// sourceOf returns the view of a real ledger.
func sourceOf(book *ledger.Ledger, ranges map[string][]netip.Prefix) *addrmap.Source {
	s := &addrmap.Source{
		Scope: addrmap.ScopeNode, Node: "node-a", Now: time.Now(), Policies: book.Policies(), Ranges: ranges,
		Exclusions: book.Exclusions(), Leases: book.All(), Lease: book.Lookup,
	}
	stats := book.Stats()
	for i := range stats {
		s.Blocks = append(s.Blocks, addrmap.BlockOf(&stats[i], "node-a"))
	}
	return s
}

// newBook opens a ledger with one pool.
func newBook(g Gomega, pool ledger.Pool, blocks ...netip.Prefix) *ledger.Ledger {
	book, err := ledger.Open(ctx(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	st := book.Begin()
	g.Expect(st.SetPool(pool)).To(Succeed())
	g.Expect(st.SetBlocks(pool.Name, blocks)).To(Succeed())
	g.Expect(st.Commit(ctx())).To(Succeed())
	return book
}

func claim(g Gomega, book *ledger.Ledger, name string, wanted ...netip.Addr) ledger.Lease {
	req := ledger.Request{
		Pool: "default", Key: ledger.Key{Network: "n", ContainerID: name, IfName: "eth0"},
		Pod: ledger.Pod{Namespace: "ns", Name: name}, Wanted: wanted,
	}
	if len(wanted) == 0 {
		req.Families = []ledger.Family{ledger.IPv4}
	}
	leases, _, err := book.Claim(ctx(), req)
	g.Expect(err).NotTo(HaveOccurred())
	return leases[0]
}

func TestEachAddressHasItsState(t *testing.T) {
	g := NewWithT(t)
	book := newBook(g, ledger.Pool{
		Name: "default", CoolDown: time.Hour, ReserveEdges: true, Exclude: []netip.Prefix{prefix("10.1.5.8/30")},
	}, prefix("10.1.5.0/24"))
	claim(g, book, "web", addr("10.1.5.2"))
	_, _, err := book.Claim(ctx(), ledger.Request{ // the policy reserves it, and the node has it
		Pool: "default", Purpose: ledger.ForInfra, Key: ledger.Key{Network: "infra", ContainerID: "x", IfName: "gateway"},
		Wanted: []netip.Addr{addr("10.1.5.9")},
	})
	g.Expect(err).NotTo(HaveOccurred())
	claim(g, book, "gone", addr("10.1.5.3"))
	_, err = book.Release(ctx(), ledger.Selector{Key: ledger.Key{Network: "n", ContainerID: "gone", IfName: "eth0"}})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = book.Quarantine(ctx(), "default", addr("10.1.5.77"), ledger.Key{Network: ledger.WitnessNetwork, ContainerID: "x", IfName: "y"}, "a host uses it")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(book.Exclude(ctx(), ledger.Exclusion{Pool: "default", Addr: addr("10.1.5.50"), Owner: "admin", Reason: "a printer"})).To(Succeed())

	part, err := sourceOf(book, nil).Part("default", prefix("10.1.5.0/24"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.CellLen).To(Equal(32))
	g.Expect(part.Cells).To(HaveLen(256))
	states := map[string]int{}
	for i := range part.Cells {
		states[addrmap.StateOf(&part.Cells[i])]++
	}
	g.Expect(states).To(Equal(map[string]int{"held": 2, "cooling": 1, "quarantined": 1, "excluded": 1, "reserved": 5, "free": 246}))
	g.Expect(part.Counts.Infra).To(BeEquivalentTo(1))
	g.Expect(part.Counts.Free).To(BeEquivalentTo(246))
	for i, want := range map[int]string{0: "reserved", 2: "held", 3: "cooling", 8: "reserved", 9: "held", 50: "excluded", 77: "quarantined", 78: "free", 255: "reserved"} {
		g.Expect(addrmap.StateOf(&part.Cells[i])).To(Equal(want), "address %d", i)
	}
	g.Expect(part.Cells[2].Lease.Pod).To(Equal("ns/web"))
	g.Expect(part.Cells[50].Lease.Reason).To(Equal("a printer"))
	g.Expect(part.Counts.Recent).To(BeEquivalentTo(4))
	g.Expect(*part.Occupied).To(Equal(prefix("10.1.5.0/25")))
}

// The counts of the cells add up to those of the ledger, for random pools and prefixes.
func TestCountsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		pool := ledger.Pool{Name: "default", CoolDown: time.Hour, ReserveEdges: rapid.Bool().Draw(t, "edges")}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 255), 0, 4).Draw(t, "exclude") {
			pool.Exclude = append(pool.Exclude, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 4, byte(n)}), rapid.IntRange(28, 32).Draw(t, "bits")))
		}
		first, second := prefix("10.1.4.0/25"), prefix("10.1.6.0/24")
		book := newBook(g, pool, first, second)
		for i := range rapid.IntRange(0, 60).Draw(t, "leases") {
			l := claim(g, book, fmt.Sprint("c", i))
			if rapid.IntRange(0, 3).Draw(t, "release") == 0 {
				_, err := book.Release(ctx(), ledger.Selector{Key: l.Key})
				g.Expect(err).NotTo(HaveOccurred())
			}
		}
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 127), 0, 5).Draw(t, "exclusions") {
			g.Expect(book.Exclude(ctx(), ledger.Exclusion{Pool: "default", Addr: netip.AddrFrom4([4]byte{10, 1, 4, byte(n)})})).To(Succeed())
		}
		if rapid.Bool().Draw(t, "drain") {
			st := book.Begin()
			g.Expect(st.SetBlocks("default", []netip.Prefix{second})).To(Succeed())
			g.Expect(st.Commit(ctx())).To(Succeed())
		}
		s := sourceOf(book, map[string][]netip.Prefix{"default": {prefix("10.1.0.0/16")}})
		want, size := localapi.AddressCounts{}, uint64(0)
		for _, b := range book.Stats() {
			want.Held, want.Cooling, want.Free = want.Held+uint64(b.Held), want.Cooling+uint64(b.Cooling), want.Free+b.Free
			size += b.Size
		}
		for _, p := range []netip.Prefix{prefix("10.1.0.0/16"), prefix("10.1.4.0/22"), prefix("10.0.0.0/8")} {
			part, err := s.Part("default", p)
			g.Expect(err).NotTo(HaveOccurred())
			c := part.Counts
			g.Expect([]uint64{c.Held, c.Cooling, c.Free}).To(Equal([]uint64{want.Held, want.Cooling, want.Free}), p.String())
			g.Expect(c.Held+c.Cooling+c.Free+c.Reserved+c.Excluded+c.Draining).To(Equal(size), p.String())
		}
		g.Expect(s.Overview().Pools[0].Counts.Held).To(Equal(want.Held))
	})
}

func TestBlocksOfOtherNodes(t *testing.T) {
	g := NewWithT(t)
	book := newBook(g, ledger.Pool{Name: "default"}, prefix("10.1.5.0/24"))
	s := sourceOf(book, map[string][]netip.Prefix{"default": {prefix("10.1.0.0/16")}})
	s.Blocks = append(s.Blocks, addrmap.Block{Pool: "default", Prefix: prefix("10.1.7.0/24"), Node: "node-b", Used: 9, Known: true})
	part, err := s.Part("default", prefix("10.1.0.0/16"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.CellLen).To(Equal(24), "a cell is a block")
	g.Expect(part.Cells).To(HaveLen(2))
	g.Expect(part.Cells[1].Cell).To(Equal(7))
	g.Expect(part.Cells[1].Node).To(Equal("node-b"))
	g.Expect(part.Cells[1].AddressCounts).To(Equal(localapi.AddressCounts{Other: 256, OtherHeld: 9}))
	g.Expect(s.Search("NODE-B").Hits).To(HaveLen(1))
}

func TestLargeIPv6Blocks(t *testing.T) {
	g := NewWithT(t)
	book := newBook(g, ledger.Pool{Name: "default", ReserveEdges: true}, prefix("fd00:0:0:5::/64"), prefix("fd00:0:0:6::/65"))
	claim(g, book, "web", addr("fd00:0:0:5::2"))
	s := sourceOf(book, map[string][]netip.Prefix{"default": {prefix("fd00::/48")}})
	part, err := s.Part("default", prefix("fd00::/48"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.CellLen).To(Equal(58))
	g.Expect(part.Counts.Free).To(BeNumerically(">", uint64(1<<63)), "the largest count instead of a wrong one")
	g.Expect(*part.Occupied).To(Equal(prefix("fd00:0:0:5::2/128")))
	part, err = s.Part("default", prefix("fd00:0:0:5::/118"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.Cells).To(HaveLen(1024))
	g.Expect(addrmap.StateOf(&part.Cells[2])).To(Equal("held"))
}

func TestSearch(t *testing.T) {
	g := NewWithT(t)
	book := newBook(g, ledger.Pool{Name: "default"}, prefix("10.1.5.0/24"))
	claim(g, book, "web-0", addr("10.1.5.2"))
	s := sourceOf(book, nil)
	first := func(text string) localapi.MapHit {
		h := s.Search(text)
		g.Expect(h.Hits).NotTo(BeEmpty(), text)
		return h.Hits[0]
	}
	g.Expect(first("10.1.5.2")).To(Equal(localapi.MapHit{Kind: "address", Text: "10.1.5.2", Pool: "default", Prefix: prefix("10.1.5.2/32"), State: "held"}))
	g.Expect(first("10.1.5.3").State).To(Equal("free"))
	g.Expect(first("10.1.5.64/26").Kind).To(Equal("prefix"))
	g.Expect(first("NS/WEB").Prefix).To(Equal(prefix("10.1.5.2/32")))
	g.Expect(first("node-a").Kind).To(Equal("node"))
	g.Expect(first("defau").Kind).To(Equal("pool"))
	g.Expect(s.Search("10.9.9.9").Hits).To(BeEmpty())
	g.Expect(s.Search("").Hits).To(BeEmpty())
}

func TestBadPartsAreRefused(t *testing.T) {
	g := NewWithT(t)
	s := sourceOf(newBook(g, ledger.Pool{Name: "default"}, prefix("10.1.5.0/24")), nil)
	_, err := s.Part("other", prefix("10.1.5.0/24"))
	g.Expect(err).To(MatchError(ContainSubstring(`pool "other" is unknown`)))
	_, err = s.Part("default", prefix("10.1.5.7/24"))
	g.Expect(err).To(MatchError(ContainSubstring("want 10.1.5.0/24")))
}

// manyNodes returns a source with 1000 blocks and 250 leases in each.
func manyNodes(g Gomega) *addrmap.Source {
	var blocks []netip.Prefix
	for i := range 1000 {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i / 256), byte(i % 256), 0}), 24))
	}
	book := newBook(g, ledger.Pool{Name: "default", ReserveEdges: true}, blocks...)
	st := book.Begin()
	for i := range 250_000 {
		_, _, err := st.Claim(ledger.Request{
			Pool: "default", Key: ledger.Key{Network: "pods", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"},
			Pod: ledger.Pod{Namespace: "a-namespace", Name: fmt.Sprintf("deployment-5d7c8b9f4-%06d", i)}, Families: []ledger.Family{ledger.IPv4},
		})
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(st.Commit(ctx())).To(Succeed())
	s := sourceOf(book, map[string][]netip.Prefix{"default": {prefix("10.0.0.0/14")}})
	for i := range s.Blocks {
		s.Blocks[i].Node = fmt.Sprintf("worker-%04d.eu-central.example.org", i)
	}
	return s
}

func TestAnswersAreBounded(t *testing.T) {
	g := NewWithT(t)
	s := manyNodes(g)
	size := func(v any) int {
		text, err := json.Marshal(v)
		g.Expect(err).NotTo(HaveOccurred())
		return len(text)
	}
	g.Expect(size(s.Overview())).To(BeNumerically("<", 4<<10))
	whole, err := s.Part("default", prefix("10.0.0.0/14"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(whole.Cells).To(HaveLen(1000))
	g.Expect(whole.Counts.Held).To(BeEquivalentTo(250_000))
	g.Expect(whole.Blocks).To(HaveLen(localapi.MapMaxBlocks))
	g.Expect(whole.More).To(Equal(1000 - localapi.MapMaxBlocks))
	g.Expect(size(whole)).To(BeNumerically("<", 160<<10))
	single, err := s.Part("default", prefix("10.0.4.0/22"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(size(single)).To(BeNumerically("<", 160<<10))
	block, err := s.Part("default", prefix("10.0.5.0/24"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(size(block)).To(BeNumerically("<", 100<<10))
	hits := s.Search("deployment")
	g.Expect(hits.Hits).To(HaveLen(localapi.MapMaxHits))
	g.Expect(hits.More).To(BeTrue())
	t.Logf("bytes: overview %d, 1000 blocks %d, 4 blocks %d, one block %d, search %d", size(s.Overview()), size(whole), size(single), size(block), size(hits))
}

func BenchmarkMap(b *testing.B) {
	g := NewWithT(b)
	s := manyNodes(g)
	for name, view := range map[string]func(){
		"overview": func() { s.Overview() },
		"pool":     func() { _, _ = s.Part("default", prefix("10.0.0.0/14")) },
		"block":    func() { _, _ = s.Part("default", prefix("10.0.5.0/24")) },
		"search":   func() { s.Search("no such pod") },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				view()
			}
		})
	}
}
