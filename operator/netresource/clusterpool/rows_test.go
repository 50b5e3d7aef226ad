// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package clusterpool_test

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// cluster is a manager over a provider, and an API server that tells it of all.
type cluster struct {
	g   *WithT
	api *memapi.API
	p   *clusterpool.Provider
	m   *netresource.NetResourceSetManager
	log bytes.Buffer // warnings
}

// simulated runs a test in a cluster without nodes.
func simulated(t *testing.T, test func(c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{g: NewWithT(t), api: memapi.New(), p: clusterpool.New(clusterpool.Config{})}
		m, err := netresource.New(netresource.Config{Provider: c.p, API: c.api, Log: slog.New(slog.NewTextHandler(&c.log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
		c.g.Expect(err).NotTo(HaveOccurred())
		c.m = m
		c.api.Changed = func(n *v1alpha1.NetResourceSet) { c.g.Expect(m.Update(n)).To(Succeed()) }
		c.api.Deleted = func(name string) { c.g.Expect(m.Delete(name)).To(Succeed()) }
		c.g.Expect(m.Start(t.Context())).To(Succeed())
		test(c)
		c.g.Expect(m.Close()).To(Succeed())
	})
}

func (c *cluster) create(name string, blocks ...string) {
	_, err := c.api.Create(set(name, blocks...))
	c.g.Expect(err).NotTo(HaveOccurred())
}

// rest waits until the manager has looked at all nodes some more times.
func (c *cluster) rest() {
	time.Sleep(5 * time.Minute)
	synctest.Wait()
}

// blocks returns the blocks of a node at the API server, and the number that it lacks.
func (c *cluster) blocks(name string) ([]string, string) {
	n, err := c.api.Get(name)
	c.g.Expect(err).NotTo(HaveOccurred())
	return slices.Sorted(maps.Keys(n.Spec.IPAM.Pool)), n.Status.IPAM.OperatorStatus.Error
}

func (c *cluster) edit(name string, blocks ...string) {
	c.g.Expect(c.api.Change(name, func(n *v1alpha1.NetResourceSet) { n.Spec.IPAM.Pool = set(name, blocks...).Spec.IPAM.Pool })).To(Succeed())
}

// TestLifeOfNode has a node wait for a pool, keep its block whatever others
// write, and leave it to the next one.
func TestLifeOfNode(t *testing.T) {
	simulated(t, func(c *cluster) {
		c.create("a")
		c.rest()
		blocks, lacks := c.blocks("a")
		c.g.Expect(blocks).To(BeEmpty())
		c.g.Expect(lacks).To(ContainSubstring("no AddressPool has a CIDR"))

		c.g.Expect(c.p.SetPool(pool("p", 24, "10.10.0.0/24"))).To(Succeed())
		c.rest()
		blocks, lacks = c.blocks("a")
		c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/24"}))
		c.g.Expect(lacks).To(BeEmpty(), "it is cleared")

		writes := c.api.Writes()
		n, _ := c.api.Get("a")
		c.g.Expect(c.m.Create(n)).To(Succeed())
		c.rest()
		c.g.Expect(c.api.Writes()).To(Equal(writes), "it is known already")

		c.create("b")
		c.rest()
		blocks, lacks = c.blocks("b")
		c.g.Expect(blocks).To(BeEmpty())
		c.g.Expect(lacks).To(ContainSubstring("at capacity"))

		c.edit("a")
		c.rest()
		blocks, _ = c.blocks("a")
		c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/24"}), "an emptied object has the same block again")
		c.edit("a", "10.99.0.0/24")
		c.rest()
		blocks, _ = c.blocks("a")
		c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/24"}), "and so does a changed one")

		c.g.Expect(c.m.Delete("never seen")).To(Succeed())
		c.g.Expect(c.p.Status("p").Free).To(BeZero())
		c.g.Expect(c.api.Delete("a")).To(Succeed())
		c.rest()
		blocks, lacks = c.blocks("b")
		c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/24"}))
		c.g.Expect(lacks).To(BeEmpty())
		c.g.Expect(c.api.Delete("b")).To(Succeed())
		c.create("b")
		c.rest()
		blocks, _ = c.blocks("b")
		c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/24"}), "it was made again under its name")
	})
}

// TestFailedWriteLosesNoBlock: the node gets the block that it was given,
// and no second one.
func TestFailedWriteLosesNoBlock(t *testing.T) {
	sets := v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource()
	for _, x := range []struct {
		name   string
		err    error
		times  int
		within time.Duration
		told   bool // in the log
	}{
		{"another has written", apierrors.NewConflict(sets, "a", errors.New("not the newest")), 1, time.Second, false},
		{"another writes all the time", apierrors.NewConflict(sets, "a", errors.New("not the newest")), 5, 5 * time.Minute, true},
		{"it is not there", apierrors.NewNotFound(sets, "a"), 3, 5 * time.Minute, false},
		{"no answer", errors.New("timeout"), 3, 5 * time.Minute, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			simulated(t, func(c *cluster) {
				c.g.Expect(c.p.SetPool(pool("p", 25, "10.10.0.0/24"))).To(Succeed())
				left := x.times
				c.api.Fault = func(call, _ string) error {
					if call != "update" || left == 0 {
						return nil
					}
					left--
					return x.err
				}
				c.create("a")
				time.Sleep(x.within)
				synctest.Wait()
				blocks, lacks := c.blocks("a")
				c.g.Expect(left).To(BeZero())
				c.g.Expect(blocks).To(Equal([]string{"10.10.0.0/25"}))
				c.g.Expect(lacks).To(BeEmpty())
				c.g.Expect(c.p.Status("p").Free).To(Equal(int64(128)))
				c.g.Expect(c.log.Len() > 0).To(Equal(x.told), c.log.String())
			})
		})
	}
}

// TestNodesKeepTheirBlocks starts an operator in a cluster that has
// blocks. What a NetResourceSet says is a fact, even where no pool would give it.
func TestNodesKeepTheirBlocks(t *testing.T) {
	for _, c := range []struct {
		name   string
		cidrs  []string // of the pools, blocks of /25 and /112
		blocks []string
		free   []int64 // of these pools
	}{
		{"one family", []string{"10.0.0.0/24"}, []string{"10.0.0.128/25"}, []int64{128}},
		{"both families", []string{"10.0.0.0/24", "fd00::/111"}, []string{"10.0.0.128/25", "fd00::1:0/112"}, []int64{128, 65536}},
		{"all that a pool has", []string{"10.0.0.0/24"}, []string{"10.0.0.0/25", "10.0.0.128/25"}, []int64{0}},
		{"of another size", []string{"10.0.0.0/24"}, []string{"10.0.0.64/26"}, []int64{128}},
		{"of no pool", []string{"10.0.0.0/24"}, []string{"172.16.0.0/24"}, []int64{256}},
		{"of a family without pools", []string{"10.0.0.0/24"}, []string{"10.0.0.0/25", "fd00::/112"}, []int64{128}},
	} {
		for _, written := range []string{"pool", "podCIDRs"} {
			t.Run(c.name+" in "+written, func(t *testing.T) {
				g, p := NewWithT(t), clusterpool.New(clusterpool.Config{})
				for _, cidr := range c.cidrs {
					bits := 25
					if len(cidr) < len("10.0.0.0/24") {
						bits = 112
					}
					g.Expect(p.SetPool(pool(cidr, bits, cidr))).To(Succeed())
				}
				obj := set("a", c.blocks...)
				if written == "podCIDRs" {
					obj = set("a")
					for _, b := range c.blocks {
						obj.Spec.IPAM.PodCIDRs = append(obj.Spec.IPAM.PodCIDRs, v1alpha1.PodCIDR(b))
					}
				}
				a := serve(t, p, obj)
				read(t, p)
				for range 2 {
					g.Expect(keys(a)).To(Equal(c.blocks))
					g.Expect(message(a)).To(BeEmpty())
					for i, cidr := range c.cidrs {
						g.Expect(p.Status(cidr).Free).To(Equal(c.free[i]), cidr)
					}
					a = serve(t, p, obj) // it is told of again
				}
				forget(t, p, "a")
				for _, cidr := range c.cidrs {
					g.Expect(p.Status(cidr).Free).To(BeNumerically(">=", 256), "all is back")
				}
			})
		}
	}
}

// TestMissingFamilyIsAdded: to a node that lacks no addresses, too.
func TestMissingFamilyIsAdded(t *testing.T) {
	simulated(t, func(c *cluster) {
		c.g.Expect(c.p.SetPool(pool("four", 28, "10.1.0.0/26"))).To(Succeed())
		c.create("a")
		c.create("b", "fd00::/112")
		c.rest()
		a, _ := c.blocks("a")
		b, _ := c.blocks("b")
		c.g.Expect(slices.Concat(a, b)).To(ConsistOf("10.1.0.0/28", "10.1.0.16/28", "fd00::/112"))

		c.g.Expect(c.p.SetPool(pool("six", 112, "fd00::/111"))).To(Succeed())
		c.rest()
		a, lacks := c.blocks("a")
		c.g.Expect(a).To(HaveLen(2))
		c.g.Expect(a).To(ContainElement("fd00::1:0/112"))
		c.g.Expect(lacks).To(BeEmpty())

		c.create("c", "10.1.0.32/28")
		c.create("d")
		c.rest()
		has, lacks := c.blocks("c")
		c.g.Expect(has).To(Equal([]string{"10.1.0.32/28"}), "IPv6 is full: what it has it keeps")
		c.g.Expect(lacks).To(ContainSubstring("no CIDRs remaining"))
		has, lacks = c.blocks("d")
		c.g.Expect(has).To(BeEmpty(), "but no node begins with IPv4 alone")
		c.g.Expect(lacks).To(ContainSubstring("no CIDRs remaining"))
		c.g.Expect(c.api.Change("c", func(n *v1alpha1.NetResourceSet) { n.Spec.IPAM.PreAllocate = 20 })).To(Succeed())
		c.rest()
		has, _ = c.blocks("c")
		c.g.Expect(has).To(Equal([]string{"10.1.0.32/28", "10.1.0.48/28"}), "it does grow")

		c.g.Expect(c.api.Delete("a")).To(Succeed())
		c.g.Expect(c.api.Delete("d")).To(Succeed())
		c.rest()
		has, lacks = c.blocks("c")
		c.g.Expect(has).To(Equal([]string{"10.1.0.32/28", "10.1.0.48/28", "fd00::1:0/112"}))
		c.g.Expect(lacks).To(BeEmpty())
	})
}

// A removed CIDR stays known as long as a node has a block of it.
func TestRemovedFamilyBlocksNoNode(t *testing.T) {
	for _, c := range []struct{ gone, want string }{{"six", "10.1.0.16/28"}, {"four", "fd00::1:0/112"}} {
		g, p := NewWithT(t), clusterpool.New(clusterpool.Config{})
		g.Expect(p.SetPool(pool("four", 28, "10.1.0.0/24"))).To(Succeed())
		g.Expect(p.SetPool(pool("six", 112, "fd00::/104"))).To(Succeed())
		read(t, p)
		a := serve(t, p, set("a"))
		g.Expect(a.allocate(1)).To(Succeed())
		p.RemovePool(c.gone)
		b := serve(t, p, set("b"))
		g.Expect(b.allocate(1)).To(Succeed(), c.gone)
		g.Expect(keys(b)).To(Equal([]string{c.want}))
		g.Expect(keys(a)).To(HaveLen(2), "what a node has it keeps")
		if c.gone == "four" {
			g.Expect(a.allocate(1)).To(MatchError(errNothing), "whose IPv4 addresses are counted gets none of IPv6 for them")
		}
	}
}

// An administrator repairs a NetResourceSet.
func TestInvalidBlockIsReportedUntilRemoved(t *testing.T) {
	simulated(t, func(c *cluster) {
		c.g.Expect(c.p.SetPool(pool("p", 24, "10.10.0.0/23"))).To(Succeed())
		bad := set("a", "10.10.1.0/24", "10.10.0.1/24")
		bad.Spec.IPAM.PodCIDRs = []v1alpha1.PodCIDR{"nonsense"}
		_, err := c.api.Create(bad)
		c.g.Expect(err).NotTo(HaveOccurred())
		c.rest()
		blocks, lacks := c.blocks("a")
		c.g.Expect(blocks).To(Equal([]string{"10.10.1.0/24"}), "it is taken out of the pool")
		c.g.Expect(lacks).To(ContainSubstring(`"nonsense"`), "podCIDRs are not the operator's to write")
		c.g.Expect(c.api.Change("a", func(n *v1alpha1.NetResourceSet) { n.Spec.IPAM.PodCIDRs = nil })).To(Succeed())
		c.rest()
		_, lacks = c.blocks("a")
		c.g.Expect(lacks).To(BeEmpty())
	})
}

// TestAllocationWithoutPools: releases work all the same.
func TestAllocationWithoutPools(t *testing.T) {
	g, p := NewWithT(t), clusterpool.New(clusterpool.Config{})
	a := serve(t, p, set("a", "10.0.0.0/24"))
	read(t, p)
	g.Expect(quotas(t, p)).To(BeEmpty())
	g.Expect(a.allocate(1)).To(Or(MatchError(clusterpool.ErrNoPool), MatchError(blocks.ErrNoRange)))
	g.Expect(a.release("10.9.9.0/24", "10.9.9.9")).To(Succeed(), "of what it never had")
	g.Expect(keys(a)).To(Equal([]string{"10.0.0.0/24"}))
	g.Expect(a.release("10.0.0.0/24")).To(Succeed())
	g.Expect(keys(a)).To(BeEmpty())
}

// A pool gets a CIDR when the CIDR that overlapped it is removed.
func TestOverlappingCIDRIsRetried(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 24, "10.0.0.0/16"))).To(Succeed())
	g.Expect(p.SetPool(pool("a", 24, "10.0.0.0/15"))).To(Succeed(), "the old one is not used: it makes room")
	g.Expect(p.Status("a").Free).To(Equal(int64(1 << 17)))
	read(t, p)
	n := serve(t, p, set("n"))
	g.Expect(n.allocate(1)).To(Succeed())
	g.Expect(p.SetPool(pool("b", 24, "10.1.0.0/16"))).To(MatchError(blocks.ErrRange))
	p.RemovePool("a")
	read(t, p)
	g.Expect(p.Status("b").Error).To(ContainSubstring("overlaps 10.0.0.0/15"), "a block of it is held")
	forget(t, p, "n")
	read(t, p)
	g.Expect(p.Status("b")).To(Equal(v1alpha1.AddressPoolStatus{Free: 1 << 16}))
	g.Expect(p.SetPool(pool("c", 24, "soon", "10.1.0.0/24"))).NotTo(Succeed())
	p.RemovePool("b")
	p.RemovePool("c")
	read(t, p)
	g.Expect(quotas(t, p)).To(BeEmpty(), "what is removed does not come back")
}

// TestPoolCountsIPv4 while it has a CIDR of that, even if nothing is left.
func TestPoolCountsIPv4(t *testing.T) {
	g, p := NewWithT(t), clusterpool.New(clusterpool.Config{})
	both := pool("p", 28, "10.0.0.0/28")
	both.Spec.CIDRs = append(both.Spec.CIDRs, v1alpha1.AddressPoolCIDR{CIDR: "fd00::/111", BlockPrefixLen: 112})
	g.Expect(p.SetPool(both)).To(Succeed())
	g.Expect(p.SetPool(pool("six", 112, "fd01::/111"))).To(Succeed())
	read(t, p)
	g.Expect(quotas(t, p)["p"].AvailableIPs).To(Equal(16))
	g.Expect(serve(t, p, set("n")).allocate(1)).To(Succeed())
	g.Expect(quotas(t, p)["p"].AvailableIPs).To(BeZero())
	g.Expect(quotas(t, p)["six"].AvailableIPs).To(Equal(2 << 16))
}
