// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package clusterpool_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pool(name string, bits int, cidrs ...string) *v1alpha1.AddressPool {
	p := &v1alpha1.AddressPool{}
	p.Name = name
	for _, c := range cidrs {
		p.Spec.CIDRs = append(p.Spec.CIDRs, v1alpha1.AddressPoolCIDR{CIDR: c, BlockPrefixLen: bits})
	}
	return p
}

func set(name string, blocks ...string) *v1alpha1.NetResourceSet {
	n := &v1alpha1.NetResourceSet{}
	n.Name = name
	n.Spec.IPAM.Pool = v1alpha1.AllocationMap{}
	for _, b := range blocks {
		n.Spec.IPAM.Pool[b] = v1alpha1.AllocationIP{}
	}
	return n
}

// keys are the blocks of a node.
func keys(t *testing.T, ops netresource.NetResourceOperations) []string {
	all, err := ops.ResyncInterfacesAndIPs(t.Context(), slog.Default())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return slices.Sorted(maps.Keys(all))
}

func action(n int) *netresource.AllocationAction {
	return &netresource.AllocationAction{MaxIPsToAllocate: n}
}

// message returns the error of the status.
func message(ops netresource.NetResourceOperations) string {
	n := set("")
	ops.PopulateStatusFields(n)
	return n.Status.IPAM.OperatorStatus.Error
}

func TestAllocateAndReleaseBlocks(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 24, "10.10.0.0/23", "10.20.0.0/24"))).To(Succeed())
	a := p.CreateNetResource(set("a"), nil)
	_, err := a.PrepareIPAllocation(nil)
	g.Expect(errors.Is(err, clusterpool.ErrNotSynced)).To(BeTrue(), "another node may have it")
	g.Expect(a.AllocateIPs(t.Context(), action(1))).To(MatchError(clusterpool.ErrNotSynced))
	b := p.CreateNetResource(set("b", "10.10.1.0/24"), nil)
	p.Resync(t.Context())
	g.Expect(a.AllocateIPs(t.Context(), action(1))).To(Succeed())
	g.Expect(keys(t, a)).To(Equal([]string{"10.10.0.0/24"}))
	g.Expect(keys(t, b)).To(Equal([]string{"10.10.1.0/24"}), "re-occupied")
	g.Expect(p.GetPoolQuota()["a"].AvailableIPs).To(Equal(256))
	g.Expect(a.AllocateIPs(t.Context(), action(300))).To(Succeed(), "the first range is full: it goes on with the second")
	g.Expect(keys(t, a)).To(Equal([]string{"10.10.0.0/24", "10.20.0.0/24"}))
	g.Expect(b.AllocateIPs(t.Context(), action(1))).NotTo(Succeed())
	g.Expect(keys(t, b)).To(HaveLen(1), "nothing is half done")

	r := a.PrepareIPRelease(256, nil)
	g.Expect(r.IPsToRelease).To(Equal([]string{"10.20.0.0/24"}))
	g.Expect(a.PrepareIPRelease(255, nil).IPsToRelease).To(BeEmpty(), "less than a block")
	g.Expect(a.ReleaseIPs(t.Context(), r)).To(Succeed())
	g.Expect(a.ReleaseIPs(t.Context(), r)).To(Succeed(), "what is not there is no error")
	g.Expect(b.AllocateIPs(t.Context(), action(1))).To(Succeed())
	g.Expect(keys(t, b)).To(Equal([]string{"10.10.1.0/24", "10.20.0.0/24"}))
	p.Forget("b")
	p.Forget("c")
	g.Expect(b.AllocateIPs(t.Context(), action(1))).NotTo(Succeed(), "it is gone")
	g.Expect(p.GetPoolQuota()["a"].AvailableIPs).To(Equal(512))
}

func TestBothFamiliesOrNone(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("four", 28, "10.1.0.0/24"))).To(Succeed())
	g.Expect(p.SetPool(pool("six", 112, "fd00::/111"))).To(Succeed())
	p.Resync(t.Context())
	a, b, c := p.CreateNetResource(set("a"), nil), p.CreateNetResource(set("b", "10.1.0.240/28"), nil), p.CreateNetResource(set("c"), nil)
	g.Expect(a.AllocateIPs(t.Context(), action(20))).To(Succeed())
	g.Expect(keys(t, a)).To(Equal([]string{"10.1.0.0/28", "10.1.0.16/28", "fd00::/112"}))
	g.Expect(b.AllocateIPs(t.Context(), action(1))).To(Succeed())
	g.Expect(keys(t, b)).To(Equal([]string{"10.1.0.240/28", "10.1.0.32/28", "fd00::1:0/112"}), "the missing family is added")
	g.Expect(c.AllocateIPs(t.Context(), action(1))).NotTo(Succeed())
	g.Expect(keys(t, c)).To(BeEmpty(), "IPv6 is full: no IPv4 either")
	g.Expect(p.Status("four").Free).To(Equal(int64(16 * 12)))
}

// TestUsedBlocksAreNotReleased has thousands of blocks of two lengths, and as
// many addresses in use: all nodes wait while these are compared.
func TestUsedBlocksAreNotReleased(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("ones", 32, "10.1.0.0/18"))).To(Succeed())
	g.Expect(p.SetPool(pool("six", 120, "fd00::/112"))).To(Succeed())
	p.Resync(t.Context())
	a := p.CreateNetResource(set("a", "10.2.0.0/28", "10.2.0.16/28"), nil)
	g.Expect(a.AllocateIPs(t.Context(), action(16384))).To(Succeed())
	obj := set("a")
	obj.Status.IPAM.Used = v1alpha1.AllocationMap{"10.2.0.17": {}, "10.3.0.1": {}, "fd00::1": {}, "here": {}}
	for ip := netip.MustParseAddr("10.1.0.0"); len(obj.Status.IPAM.Used) < 16384; ip = ip.Next() {
		obj.Status.IPAM.Used[ip.String()] = v1alpha1.AllocationIP{}
	}
	a.UpdatedNode(obj)
	back := a.PrepareIPRelease(1000, nil).IPsToRelease // a comparison of each with each would take seconds
	g.Expect(back).To(ConsistOf("10.1.63.252", "10.1.63.253", "10.1.63.254", "10.1.63.255", "10.2.0.0/28"))
	g.Expect(a.GetUsedIPWithPrefixes()).To(Equal(16380+16), "of the family that watermarks count")
}

// A cluster that was restored may have lost who was given what; who uses what its
// agents report.
func TestBlockInUseStaysWithItsNode(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("pods", 28, "10.1.0.0/26"))).To(Succeed())
	a := set("a", "10.1.0.0/28")
	a.Status.IPAM.Used = v1alpha1.AllocationMap{"10.1.0.2": {}, "10.1.0.17": {}, "10.1.0.18": {}, "10.1.0.34": {}, "192.0.2.1": {}, "here": {}}
	opsA := p.CreateNetResource(a, nil)
	opsB := p.CreateNetResource(set("b", "10.1.0.32/28"), nil)
	p.Resync(t.Context())
	g.Expect(keys(t, opsA)).To(Equal([]string{"10.1.0.0/28", "10.1.0.16/28"}), "the third one is another's by his pool")
	g.Expect(message(opsB)).To(BeEmpty())
	g.Expect(opsB.AllocateIPs(t.Context(), action(16))).To(Succeed())
	g.Expect(keys(t, opsB)).To(Equal([]string{"10.1.0.32/28", "10.1.0.48/28"}))
	c := set("c")
	c.Status.IPAM.Used = v1alpha1.AllocationMap{"10.1.0.50": {}}
	g.Expect(keys(t, p.CreateNetResource(c, nil))).To(BeEmpty(), "it comes too late")
	g.Expect(opsA.ReleaseIPs(t.Context(), &netresource.ReleaseAction{IPsToRelease: []string{"10.1.0.16/28"}})).To(Succeed())
	g.Expect(p.Status("pods").Free).To(Equal(int64(16)))
}

func TestInvalidPools(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("none", 24))).To(Succeed())
	_, err := p.CreateNetResource(set("a"), nil).PrepareIPAllocation(nil)
	g.Expect(err).To(HaveOccurred())
	g.Expect(p.SetPool(pool("a", 24, "10.0.0.0/16", "10.0.0.0/8", "10.1.0.1/16", "soon"))).To(MatchError(And(
		ContainSubstring("10.0.0.0/8"), ContainSubstring("10.1.0.1/16"), ContainSubstring(`"soon"`))))
	g.Expect(p.Status("a").Error).To(ContainSubstring("10.0.0.0/8"))
	g.Expect(p.Status("a").Free).To(Equal(int64(65536)), "the rest is used")
	g.Expect(p.SetPool(pool("b", 120, "fd00::/100", "fd00::/96"))).NotTo(Succeed())
	g.Expect(p.SetPool(pool("c", 120, "fd00::1:0:0/96"))).To(Succeed())
	g.Expect(p.SetPool(pool("d", 24, "10.0.0.0/16"))).To(MatchError(ContainSubstring("AddressPool a already")))
	g.Expect(p.SetPool(pool("e", 8, "11.0.0.0/16"))).NotTo(Succeed())
}

func TestBlockOfTwoNodesIsReportedAndNotAllocated(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 25, "10.0.0.0/24"))).To(Succeed())
	a, b := p.CreateNetResource(set("a", "10.0.0.0/25"), nil), p.CreateNetResource(set("b", "10.0.0.0/26"), nil)
	p.Resync(t.Context())
	g.Expect(message(b)).To(And(ContainSubstring("10.0.0.0/25"), ContainSubstring("a")))
	c := p.CreateNetResource(set("c"), nil)
	g.Expect(c.AllocateIPs(t.Context(), action(200))).To(Succeed())
	g.Expect(keys(t, c)).To(Equal([]string{"10.0.0.128/25"}))
	p.Forget("b")
	g.Expect(message(a)).To(BeEmpty())
	g.Expect(c.AllocateIPs(t.Context(), action(1))).NotTo(Succeed(), "a still has it")
	g.Expect(message(p.CreateNetResource(set("d", "here"), nil))).To(ContainSubstring(`"here"`))
}

func TestRemovedCIDRDrains(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 26, "10.0.0.0/25"))).To(Succeed())
	p.Resync(t.Context())
	a := p.CreateNetResource(set("a"), nil)
	g.Expect(a.AllocateIPs(t.Context(), action(1))).To(Succeed())
	g.Expect(p.SetPool(pool("a", 26, "10.0.1.0/25"))).To(Succeed())
	g.Expect(a.AllocateIPs(t.Context(), action(1))).To(Succeed())
	g.Expect(keys(t, a)).To(Equal([]string{"10.0.0.0/26", "10.0.1.0/26"}))
	g.Expect(a.PrepareIPRelease(64, nil).IPsToRelease).To(Equal([]string{"10.0.0.0/26"}), "of what drains first")
	g.Expect(p.SetPool(pool("a", 26, "10.0.1.0/25", "10.0.0.0/25"))).To(Succeed(), "it is back")
	g.Expect(p.Status("a").Free).To(Equal(int64(128)))
	p.RemovePool("a")
	g.Expect(a.AllocateIPs(t.Context(), action(1))).NotTo(Succeed())
	g.Expect(keys(t, a)).To(HaveLen(2), "what a node has it keeps")
}

// TestNoAddressBelongsToTwoNodes has nodes come, go, grow and shrink at random, and
// the operator start again.
func TestNoAddressBelongsToTwoNodes(t *testing.T) {
	for seed := range uint64(20) {
		g, rng := NewWithT(t), rand.New(rand.NewPCG(seed, 3))
		fresh := func() *clusterpool.Provider {
			p := clusterpool.New(clusterpool.Config{})
			g.Expect(p.SetPool(pool("a", 28, "10.0.0.0/24"))).To(Succeed())
			g.Expect(p.SetPool(pool("b", 30, "10.0.1.0/26"))).To(Succeed())
			return p
		}
		p, nodes := fresh(), map[string]netresource.NetResourceOperations{}
		p.Resync(t.Context())
		for step := range 300 {
			name := fmt.Sprintf("n%d", rng.IntN(6))
			n := nodes[name]
			switch k := rng.IntN(10); {
			case n == nil:
				nodes[name] = p.CreateNetResource(set(name), nil)
			case k < 5:
				_ = n.AllocateIPs(t.Context(), action(1+rng.IntN(40))) // may be full
			case k < 8:
				g.Expect(n.ReleaseIPs(t.Context(), n.PrepareIPRelease(rng.IntN(40), nil))).To(Succeed())
			case k < 9:
				p.Forget(name)
				delete(nodes, name)
			default:
				next := fresh()
				for name, n := range nodes {
					nodes[name] = next.CreateNetResource(set(name, keys(t, n)...), nil)
				}
				p = next
				p.Resync(t.Context())
			}
			var all []netip.Prefix
			for _, n := range nodes {
				for _, k := range keys(t, n) {
					block := netip.MustParsePrefix(k)
					g.Expect(slices.ContainsFunc(all, block.Overlaps)).To(BeFalse(), "seed %d step %d: %s", seed, step, block)
					all = append(all, block)
				}
			}
		}
	}
}

// TestClusterOfBlocks runs the manager over the provider.
func TestClusterOfBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		api, p := memapi.New(), clusterpool.New(clusterpool.Config{CoolDown: time.Minute})
		g.Expect(p.SetPool(pool("a", 28, "10.0.0.0/22"))).To(Succeed())
		m, err := netresource.New(netresource.Config{
			Instances: p, API: api, ReleaseExcess: true, ReleaseDelay: 30 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		g.Expect(err).NotTo(HaveOccurred())
		api.Changed = func(n *v1alpha1.NetResourceSet) { _ = m.Update(n); answer(api, n) }
		api.Deleted = func(name string) { _ = m.Delete(name) }
		g.Expect(m.Start(t.Context())).To(Succeed())
		for i := range 10 {
			n := set(fmt.Sprintf("n%d", i))
			n.Spec.IPAM.PreAllocate = 20
			_, err := api.Create(n)
			g.Expect(err).NotTo(HaveOccurred())
		}
		rest := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		rest(time.Minute)
		blocks := func(name string) int { n, _ := api.Get(name); return len(n.Spec.IPAM.Pool) }
		g.Expect(blocks("n3")).To(Equal(2))
		g.Expect(api.Change("n3", func(n *v1alpha1.NetResourceSet) { use(n, 30) })).To(Succeed())
		rest(time.Minute)
		g.Expect(blocks("n3")).To(Equal(4))
		g.Expect(api.Change("n3", func(n *v1alpha1.NetResourceSet) { use(n, 0) })).To(Succeed())
		rest(10 * time.Minute)
		g.Expect(blocks("n3")).To(Equal(2))
		g.Expect(p.Status("a").Free).To(Equal(int64(1024 - 10*32)))
		g.Expect(api.Delete("n3")).To(Succeed())
		rest(2 * time.Minute)
		g.Expect(p.Status("a").Free).To(Equal(int64(1024 - 9*32)))
		all, _ := api.Lister().List(labels.Everything())
		g.Expect(all).To(HaveLen(9))
		g.Expect(m.Close()).To(Succeed())
	})
}

// use leases the first n addresses of a node.
func use(r *v1alpha1.NetResourceSet, n int) {
	r.Status.IPAM.Used = v1alpha1.AllocationMap{}
	for _, key := range slices.Sorted(maps.Keys(r.Spec.IPAM.Pool)) {
		p := netip.MustParsePrefix(key)
		for ip := p.Addr(); p.Contains(ip) && len(r.Status.IPAM.Used) < n; ip = ip.Next() {
			r.Status.IPAM.Used[ip.String()] = v1alpha1.AllocationIP{}
		}
	}
}

// answer is an agent's half of the handshake.
func answer(api *memapi.API, seen *v1alpha1.NetResourceSet) {
	if len(seen.Status.IPAM.ReleaseIPs) == 0 {
		return
	}
	_ = api.Change(seen.Name, func(n *v1alpha1.NetResourceSet) {
		for key, state := range n.Status.IPAM.ReleaseIPs {
			_, in := n.Spec.IPAM.Pool[key]
			p, leased := netip.MustParsePrefix(key), false
			for ip := range n.Status.IPAM.Used {
				leased = leased || p.Contains(netip.MustParseAddr(ip))
			}
			n.Status.IPAM.ReleaseIPs[key] = handshake.Answer(state, handshake.Seen{InPool: in, Leased: leased})
			if n.Status.IPAM.ReleaseIPs[key] == "" {
				delete(n.Status.IPAM.ReleaseIPs, key)
			}
		}
	})
}

// TestNewestVersionCountsBeforeResync: a block that went from one node to another
// before the book was read is the other's.
func TestNewestVersionCountsBeforeResync(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 24, "10.10.0.0/24"))).To(Succeed())
	a, b := p.CreateNetResource(set("a", "10.10.0.0/24"), nil), p.CreateNetResource(set("b"), nil)
	a.UpdatedNode(set("a"))
	b.UpdatedNode(set("b", "10.10.0.0/24"))
	p.Resync(t.Context())
	g.Expect(keys(t, a)).To(BeEmpty())
	g.Expect(keys(t, b)).To(Equal([]string{"10.10.0.0/24"}))
	g.Expect(message(b)).To(BeEmpty())
	g.Expect(a.AllocateIPs(t.Context(), action(1))).NotTo(Succeed())
}

// TestAnAnnouncedBlockThatIsNotFree: a former operator has taken a block back from node a and
// announced it for node b, and neither write has arrived.
func TestAnAnnouncedBlockThatIsNotFree(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 28, "10.0.0.0/28"))).To(Succeed())
	a := p.CreateNetResource(set("a", "10.0.0.0/28"), nil)
	announces := set("b")
	announces.Annotations = map[string]string{netresource.IntentAnnotation: "10.0.0.0/28,what is this"}
	b, c := p.CreateNetResource(announces, nil), p.CreateNetResource(set("c"), nil)
	p.Resync(t.Context())
	g.Expect(keys(t, a)).To(Equal([]string{"10.0.0.0/28"}))
	g.Expect(keys(t, b)).To(BeEmpty(), "the block is that of node a")
	g.Expect(a.ReleaseIPs(t.Context(), &netresource.ReleaseAction{IPsToRelease: []string{"10.0.0.0/28"}})).To(Succeed())
	g.Expect(c.AllocateIPs(t.Context(), action(1))).NotTo(Succeed(), "the write for node b may still arrive")
	p.Forget("b")
	g.Expect(c.AllocateIPs(t.Context(), action(1))).To(Succeed())
}
