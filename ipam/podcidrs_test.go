// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/ledger"
)

// cluster is a cluster pool of one family. Its CIDRs are numbered.
type cluster struct {
	*world
	family ipam.Family
	listed []int
}

func clusterPool(g Gomega, family ipam.Family) *cluster {
	w := &world{g: g, journal: journal.NewMemory(), boot: "boot", deps: ipam.Deps{
		Name: "n1", Config: &config{mode: "cluster-pool-v2beta", v4: family == ipam.IPv4, v6: family == ipam.IPv6}, Owner: &owner{},
	}}
	w.start()
	w.RestoreFinished()
	return &cluster{world: w, family: family}
}

// cidr is a /27 or /123: 30 addresses.
func (c *cluster) cidr(n int) string {
	if c.family == ipam.IPv4 {
		return fmt.Sprintf("10.1.%d.0/27", n)
	}
	return fmt.Sprintf("fd00:0:0:%d::/123", n)
}

func (c *cluster) ip(n, host int) string {
	p := netip.MustParsePrefix(c.cidr(n))
	a := p.Addr()
	for range host {
		a = a.Next()
	}
	return a.String()
}

func (c *cluster) list(ns ...int) {
	c.listed = ns
	c.update(&ipam.NetResourceSet{})
}

func (c *cluster) update(set *ipam.NetResourceSet) {
	set.Name = "n1"
	for _, n := range c.listed {
		set.PodCIDRs = append(set.PodCIDRs, c.cidr(n))
	}
	c.g.Expect(c.Update(context.Background(), set)).To(Succeed())
}

// status is the state of the CIDRs by number: "1:in-use 2:released".
func (c *cluster) status() string {
	st, err := c.Review(context.Background())
	c.g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for cidr, state := range st.PodCIDRs {
		for n := range 10 {
			if c.cidr(n) == cidr {
				cidr = fmt.Sprint(n)
			}
		}
		all = append(all, cidr+":"+state)
	}
	slices.Sort(all)
	c.consistent()
	return strings.Join(all, " ")
}

func (c *cluster) next() string {
	r, err := c.AllocateNextFamily(c.family, me)
	if err != nil {
		c.g.Expect(err).To(Or(MatchError(ledger.ErrExhausted), MatchError(ledger.ErrNoBlock)))
		return "none"
	}
	return r.IP.String()
}

func (c *cluster) take(n int) {
	for range n {
		c.g.Expect(c.next()).NotTo(Equal("none"))
	}
}

func (c *cluster) release(n int, hosts ...int) {
	for _, h := range hosts {
		c.g.Expect(c.ReleaseIPString(c.ip(n, h))).To(Succeed())
	}
}

func count(from, to int) (all []int) {
	for i := from; i <= to; i++ {
		all = append(all, i)
	}
	return all
}

// eachFamily runs a case of a table for both families.
func eachFamily(t *testing.T, f func(c *cluster)) {
	for _, family := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		t.Run(string(family), func(t *testing.T) { f(clusterPool(NewWithT(t), family)) })
	}
}

func TestOneCIDR(t *testing.T) {
	eachFamily(t, func(c *cluster) {
		g := c.g
		g.Expect(c.next()).To(Equal("none"))
		g.Expect(c.status()).To(BeEmpty())
		c.list(1)
		g.Expect(c.status()).To(Equal("1:in-use"))
		g.Expect(c.AllocateIPString(c.ip(1, 7), me)).To(Succeed())
		_, _, line := c.Dump()
		g.Expect(line).To(ContainSubstring("1/30 allocated from " + c.cidr(1)))
		c.release(1, 7)
		g.Expect(c.AllocateIPString(c.ip(2, 7), me)).To(MatchError(ledger.ErrOutside))
		c.release(2, 7)
		c.take(30)
		g.Expect(c.next()).To(Equal("none"))
		g.Expect(c.status()).To(Equal("1:depleted"))
		for i := 1; i <= 30; i++ {
			c.release(1, i)
			g.Expect(c.status()).To(Equal(map[bool]string{true: "1:in-use", false: "1:depleted"}[i >= 8]), "%d free", i)
		}
		c.list()
		g.Expect(c.status()).To(BeEmpty(), "it has left the list")
		g.Expect(c.next()).To(Equal("none"))
	})
}

func TestTwoCIDRs(t *testing.T) {
	eachFamily(t, func(c *cluster) {
		g := c.g
		c.list(2)
		c.take(30)
		g.Expect(c.status()).To(Equal("2:depleted"))
		c.list(2, 1) // the order of the list counts, not that of the addresses
		g.Expect(c.status()).To(Equal("1:in-use 2:depleted"))
		c.take(30)
		g.Expect(c.status()).To(Equal("1:depleted 2:depleted"))
		g.Expect(c.next()).To(Equal("none"))
		c.release(2, 11)
		c.release(1, 12)
		g.Expect(c.next()).To(Equal(c.ip(2, 11)), "the first CIDR's first")
		g.Expect(c.next()).To(Equal(c.ip(1, 12)))
		c.release(1, count(1, 30)...)
		g.Expect(c.status()).To(Equal("1:in-use 2:depleted"))
		for i := 1; i <= 15; i++ {
			c.release(2, i)
			g.Expect(c.status()).To(Equal("1:in-use 2:in-use"), "%d free in the first", i)
		}
		c.release(2, 16)
		g.Expect(c.status()).To(Equal("1:released 2:in-use"))
		c.list(2)
		g.Expect(c.status()).To(Equal("2:in-use"))
	})
}

func TestReleasedCIDRAllocatesNothing(t *testing.T) {
	eachFamily(t, func(c *cluster) {
		g := c.g
		c.list(1, 2)
		g.Expect(c.status()).To(Equal("1:in-use 2:released"))
		c.take(30)
		c.list(1, 2)
		g.Expect(c.next()).To(Equal("none"), "another node may have it by now")
		g.Expect(c.status()).To(Equal("1:depleted 2:released"))
		c.start() // nor after a restart
		c.RestoreFinished()
		c.update(&ipam.NetResourceSet{Status: ipam.Status{PodCIDRs: map[string]string{c.cidr(2): ipam.Released}}})
		g.Expect(c.next()).To(Equal("none"))
		g.Expect(c.status()).To(Equal("1:depleted 2:released"))
		c.list(1)
		g.Expect(c.status()).To(Equal("1:depleted"))
		c.list(1, 2) // it is listed once more
		g.Expect(c.status()).To(Equal("1:depleted 2:in-use"))
		g.Expect(c.next()).To(Equal(c.ip(2, 1)))
	})
}

func TestCIDRsRemovedWhileInUse(t *testing.T) {
	for _, x := range []struct {
		name string
		do   func(c *cluster)
		want string
	}{
		{"unused", func(c *cluster) { c.list(1); c.list() }, ""},
		{"one used", func(c *cluster) { c.list(1); c.take(1); c.list() }, "1:depleted"},
		{"first one used", func(c *cluster) { c.list(1, 2); c.take(1); c.list(1) }, "1:in-use"},
		{"both used", func(c *cluster) { c.list(1, 2); c.take(31); c.list(1) }, "1:depleted 2:depleted"},
		{"used, and back", func(c *cluster) { c.list(1); c.take(1); c.list(); c.list(1) }, "1:in-use"},
		{"used, and freed", func(c *cluster) { c.list(1); c.take(1); c.list(); c.release(1, 1) }, "1:released"},
		{"used, freed, and listed once more", func(c *cluster) { c.list(1); c.take(1); c.list(); c.release(1, 1); c.list() }, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			eachFamily(t, func(c *cluster) {
				x.do(c)
				c.g.Expect(c.status()).To(Equal(x.want))
			})
		})
	}
}

func TestRemovalOfAFullCIDRInTheMiddle(t *testing.T) {
	eachFamily(t, func(c *cluster) {
		g := c.g
		c.list(1, 2)
		c.take(60)
		c.list(1, 2, 3)
		c.list(1, 3)
		g.Expect(c.status()).To(Equal("1:depleted 2:depleted 3:in-use"))
		c.release(2, 5)
		g.Expect(c.status()).To(Equal("1:depleted 2:depleted 3:in-use"))
		g.Expect(c.next()).To(Equal(c.ip(3, 1)), "its free addresses are not allocated again")
		g.Expect(c.AllocateIPString(c.ip(2, 5), me)).To(MatchError(ledger.ErrOutside))
		g.Expect(c.ReleaseIPString(c.ip(2, 6))).To(Succeed())
		c.release(2, count(1, 30)...)
		g.Expect(c.status()).To(Equal("1:depleted 2:released 3:in-use"))
		c.list(1, 3)
		g.Expect(c.status()).To(Equal("1:depleted 3:in-use"))
	})
}

func TestInvalidCIDRsAreDropped(t *testing.T) {
	g := NewWithT(t)
	c := clusterPool(g, ipam.IPv4)
	set := &ipam.NetResourceSet{PodCIDRs: []string{"10.1.1.0/27", "10.1.1.0/27", "10.1.1.7/27", "10.1.1.0/28", "nonsense", "fd00::/64", ""}}
	c.update(set)
	g.Expect(c.status()).To(Equal("1:in-use"), "duplicates, overlaps, other families and invalid texts are dropped")
}

func TestSmallCIDRs(t *testing.T) {
	for _, x := range []struct {
		cidrs []string
		want  string
	}{
		{[]string{"10.0.0.0/30"}, "10.0.0.0/30:depleted"},
		{[]string{"10.0.0.0/30", "10.0.0.4/30"}, "10.0.0.0/30:depleted 10.0.0.4/30:depleted"},
		{[]string{"10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"}, "10.0.0.0/30:in-use 10.0.0.12/30:in-use 10.0.0.4/30:in-use 10.0.0.8/30:in-use"},
		{[]string{"10.1.1.0/27", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.8/30", "10.0.0.12/30"},
			"10.0.0.0/30:released 10.0.0.12/30:released 10.0.0.4/30:released 10.0.0.8/30:released 1:in-use"},
		{[]string{"10.0.0.0/31", "10.0.0.4/32"}, "10.0.0.0/31:released 10.0.0.4/32:released"},
	} {
		t.Run(strings.Join(x.cidrs, " "), func(t *testing.T) {
			g := NewWithT(t)
			c := clusterPool(g, ipam.IPv4)
			c.update(&ipam.NetResourceSet{PodCIDRs: x.cidrs})
			g.Expect(c.status()).To(Equal(x.want))
		})
	}
}

func TestConfiguredThresholds(t *testing.T) {
	g := NewWithT(t)
	c := clusterPool(g, ipam.IPv4)
	c.update(&ipam.NetResourceSet{PodCIDRs: []string{c.cidr(1), c.cidr(2)}, AllocationThreshold: 61, ReleaseThreshold: 31})
	g.Expect(c.status()).To(Equal("1:depleted 2:depleted"))
	c.update(&ipam.NetResourceSet{PodCIDRs: []string{c.cidr(1), c.cidr(2)}, AllocationThreshold: 60, ReleaseThreshold: 31})
	g.Expect(c.status()).To(Equal("1:in-use 2:in-use"))
}

func TestCoolingAddressesKeepTheirCIDR(t *testing.T) {
	g := NewWithT(t)
	c := clusterPool(g, ipam.IPv4)
	c.deps.Pool = ledger.Pool{Name: "ipam", CoolDown: time.Minute, ReserveEdges: true}
	c.start()
	c.RestoreFinished()
	c.list(1, 2)
	c.take(31)
	c.release(2, 1)
	c.release(1, count(1, 30)...)
	g.Expect(c.status()).To(Equal("1:depleted 2:in-use"), "a cooling address is neither free nor released")
	c.uptime += time.Minute
	g.Expect(c.status()).To(Equal("1:in-use 2:released"))
}

func TestNothingIsReleasedBeforeRestoreIsFinished(t *testing.T) {
	g := NewWithT(t)
	c := clusterPool(g, ipam.IPv4)
	c.start()
	c.list(1, 2)
	_, err := c.Review(context.Background())
	g.Expect(err).To(MatchError(ipam.ErrRestoring))
	g.Expect(c.AllocateIPString(c.ip(2, 7), me)).To(Succeed(), "the address of a running pod is restored")
	c.IPv4Allocator.RestoreFinished()
	g.Expect(c.status()).To(Equal("1:released 2:in-use"))
}

func TestSyncReportsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		o := &owner{}
		w := &world{g: g, journal: journal.NewMemory(), deps: ipam.Deps{Name: "n1", Config: mode("cluster-pool-v2beta"), Owner: o, Events: o}}
		w.start()
		ctx, cancel := context.WithCancel(context.Background())
		var mu sync.Mutex
		var all []map[string]string
		fails := 0
		written := func() []map[string]string { mu.Lock(); defer mu.Unlock(); return slices.Clone(all) }
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = w.Sync(ctx, 15*time.Second, func(_ context.Context, st ipam.Status) error {
				mu.Lock()
				defer mu.Unlock()
				if fails > 0 {
					fails--
					return fmt.Errorf("not now")
				}
				all = append(all, st.PodCIDRs)
				return nil
			})
		}()
		wait := func() { time.Sleep(16 * time.Second); synctest.Wait() }
		g.Expect(o.subs).To(HaveLen(1))
		g.Expect(o.subs[0].OnAddNetResourceSet(&ipam.NetResourceSet{Name: "n2", PodCIDRs: []string{"10.9.0.0/24"}})).To(Succeed(), "another node's")
		g.Expect(o.subs[0].OnAddNetResourceSet(&ipam.NetResourceSet{Name: "n1", PodCIDRs: []string{"10.1.0.0/24", "10.2.0.0/24", "fd00::/120"}})).To(Succeed())
		wait()
		g.Expect(written()).To(BeEmpty(), "nothing before RestoreFinished")
		w.RestoreFinished()
		wait()
		first := map[string]string{"10.1.0.0/24": "in-use", "10.2.0.0/24": "released", "fd00::/120": "in-use"}
		g.Expect(written()).To(Equal([]map[string]string{first}))
		_, _, err := w.AllocateNext("", me)
		g.Expect(err).NotTo(HaveOccurred())
		wait()
		g.Expect(written()).To(HaveLen(1), "an unchanged state is not written")
		mu.Lock()
		fails = 2
		mu.Unlock()
		for range 250 {
			_, err := w.AllocateNextFamily(ipam.IPv4, me)
			g.Expect(err).NotTo(HaveOccurred())
		}
		wait()
		g.Expect(written()).To(HaveLen(1), "it failed")
		wait()
		wait()
		g.Expect(written()).To(HaveLen(2))
		g.Expect(written()[1]).To(HaveKeyWithValue("10.1.0.0/24", "depleted"))
		g.Expect(o.made).To(Equal(1))
		g.Expect(o.events).To(Equal([]string{"cadastre.dev/v1alpha1::NetResourceSet NetResourceSet create true false", "NetResourceSet create true"}))
		g.Expect(o.subs[0].OnDeleteNetResourceSet(&ipam.NetResourceSet{Name: "n1"})).To(Succeed())
		_, err = w.AllocateNextFamily(ipam.IPv4, me)
		g.Expect(err).To(MatchError(ContainSubstring("no address block")), "its CIDRs may be another node's soon")
		g.Expect(o.cidrs[0]).To(Equal([2][]string{{"10.1.0.0/24", "10.2.0.0/24"}, {"fd00::/120"}}))
		cancel()
		<-done
	})
}

func TestReadyWaitsForACIDR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := clusterPool(g, ipam.IPv4)
		short, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		g.Expect(c.Ready(short)).To(MatchError(And(ContainSubstring(`NetResourceSet "n1" was not received yet`), ContainSubstring("deadline"))))
		done := make(chan error)
		go func() { done <- c.Ready(context.Background()) }()
		synctest.Wait()
		c.list()
		synctest.Wait()
		g.Expect(done).NotTo(Receive())
		c.list(1)
		g.Expect(<-done).To(Succeed())
	})
}

func TestRestartWithoutANetResourceSet(t *testing.T) {
	g := NewWithT(t)
	c := clusterPool(g, ipam.IPv4)
	c.list(2, 1, 3)
	c.take(61)
	c.list(2, 1)
	c.start()
	c.RestoreFinished()
	g.Expect(c.held()).To(HaveLen(61))
	c.release(1, 4)
	c.release(3, 1)
	g.Expect(c.next()).To(Equal(c.ip(1, 4)))
	g.Expect(c.next()).To(Equal("none"), "a draining CIDR still drains")
	c.list(2, 1)
	g.Expect(c.status()).To(Equal("1:depleted 2:depleted"))
}

func TestFailedGrantChangesNothing(t *testing.T) {
	for n := int64(1); n <= 6; n++ {
		for _, fault := range []journal.Fault{journal.Fail, journal.Tear} {
			t.Run(fmt.Sprint(n, fault), func(t *testing.T) {
				g := NewWithT(t)
				c := clusterPool(g, ipam.IPv4)
				ctx := context.Background()
				c.journal = &journal.Faulty{Journal: journal.NewMemory(), Plan: journal.At(2+n, fault)}
				c.start()
				c.RestoreFinished()
				for range 2 { // each step is tried once more
					for _, list := range [][]string{{c.cidr(1), c.cidr(2)}, {c.cidr(2), c.cidr(3)}} {
						_ = c.Update(ctx, &ipam.NetResourceSet{Name: "n1", PodCIDRs: list})
						_, _ = c.AllocateNextFamily(ipam.IPv4, me)
						_, _ = c.Review(ctx)
						c.consistent()
					}
				}
				before := c.held()
				c.list(2, 3)
				for a, owner := range before {
					g.Expect(c.held()).To(HaveKeyWithValue(a, owner))
				}
				c.start()
				g.Expect(c.held()).To(Equal(before))
				c.consistent()
			})
		}
	}
}
