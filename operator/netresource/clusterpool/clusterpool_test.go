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

// served is a node, which a test calls as the manager does.
type served struct {
	t   *testing.T
	p   *clusterpool.Provider
	set *v1alpha1.NetResourceSet
}

// serve makes a provider serve a node.
func serve(t *testing.T, p *clusterpool.Provider, set *v1alpha1.NetResourceSet) *served {
	n := &served{t, p, set}
	n.state()
	return n
}

func (n *served) state() netresource.State {
	s, err := n.p.State(n.t.Context(), n.set)
	NewWithT(n.t).Expect(err).NotTo(HaveOccurred())
	return s
}

// update makes a version the newest one.
func (n *served) update(set *v1alpha1.NetResourceSet) {
	n.set = set
	n.state()
}

var errNothing = errors.New("there is nothing left")

// allocate allocates addresses. The error is errNothing if the node gets none.
func (n *served) allocate(wanted int) error {
	got, err := n.p.Allocate(n.t.Context(), n.set, wanted)
	if err == nil && got.Addresses == 0 {
		return errNothing
	}
	return err
}

func (n *served) spare(excess int) []string {
	keys, err := n.p.Spare(n.t.Context(), n.set, excess)
	NewWithT(n.t).Expect(err).NotTo(HaveOccurred())
	return keys
}

func (n *served) release(keys ...string) error {
	return n.p.Release(n.t.Context(), n.set, &netresource.ReleaseAction{IPsToRelease: keys})
}

// keys are the blocks of a node.
func keys(n *served) []string { return slices.Sorted(maps.Keys(n.state().Available)) }

// message returns the error of the status.
func message(n *served) string {
	copied := set(n.set.Name)
	NewWithT(n.t).Expect(n.p.Describe(n.t.Context(), copied)).To(Succeed())
	return copied.Status.IPAM.OperatorStatus.Error
}

func read(t *testing.T, p *clusterpool.Provider) {
	_, err := p.Read(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

func forget(t *testing.T, p *clusterpool.Provider, node string) {
	NewWithT(t).Expect(p.Forget(t.Context(), node)).To(Succeed())
}

func quotas(t *testing.T, p *clusterpool.Provider) v1alpha1.PoolQuotaMap {
	all, err := p.Quotas(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return all
}

func TestAllocateAndReleaseBlocks(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 24, "10.10.0.0/23", "10.20.0.0/24"))).To(Succeed())
	a := serve(t, p, set("a"))
	g.Expect(a.allocate(1)).To(MatchError(clusterpool.ErrNotSynced), "another node may have it")
	b := serve(t, p, set("b", "10.10.1.0/24"))
	read(t, p)
	g.Expect(a.allocate(1)).To(Succeed())
	g.Expect(keys(a)).To(Equal([]string{"10.10.0.0/24"}))
	g.Expect(keys(b)).To(Equal([]string{"10.10.1.0/24"}), "re-occupied")
	g.Expect(quotas(t, p)["a"].AvailableIPs).To(Equal(256))
	g.Expect(a.allocate(300)).To(Succeed(), "the first range is full: it goes on with the second")
	g.Expect(keys(a)).To(Equal([]string{"10.10.0.0/24", "10.20.0.0/24"}))
	g.Expect(b.allocate(1)).NotTo(Succeed())
	g.Expect(keys(b)).To(HaveLen(1), "nothing is half done")

	back := a.spare(256)
	g.Expect(back).To(Equal([]string{"10.20.0.0/24"}))
	g.Expect(a.spare(255)).To(BeEmpty(), "less than a block")
	g.Expect(a.release(back...)).To(Succeed())
	g.Expect(a.release(back...)).To(Succeed(), "what is not there is no error")
	g.Expect(b.allocate(1)).To(Succeed())
	g.Expect(keys(b)).To(Equal([]string{"10.10.1.0/24", "10.20.0.0/24"}))
	forget(t, p, "b")
	forget(t, p, "c")
	g.Expect(b.allocate(1)).NotTo(Succeed(), "it is gone")
	g.Expect(quotas(t, p)["a"].AvailableIPs).To(Equal(512))
}

func TestBothFamiliesOrNone(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("four", 28, "10.1.0.0/24"))).To(Succeed())
	g.Expect(p.SetPool(pool("six", 112, "fd00::/111"))).To(Succeed())
	read(t, p)
	a, c := serve(t, p, set("a")), serve(t, p, set("c"))
	g.Expect(a.allocate(20)).To(Succeed())
	g.Expect(keys(a)).To(Equal([]string{"10.1.0.0/28", "10.1.0.16/28", "fd00::/112"}))
	b := serve(t, p, set("b", "10.1.0.240/28"))
	g.Expect(b.allocate(1)).To(Succeed())
	g.Expect(keys(b)).To(Equal([]string{"10.1.0.240/28", "10.1.0.32/28", "fd00::1:0/112"}), "the missing family is added")
	g.Expect(c.allocate(1)).NotTo(Succeed())
	g.Expect(keys(c)).To(BeEmpty(), "IPv6 is full: no IPv4 either")
	g.Expect(p.Status("four").Free).To(Equal(int64(16 * 12)))
}

// TestUsedBlocksAreNotReleased has thousands of blocks of two lengths, and as
// many addresses in use: all nodes wait while these are compared.
func TestUsedBlocksAreNotReleased(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("ones", 32, "10.1.0.0/18"))).To(Succeed())
	g.Expect(p.SetPool(pool("six", 120, "fd00::/112"))).To(Succeed())
	read(t, p)
	a := serve(t, p, set("a", "10.2.0.0/28", "10.2.0.16/28"))
	g.Expect(a.allocate(16384)).To(Succeed())
	obj := set("a")
	obj.Status.IPAM.Used = v1alpha1.AllocationMap{"10.2.0.17": {}, "10.3.0.1": {}, "fd00::1": {}, "here": {}}
	for ip := netip.MustParseAddr("10.1.0.0"); len(obj.Status.IPAM.Used) < 16384; ip = ip.Next() {
		obj.Status.IPAM.Used[ip.String()] = v1alpha1.AllocationIP{}
	}
	a.update(obj)
	back := a.spare(1000) // a comparison of each with each would take seconds
	g.Expect(back).To(ConsistOf("10.1.63.252", "10.1.63.253", "10.1.63.254", "10.1.63.255", "10.2.0.0/28"))
	g.Expect(a.state().Used).To(Equal(16380+16), "of the family that watermarks count")
}

// A cluster that was restored may have lost who was given what; who uses what its
// agents report.
func TestBlockInUseStaysWithItsNode(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("pods", 28, "10.1.0.0/26"))).To(Succeed())
	a := set("a", "10.1.0.0/28")
	a.Status.IPAM.Used = v1alpha1.AllocationMap{"10.1.0.2": {}, "10.1.0.17": {}, "10.1.0.18": {}, "10.1.0.34": {}, "192.0.2.1": {}, "here": {}}
	opsA := serve(t, p, a)
	opsB := serve(t, p, set("b", "10.1.0.32/28"))
	read(t, p)
	g.Expect(keys(opsA)).To(Equal([]string{"10.1.0.0/28", "10.1.0.16/28"}), "the third one is another's by his pool")
	g.Expect(message(opsB)).To(BeEmpty())
	g.Expect(opsB.allocate(16)).To(Succeed())
	g.Expect(keys(opsB)).To(Equal([]string{"10.1.0.32/28", "10.1.0.48/28"}))
	c := set("c")
	c.Status.IPAM.Used = v1alpha1.AllocationMap{"10.1.0.50": {}}
	g.Expect(keys(serve(t, p, c))).To(BeEmpty(), "it comes too late")
	g.Expect(opsA.release("10.1.0.16/28")).To(Succeed())
	g.Expect(p.Status("pods").Free).To(Equal(int64(16)))
}

func TestInvalidPools(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("none", 24))).To(Succeed())
	g.Expect(serve(t, p, set("a")).allocate(1)).NotTo(Succeed())
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
	a, b := serve(t, p, set("a", "10.0.0.0/25")), serve(t, p, set("b", "10.0.0.0/26"))
	read(t, p)
	g.Expect(message(b)).To(And(ContainSubstring("10.0.0.0/25"), ContainSubstring("a")))
	c := serve(t, p, set("c"))
	g.Expect(c.allocate(200)).To(Succeed())
	g.Expect(keys(c)).To(Equal([]string{"10.0.0.128/25"}))
	forget(t, p, "b")
	g.Expect(message(a)).To(BeEmpty())
	g.Expect(c.allocate(1)).NotTo(Succeed(), "a still has it")
	g.Expect(message(serve(t, p, set("d", "here")))).To(ContainSubstring(`"here"`))
}

func TestRemovedCIDRDrains(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 26, "10.0.0.0/25"))).To(Succeed())
	read(t, p)
	a := serve(t, p, set("a"))
	g.Expect(a.allocate(1)).To(Succeed())
	g.Expect(p.SetPool(pool("a", 26, "10.0.1.0/25"))).To(Succeed())
	g.Expect(a.allocate(1)).To(Succeed())
	g.Expect(keys(a)).To(Equal([]string{"10.0.0.0/26", "10.0.1.0/26"}))
	g.Expect(a.spare(64)).To(Equal([]string{"10.0.0.0/26"}), "of what drains first")
	g.Expect(p.SetPool(pool("a", 26, "10.0.1.0/25", "10.0.0.0/25"))).To(Succeed(), "it is back")
	g.Expect(p.Status("a").Free).To(Equal(int64(128)))
	p.RemovePool("a")
	g.Expect(a.allocate(1)).NotTo(Succeed())
	g.Expect(keys(a)).To(HaveLen(2), "what a node has it keeps")
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
		p, nodes := fresh(), map[string]*served{}
		read(t, p)
		for step := range 300 {
			name := fmt.Sprintf("n%d", rng.IntN(6))
			n := nodes[name]
			switch k := rng.IntN(10); {
			case n == nil:
				nodes[name] = serve(t, p, set(name))
			case k < 5:
				_ = n.allocate(1 + rng.IntN(40)) // may be full
			case k < 8:
				g.Expect(n.release(n.spare(rng.IntN(40))...)).To(Succeed())
			case k < 9:
				forget(t, p, name)
				delete(nodes, name)
			default:
				next := fresh()
				for name, n := range nodes {
					nodes[name] = serve(t, next, set(name, keys(n)...))
				}
				p = next
				read(t, p)
			}
			var all []netip.Prefix
			for _, n := range nodes {
				for _, k := range keys(n) {
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
			Provider: p, API: api, ReleaseExcess: true, ReleaseDelay: 30 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
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

// TestNewestVersionCountsBeforeTheFirstReading: a block that went from one node to another
// before the book was read is the other's.
func TestNewestVersionCountsBeforeTheFirstReading(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 24, "10.10.0.0/24"))).To(Succeed())
	a, b := serve(t, p, set("a", "10.10.0.0/24")), serve(t, p, set("b"))
	a.update(set("a"))
	b.update(set("b", "10.10.0.0/24"))
	read(t, p)
	g.Expect(keys(a)).To(BeEmpty())
	g.Expect(keys(b)).To(Equal([]string{"10.10.0.0/24"}))
	g.Expect(message(b)).To(BeEmpty())
	g.Expect(a.allocate(1)).NotTo(Succeed())
}

// TestAnAnnouncedBlockThatIsNotFree: a former operator has taken a block back from node a and
// announced it for node b, and neither write has arrived.
func TestAnAnnouncedBlockThatIsNotFree(t *testing.T) {
	g := NewWithT(t)
	p := clusterpool.New(clusterpool.Config{})
	g.Expect(p.SetPool(pool("a", 28, "10.0.0.0/28"))).To(Succeed())
	a := serve(t, p, set("a", "10.0.0.0/28"))
	announces := set("b")
	announces.Annotations = map[string]string{netresource.IntentAnnotation: "10.0.0.0/28,what is this"}
	b, c := serve(t, p, announces), serve(t, p, set("c"))
	read(t, p)
	g.Expect(keys(a)).To(Equal([]string{"10.0.0.0/28"}))
	g.Expect(keys(b)).To(BeEmpty(), "the block is that of node a")
	g.Expect(a.release("10.0.0.0/28")).To(Succeed())
	g.Expect(c.allocate(1)).NotTo(Succeed(), "the write for node b may still arrive")
	forget(t, p, "b")
	g.Expect(c.allocate(1)).To(Succeed())
}
