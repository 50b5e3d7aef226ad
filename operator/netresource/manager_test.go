// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

func TestPoolsAreKeptAtTheirWatermarks(t *testing.T) {
	type step struct {
		use  int
		want [2]int
	}
	for _, c := range []struct {
		name  string
		spec  v1alpha1.IPAMSpec
		steps []step
	}{
		{"default", v1alpha1.IPAMSpec{PreAllocate: 8}, []step{{0, [2]int{8, 0}}, {7, [2]int{15, 7}}}},
		{"the provider's default", v1alpha1.IPAMSpec{}, []step{{0, [2]int{8, 0}}, {7, [2]int{15, 7}}}},
		{"min only", v1alpha1.IPAMSpec{PreAllocate: -1, MinAllocate: 10}, []step{{0, [2]int{10, 0}}, {8, [2]int{10, 8}}}},
		{"min 20", v1alpha1.IPAMSpec{MinAllocate: 20}, []step{{0, [2]int{20, 0}}, {8, [2]int{20, 8}}}},
		{"min and pre", v1alpha1.IPAMSpec{PreAllocate: 1, MinAllocate: 10}, []step{{0, [2]int{10, 0}}, {9, [2]int{10, 9}}, {10, [2]int{11, 10}}, {8, [2]int{11, 8}}}},
		{"max", v1alpha1.IPAMSpec{PreAllocate: 8, MaxAllocate: 10, MaxAboveWatermark: 9}, []step{{0, [2]int{10, 0}}, {9, [2]int{10, 9}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloud, config := defaults()
			simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
				a := r.add("node", c.spec)
				for _, s := range c.steps {
					a.use(s.use)
					rest(time.Minute)
					g.Expect(r.level("node")).To(Equal(s.want))
				}
				r.consistent("node")
			})
		})
	}
}

func TestWhatIsTooMuchIsGivenBack(t *testing.T) {
	cloud, config := defaults()
	config.ReleaseExcess, config.ReleaseDelay = true, 2*time.Second
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{MinAllocate: 15, PreAllocate: 4, MaxAboveWatermark: 4})
		for _, s := range [][3]int{{0, 19, 0}, {11, 19, 11}, {19, 27, 19}} {
			a.use(s[0])
			rest(20 * time.Second)
			g.Expect(r.level("node")).To(Equal([2]int{s[1], s[2]}))
		}
		a.use(10)
		rest(1900 * time.Millisecond)
		g.Expect(r.level("node")).To(Equal([2]int{27, 10}), "not before the delay")
		rest(3 * time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{19, 10}))
		nrs, err := r.api.Get("node")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nrs.Status.IPAM.ReleaseIPs).To(BeEmpty())
		g.Expect(nrs.Status.Addresses).To(Equal(v1alpha1.AddressCounts{Used: 10, Available: 19, Capacity: 512}))
		r.consistent("node")
		calls := r.cloud.Calls()
		rest(10 * time.Minute)
		g.Expect(r.cloud.Calls()["assign"]).To(Equal(calls["assign"]), "nothing oscillates")
		g.Expect(r.cloud.Calls()["unassign"]).To(Equal(calls["unassign"]))
	})
}

func TestRenewedDemandEndsTheWayBack(t *testing.T) {
	cloud, config := defaults()
	config.ReleaseExcess = true
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{MinAllocate: 3, PreAllocate: 1})
		rest(20 * time.Second)
		g.Expect(r.level("node")).To(Equal([2]int{3, 0}))
		a.use(3)
		rest(20 * time.Second)
		g.Expect(r.level("node")).To(Equal([2]int{4, 3}))
		a.answer(false)
		a.use(2)
		rest(40 * time.Second)
		nrs, _ := r.api.Get("node")
		g.Expect(slices.Collect(maps.Values(nrs.Status.IPAM.ReleaseIPs))).To(Equal([]handshake.State{handshake.Marked}))
		a.use(3)
		rest(20 * time.Second)
		nrs, _ = r.api.Get("node")
		g.Expect(nrs.Status.IPAM.ReleaseIPs).To(BeEmpty(), "taken back, not released")
		g.Expect(r.level("node")).To(Equal([2]int{4, 3}))
		g.Expect(r.cloud.Calls()["unassign"]).To(BeZero())
	})
}

// TestADeadAgentKeepsItsAddresses: nothing is released without its answer.
func TestADeadAgentKeepsItsAddresses(t *testing.T) {
	cloud, config := defaults()
	config.ReleaseExcess = true
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		a.use(20)
		rest(20 * time.Second)
		a.answer(false)
		a.use(0)
		rest(time.Hour)
		g.Expect(r.cloud.Calls()["unassign"]).To(BeZero())
		a.answer(true)
		a.step()
		rest(5 * time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
		r.consistent("node")
	})
}

type gauges struct {
	netresource.MetricsAPI

	mu                  sync.Mutex
	nodes, ips, overdue map[string]int
	resyncs             int
}

func (m *gauges) set(to map[string]int, key string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	to[key] = n
}

func (m *gauges) SetAllocatedIPs(typ string, n int)         { m.set(m.ips, typ, n) }
func (m *gauges) SetNetResourceSets(category string, n int) { m.set(m.nodes, category, n) }
func (m *gauges) SetOverdueCalls(operation string, n int)   { m.set(m.overdue, operation, n) }
func (m *gauges) IncResyncCount()                           { m.mu.Lock(); m.resyncs++; m.mu.Unlock() }

func TestAHundredNodes(t *testing.T) {
	cloud, config := defaults()
	m := &gauges{MetricsAPI: netresource.NewMetrics("test"), nodes: map[string]int{}, ips: map[string]int{}, overdue: map[string]int{}}
	config.Metrics = m
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		for i := range 100 {
			r.add(nodeName(i), v1alpha1.IPAMSpec{MinAllocate: 10, PreAllocate: 1})
		}
		rest(2 * time.Minute)
		for i := range 100 {
			g.Expect(r.level(nodeName(i))).To(Equal([2]int{10, 0}))
		}
		g.Expect(r.manager.Close()).To(Succeed())
		g.Expect(m.nodes).To(Equal(map[string]int{"total": 100, "in-deficit": 0, "at-capacity": 0, "unknown": 0}))
		g.Expect(m.ips).To(Equal(map[string]int{"used": 0, "available": 1000, "needed": 0}))
		g.Expect(m.resyncs).To(BeNumerically(">", 0))
		g.Expect(r.cloud.Calls()["create"]).To(Equal(100), "each was asked for once")
	})
}

func TestNodesAreKnownByName(t *testing.T) {
	cloud, config := defaults()
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		r.add("node1", v1alpha1.IPAMSpec{})
		r.add("node2", v1alpha1.IPAMSpec{})
		rest(time.Minute)
		g.Expect(r.manager.GetNames()).To(Equal([]string{"node1", "node2"}))
		g.Expect(r.manager.Delete("node1")).To(Succeed())
		g.Expect(r.manager.Delete("node3")).To(Succeed())
		g.Expect(r.manager.GetNames()).To(Equal([]string{"node2"}))
		g.Expect(r.manager.Get("node1")).To(BeNil())
		n := r.manager.Get("node2")
		g.Expect(n.Stats()).To(Equal(netresource.Statistics{AvailableIPs: 8, RemainingInterfaces: 8}))
		g.Expect(n.Pool()).To(HaveLen(8))
		g.Expect(n.IsRunning()).To(BeTrue())
		g.Expect(n.ResourceCopy().Name).To(Equal("node2"))
		g.Expect(r.manager.Update(&v1alpha1.NetResourceSet{})).NotTo(Succeed())
	})
}

// fixed is a provider whose nodes have what the test says.
type fixed struct {
	netresource.AllocationImplementation
	has map[string]int
}

type fixedNode struct {
	netresource.NetResourceOperations
	f    fixed
	name string
}

func (f fixed) CreateNetResource(o *v1alpha1.NetResourceSet, _ *netresource.NetResource) netresource.NetResourceOperations {
	return &fixedNode{f: f, name: o.Name}
}
func (f fixed) GetPoolQuota() v1alpha1.PoolQuotaMap                { return nil }
func (f fixed) Resync(context.Context) time.Time                   { return time.Now() }
func (n *fixedNode) UpdatedNode(*v1alpha1.NetResourceSet)          {}
func (n *fixedNode) PopulateStatusFields(*v1alpha1.NetResourceSet) {}
func (n *fixedNode) GetMaximumAllocatableIPv4() int                { return 0 }
func (n *fixedNode) GetMinimumAllocatableIPv4() int                { return 10 }
func (n *fixedNode) IsPrefixDelegated() bool                       { return false }
func (n *fixedNode) GetMaximumBurstableAllocatableIPv4() int       { return 0 }
func (n *fixedNode) all() v1alpha1.AllocationMap {
	all, ip := v1alpha1.AllocationMap{}, netip.MustParseAddr("10.0.0.1")
	for range n.f.has[n.name] {
		all[ip.String()] = v1alpha1.AllocationIP{}
		ip = ip.Next()
	}
	return all
}

func TestThoseThatLackMostComeFirst(t *testing.T) {
	g := NewWithT(t)
	f := fixed{has: map[string]int{"a": 5, "b": 10, "c": 13, "d": 19, "e": 8}}
	_, config := defaults()
	config.Instances, config.API, config.ReleaseExcess = stubborn{f}, memapi.New(), true
	m, err := netresource.New(config)
	g.Expect(err).NotTo(HaveOccurred())
	for name := range f.has {
		nrs := &v1alpha1.NetResourceSet{}
		nrs.Name = name
		g.Expect(m.Create(nrs)).To(Succeed())
	}
	m.Resync(t.Context(), time.Now())
	var needs []int
	for _, n := range m.GetNodesByIPWatermark() {
		needs = append(needs, n.GetNeededAddresses())
	}
	g.Expect(needs).To(Equal([]int{5, 2, 0, -9, -3}))
}

// stubborn is fixed with what its nodes have.
type stubborn struct{ fixed }

func (s stubborn) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	return s.fixed.CreateNetResource(o, n)
}

func TestFaultsOfTheProviderLeakNothing(t *testing.T) {
	for seed := range 6 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cloud, config := defaults()
			config.ReleaseExcess, config.Consistency = true, 20*time.Second
			cloud.Lag, cloud.QPS = 5*time.Second, 20
			var faulty atomic.Bool
			cloud.Fault = func(c memcloud.Call) memcloud.Fault {
				if !faulty.Load() || (c.Number*7+seed)%3 != 0 {
					return memcloud.None
				}
				return memcloud.Fault(1 + (c.Number+seed)%3)
			}
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, cloud, config)
				faulty.Store(true)
				for i := range 10 {
					r.add(nodeName(i), v1alpha1.IPAMSpec{PreAllocate: 4})
				}
				for round := range 12 {
					for i := range 10 {
						r.agents[nodeName(i)].use((round*13 + i*7 + seed) % 30)
					}
					rest(15 * time.Second)
					if round == 6 { // killed, wherever it was; another one takes over
						_ = r.manager.Close()
						faulty.Store(false)
						rest(config.Consistency) // as the package asks for
						r.start(config)
						faulty.Store(true)
						again, _ := r.api.Lister().List(everything())
						for _, nrs := range again {
							_ = r.manager.Create(nrs)
						}
					}
				}
				faulty.Store(false)
				for i := range 10 {
					r.agents[nodeName(i)].use(10)
				}
				rest(15 * time.Minute)
				for i := range 10 {
					r.consistent(nodeName(i))
					NewWithT(t).Expect(r.level(nodeName(i))).To(Equal([2]int{14, 10}), nodeName(i))
					nrs, _ := r.api.Get(nodeName(i))
					NewWithT(t).Expect(nrs.Status.IPAM.ReleaseIPs).To(BeEmpty())
					NewWithT(t).Expect(nrs.Status.IPAM.OperatorStatus.Error).To(BeEmpty())
				}
				_ = r.manager.Close()
			})
		})
	}
}

func TestNothingIsChangedWhileTheProviderCannotBeRead(t *testing.T) {
	cloud, config := defaults()
	var broken atomic.Bool
	cloud.Fault = func(c memcloud.Call) memcloud.Fault {
		if broken.Load() && c.What == "describe" {
			return memcloud.Refuse
		}
		return memcloud.None
	}
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		broken.Store(true)
		rest(time.Minute)
		g.Expect(r.manager.InstancesAPIIsReady()).To(BeFalse())
		before := r.cloud.Calls()
		a.use(8)
		rest(time.Minute)
		g.Expect(r.cloud.Calls()["assign"]).To(Equal(before["assign"]))
		g.Expect(errors.Is(r.manager.Get("node").MaintainIPPool(t.Context()), netresource.ErrNotReady)).To(BeTrue())
		g.Expect(a.lacks()).To(BeZero(), "what the node has is allocated all the same")
		broken.Store(false)
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{16, 8}))
	})
}

func TestAProviderThatCannotBeReadIsNotStarted(t *testing.T) {
	g := NewWithT(t)
	cloud, config := defaults()
	cloud.Fault = func(memcloud.Call) memcloud.Fault { return memcloud.Refuse }
	config.Provider, config.API = providerOf(memcloud.New(cloud)), memapi.New()
	m, err := netresource.New(config)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(errors.Is(m.Start(t.Context()), netresource.ErrNotReady)).To(BeTrue())
	g.Expect(m.Close()).To(Succeed())
	_, err = netresource.New(netresource.Config{})
	g.Expect(err).To(HaveOccurred())
}

func TestPrefixesAreUnits(t *testing.T) {
	cloud, config := defaults()
	cloud.PrefixLen, config.ReleaseExcess, config.PrefixDelegation = 28, true, true
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 1})
		for _, s := range [][2]int{{0, 1}, {15, 1}, {16, 2}, {40, 3}} {
			a.use(s[0])
			rest(time.Minute)
			g.Expect(r.level("node")).To(Equal([2]int{s[1], s[0]}))
		}
		a.use(0)
		rest(10 * time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{1, 0}))
		g.Expect(r.manager.Get("node").IsPrefixDelegationEnabled()).To(BeTrue())
		r.consistent("node")
	})
}

// A prefix of which one address is used counts as used when an excess is counted.
func TestUsedPrefixesAreNoExcess(t *testing.T) {
	cloud, config := defaults()
	cloud.PrefixLen, config.ReleaseExcess = 28, true
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		a.use(40)
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{3, 40}))
		a.use(1)
		rest(10 * time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{2, 1}), "32 - 16 - 8 are less than a prefix")
		r.consistent("node")
	})
}

func TestPodsThatWaitAreServedAtOnce(t *testing.T) {
	cloud, config := defaults()
	var pending atomic.Int64
	config.Pending = func(string) int { return int(pending.Load()) }
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
		pending.Store(30)
		r.manager.Recount("node")
		r.manager.Recount("unknown")
		rest(100 * time.Millisecond)
		g.Expect(r.level("node")).To(Equal([2]int{30, 0}), "at once, not with the next look at all nodes")
	})
}
