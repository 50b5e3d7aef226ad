// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

func TestTargetState(t *testing.T) {
	for _, c := range []struct {
		blocks      []string
		short, over int
	}{
		{nil, 5, 0},
		{[]string{"1.1.1.1", "1.1.1.2"}, 3, 0},
		{[]string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4", "1.1.1.5"}, 0, 0},
	} {
		g := NewWithT(t)
		ds, _ := store(Options{})
		add(g, ds, "eni-1", 0)
		for _, a := range c.blocks {
			g.Expect(ds.AddIPv4AddressToStore("eni-1", a)).To(Succeed())
		}
		short, over := Targets{WarmIP: 5}.Want(ds.GetIPStats(ledger.IPv4), false)
		g.Expect([]int{short, over}).To(Equal([]int{c.short, c.over}), "%v", c.blocks)
	}
	for n, want := range [][]int{{1, 0}, {0, 0}, {0, 1}} {
		g := NewWithT(t)
		ds, _ := store(Options{PrefixMode: true})
		add(g, ds, "eni-1", 0)
		for _, p := range []string{"10.0.0.0/28", "10.0.0.16/28"}[:n] {
			g.Expect(ds.AddPrefix("eni-1", netip.MustParsePrefix(p))).To(Succeed())
		}
		short, over := Targets{WarmIP: 5}.Want(ds.GetIPStats(ledger.IPv4), true)
		g.Expect([]int{short, over}).To(Equal(want), "%d prefixes", n)
	}
}

// It checks all small states.
func TestExcessNeverCreatesNeed(t *testing.T) {
	g := NewWithT(t)
	for total := range 24 {
		for used := range total + 1 {
			for warm := range 8 {
				for minimum := range 12 {
					targets := Targets{WarmIP: warm, MinimumIP: minimum}
					s := Stats{Total: total, Assigned: used / 2, Cooling: used - used/2}
					short, over := targets.Want(s, false)
					g.Expect(short == 0 || over == 0).To(BeTrue())
					s.Total += short - over
					short, over = targets.Want(s, false)
					g.Expect([]int{short, over}).To(Equal([]int{0, 0}), "%+v %+v", targets, s)
				}
			}
		}
	}
}

func TestShrink(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2", "eni-2", 1, "1.1.2.1", "1.1.2.2")
	assign(g, ds, 1)
	assign(g, ds, 2)
	over := func() int { _, n := Targets{WarmIP: 1}.Want(ds.GetIPStats(ledger.IPv4), false); return n }
	g.Expect(over()).To(Equal(1))
	back, err := ds.Shrink(Targets{WarmIP: 1}, ledger.IPv4)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(back).To(Equal(map[string][]netip.Prefix{"eni-2": {netip.MustParsePrefix("1.1.2.2/32")}}))
	g.Expect(over()).To(BeZero())
	back, err = ds.Shrink(Targets{WarmIP: 1}, ledger.IPv4)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(back).To(BeEmpty())
	stats(g, ds, 3, 2, 0)
}

func TestTooLowAndTooHigh(t *testing.T) {
	three := func(used int) Stats { return Stats{Total: 3, Assigned: used} }
	prefix := func(used int) Stats {
		s := Stats{Total: 16, Assigned: used, Prefixes: 1}
		if used == 0 {
			s.FreePrefixes = 1
		}
		return s
	}
	for _, c := range []struct {
		perENI   int
		targets  Targets
		stats    Stats
		prefixes bool
		low      bool
	}{
		{14, Targets{WarmENI: 1, MaxPods: 500}, Stats{}, false, true},
		{14, Targets{}, Stats{}, false, true},
		{14, Targets{WarmIP: 3}, Stats{}, false, true},
		{3, Targets{WarmENI: 1, WarmIP: 1}, three(0), false, false},
		{3, Targets{WarmENI: 1}, three(1), false, true},
		{3, Targets{}, three(1), false, false},
		{3, Targets{WarmENI: 1}, three(3), false, true},
		{3, Targets{}, three(3), false, true},
		{3, Targets{WarmIP: 5, MaxPods: 3}, three(3), false, false},
		{0, Targets{WarmPrefix: 1}, prefix(0), true, false},
		{0, Targets{WarmPrefix: 1}, prefix(1), true, true},
		{0, Targets{}, prefix(1), true, false},
		{0, Targets{WarmPrefix: 1, MaxPods: 4}, prefix(3), true, false},
	} {
		g := NewWithT(t)
		g.Expect(c.targets.TooLow(c.stats, c.prefixes, c.perENI)).To(Equal(c.low), "%+v", c)
		g.Expect(c.low && c.targets.TooHigh(c.stats, c.prefixes)).To(BeFalse(), "%+v", c)
	}
	g := NewWithT(t)
	g.Expect(Targets{WarmENI: 1}.TooHigh(three(0), false)).To(BeFalse(), "RemoveUnusedENI returns whole interfaces")
	g.Expect(Targets{WarmIP: 2}.TooHigh(three(0), false)).To(BeTrue())
	g.Expect(Targets{}.TooHigh(prefix(0), true)).To(BeTrue())
	g.Expect(Targets{WarmPrefix: 1}.TooHigh(prefix(0), true)).To(BeFalse())
}

// A store grows and shrinks by its targets until nothing changes, and is compared
// with the published tables.
func TestSteadyStates(t *testing.T) {
	for _, c := range []struct {
		targets  Targets
		perENI   int
		prefixes bool
		pods     []int
		want     []int // addresses, or prefixes
	}{
		{Targets{WarmENI: 1}, 3, false, []int{0, 5, 9}, []int{3, 9, 9}},
		{Targets{WarmIP: 1, MinimumIP: 1}, 3, false, []int{0, 5, 9}, []int{1, 6, 9}},
		{Targets{WarmIP: 2, MinimumIP: 5}, 3, false, []int{0, 5, 9}, []int{5, 7, 9}},
		{Targets{WarmENI: 1}, 49, false, []int{0, 3, 95}, []int{49, 98, 147}},
		{Targets{WarmIP: 5, MinimumIP: 10}, 49, false, []int{0, 7, 15, 45}, []int{10, 12, 20, 50}},
		{Targets{WarmPrefix: 1}, 3, true, []int{0, 5, 16, 17, 58}, []int{1, 2, 2, 3, 5}},
		{Targets{WarmIP: 1, MinimumIP: 1}, 3, true, []int{0, 5, 17, 58}, []int{1, 1, 2, 4}},
		{Targets{WarmIP: 7, MinimumIP: 20}, 3, true, []int{0, 5, 17, 58}, []int{2, 2, 2, 5}},
		{Targets{WarmIP: 5, MinimumIP: 10}, 49, true, []int{0, 7, 15, 45}, []int{1, 1, 2, 4}},
	} {
		for i, pods := range c.pods {
			most := 3 * c.perENI // three interfaces
			g := NewWithT(t)
			unit := 1
			if c.prefixes {
				unit = 16
			}
			n := 0
			state := func() Stats {
				s := Stats{Total: n * unit, Assigned: min(pods, n*unit)}
				if c.prefixes { // densely packed
					s.Prefixes, s.FreePrefixes = n, n-(s.Assigned+15)/16
				}
				return s
			}
			for range 1000 {
				switch s := state(); {
				case n < most && c.targets.TooLow(s, c.prefixes, c.perENI):
					if n++; !c.prefixes && !c.targets.ByIP() {
						n += c.perENI - 1 // a whole interface
					}
				case c.targets.TooHigh(s, c.prefixes):
					n--
				}
			}
			g.Expect(n).To(Equal(c.want[i]), "%+v, %d pods", c, pods)
		}
	}
}

func one(ips ...string) (all []netip.Prefix) {
	for _, ip := range ips {
		a := netip.MustParseAddr(ip)
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	return all
}

func TestReconcile(t *testing.T) {
	both, first := one("1.1.1.1", "1.1.1.2"), one("1.1.1.1")
	eni := func(id string, device int, blocks []netip.Prefix) Attachment {
		return Attachment{Interface{ID: id, Device: device}, blocks}
	}
	for name, c := range map[string]struct {
		seen  []Attachment
		cloud map[string][]netip.Prefix
		fails bool
		want  map[string]int
		err   bool
	}{
		"nothing new":                   {seen: []Attachment{eni("eni-1", 0, both)}, want: map[string]int{"eni-1": 2}},
		"an address is gone":            {seen: []Attachment{eni("eni-1", 0, first)}, cloud: map[string][]netip.Prefix{"eni-1": first}, want: map[string]int{"eni-1": 1}},
		"the cloud does not answer":     {seen: []Attachment{eni("eni-1", 0, first)}, fails: true, want: map[string]int{"eni-1": 2}, err: true},
		"the cloud says it is there":    {seen: []Attachment{eni("eni-1", 0, first)}, cloud: map[string][]netip.Prefix{"eni-1": both}, want: map[string]int{"eni-1": 2}},
		"nothing is seen":               {seen: nil, want: map[string]int{"eni-1": 2}, err: true},
		"an interface is new":           {seen: []Attachment{eni("eni-1", 0, both), eni("eni-2", 1, one("1.1.2.1"))}, want: map[string]int{"eni-1": 2, "eni-2": 1}},
		"an interface has vanished":     {seen: []Attachment{eni("eni-2", 1, one("1.1.2.1"))}, cloud: map[string][]netip.Prefix{}, want: map[string]int{"eni-2": 1}},
		"an interface is seen too late": {seen: []Attachment{eni("eni-2", 1, one("1.1.2.1"))}, cloud: map[string][]netip.Prefix{"eni-1": both}, want: map[string]int{"eni-1": 2, "eni-2": 1}},
		"other addresses, as many":      {seen: []Attachment{eni("eni-1", 0, one("1.1.1.1", "1.1.1.3"))}, cloud: map[string][]netip.Prefix{"eni-1": one("1.1.1.1", "1.1.1.3")}, want: map[string]int{"eni-1": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			ds, _ := store(Options{})
			add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
			assign(g, ds, 1)
			err := ds.Reconcile(context.Background(), c.seen, func(_ context.Context, id string) ([]netip.Prefix, bool, error) {
				if c.fails {
					return nil, false, errors.New("request limit exceeded")
				}
				blocks, ok := c.cloud[id]
				return blocks, ok, nil
			})
			g.Expect(err != nil).To(Equal(c.err), "%v", err)
			got := map[string]int{}
			for id := range ds.GetENIPool() {
				ips, err := ds.GetENIIPs(id)
				g.Expect(err).NotTo(HaveOccurred())
				got[id] = len(ips)
			}
			g.Expect(got).To(Equal(c.want))
			if c.want["eni-1"] > 0 {
				g.Expect(assign(g, ds, 1)).To(Equal("1.1.1.1"))
			}
			g.Expect(ds.Check()).To(BeEmpty())
		})
	}
}

func TestRecentlyFreedBlocks(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{})
	add(g, ds, "eni-1", 0, "1.1.1.1", "1.1.1.2")
	p := one("1.1.1.2")[0]
	freed := func() []bool { known, recent := ds.RecentlyFreed(p); return []bool{known, recent} }
	g.Expect(freed()).To(Equal([]bool{false, false}))
	g.Expect(ds.Remove("eni-1", p, false)).To(Succeed())
	g.Expect(freed()).To(Equal([]bool{true, true}))
	late := []Attachment{{Interface{ID: "eni-1"}, one("1.1.1.1", "1.1.1.2")}}
	g.Expect(ds.Reconcile(context.Background(), late, nil)).To(Succeed())
	stats(g, ds, 1, 0, 0)
	c.pass(time.Minute)
	g.Expect(freed()).To(Equal([]bool{true, false}))
	g.Expect(ds.Reconcile(context.Background(), late, nil)).To(Succeed())
	stats(g, ds, 2, 0, 0)
}

func TestBackOff(t *testing.T) {
	g := NewWithT(t)
	ds, c := store(Options{})
	g.Expect(ds.BackingOff()).To(BeFalse())
	ds.Exhausted()
	c.pass(30 * time.Second)
	g.Expect(ds.BackingOff()).To(BeTrue())
	c.pass(90 * time.Second)
	g.Expect(ds.BackingOff()).To(BeFalse())
}
