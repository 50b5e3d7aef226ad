// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"

	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// again deletes a node, and makes it again with a new agent.
func (r *rig) again(name string, spec v1alpha1.IPAMSpec) *agent {
	r.mu.Lock()
	delete(r.agents, name)
	r.mu.Unlock()
	NewWithT(r.t).Expect(r.api.Delete(name)).To(Succeed())
	NewWithT(r.t).Expect(r.manager.Delete(name)).To(Succeed())
	return r.add(name, spec)
}

// A node that was made again has the machine of the node before it, and with it a
// call that has not returned. Nothing is taken for the node until then, and it goes
// on whatever the outcome is.
func TestACallReturnsAfterItsNodeWasMadeAgain(t *testing.T) {
	for outcome, fails := range map[string]bool{"it was done": false, "it was not done": true} {
		t.Run(outcome, func(t *testing.T) {
			withUnwell(t, func(g *WithT, r *rig, u *unwell, _ func(), _ *gauges) {
				slow, spec := make(chan struct{}), v1alpha1.IPAMSpec{PreAllocate: 8}
				a := r.add("a", spec)
				rest(time.Minute)
				u.put("AllocateIPs a", func() {
					if <-slow; fails {
						panic("the call fails")
					}
				})
				a.use(4)
				rest(2 * time.Minute)
				g.Expect(u.count("AllocateIPs a")).To(Equal(1))
				made := u.count("CreateInterface a")
				a = r.again("a", spec)
				rest(time.Minute)
				a.use(4)
				rest(2 * time.Minute)
				g.Expect([]int{u.count("AllocateIPs a"), u.count("CreateInterface a")}).To(Equal([]int{1, made}), "no call that takes addresses before the first has returned")
				u.put("AllocateIPs a", nil)
				close(slow)
				rest(2 * time.Minute)
				g.Expect(r.level("a")).To(Equal([2]int{12, 4}))
				r.consistent("a")
			})
		})
	}
}

// What a call gives back that has not returned is not in the pool of a node that was
// made again: its agent would let pods have it.
func TestAReleaseReturnsAfterItsNodeWasMadeAgain(t *testing.T) {
	withUnwell(t, func(g *WithT, r *rig, u *unwell, _ func(), _ *gauges) {
		slow, spec := make(chan struct{}), v1alpha1.IPAMSpec{PreAllocate: 4}
		a := r.add("a", spec)
		rest(time.Minute)
		a.use(12)
		rest(time.Minute)
		u.put("ReleaseIPs a", func() { <-slow })
		a.use(0)
		rest(2 * time.Minute)
		g.Expect(u.count("ReleaseIPs a")).To(BeNumerically(">", 0))
		a = r.again("a", spec)
		a.use(16)
		rest(2 * time.Minute)
		u.put("ReleaseIPs a", nil)
		close(slow)
		rest(2 * time.Minute)
		g.Expect(a.lacks()).To(BeZero())
		r.consistent("a")
	})
}

// The cloud shows for a while what was released late: no agent gets it from the pool.
func TestWhatIsReleasedLateIsNotInThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, slow, spec := NewWithT(t), make(chan struct{}), v1alpha1.IPAMSpec{PreAllocate: 4}
		cloud, config := defaults()
		cloud.Lag, config.ReleaseExcess = 20*time.Second, true
		r := &rig{t: t, api: memapi.New(), cloud: memcloud.New(cloud), agents: map[string]*agent{}}
		r.api.Changed = r.changed
		u := newUnwell(r.cloud)
		config.Instances = u
		r.start(config)
		a := r.add("a", spec)
		rest(time.Minute)
		a.use(12)
		rest(2 * time.Minute)
		u.put("ReleaseIPs a", func() { <-slow })
		a.use(0)
		rest(2 * time.Minute)
		u.put("ReleaseIPs a", nil)
		a = r.again("a", spec)
		close(slow)
		for i := range 60 {
			rest(time.Second)
			a.use(i % 16)
			real := map[string]bool{}
			for _, b := range r.cloud.Units("a") {
				real[b.Addr().String()] = true
			}
			a.mu.Lock()
			for l := range a.leases {
				g.Expect(real).To(HaveKey(l), "%s is leased and not the node's", l)
			}
			a.mu.Unlock()
		}
		g.Expect(r.manager.Close()).To(Succeed())
	})
}

// A published provider takes its own time between two calls: the manager may have lost the
// leadership meanwhile.
func TestADeposedManagerMakesNoSecondCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cloud, config := defaults()
		var deposed atomic.Bool
		config.Fence = func(context.Context) error {
			if deposed.Load() {
				return errors.New("another one leads")
			}
			return nil
		}
		cloud.Fault = func(c memcloud.Call) memcloud.Fault {
			if c.What == "assign" {
				deposed.Store(true)
				return memcloud.Refuse
			}
			return memcloud.None
		}
		r := &rig{t: t, api: memapi.New(), cloud: memcloud.New(cloud), agents: map[string]*agent{}}
		r.api.Changed = r.changed
		u := newUnwell(r.cloud)
		config.Instances = u
		r.start(config)
		a := r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		g.Expect(u.count("CreateInterface a")).To(Equal(1))
		a.use(4)
		rest(time.Minute)
		g.Expect(deposed.Load()).To(BeTrue())
		g.Expect(u.count("CreateInterface a")).To(Equal(1))
		g.Expect(r.manager.Close()).To(Succeed())
	})
}

// Rounds of nodes that wait for a call of the same node leave the workers to others.
func TestRoundsThatWaitForACallDoNotStopOthers(t *testing.T) {
	withUnwell(t, func(g *WithT, r *rig, u *unwell, hang func(), _ *gauges) {
		all := map[string]*agent{}
		for _, name := range []string{"a", "b", "z"} {
			all[name] = r.add(name, v1alpha1.IPAMSpec{PreAllocate: 4})
		}
		rest(time.Minute)
		before := u.count("ResyncInterfacesAndIPs a") + u.count("ResyncInterfacesAndIPs b")
		u.put("ResyncInterfacesAndIPs a", hang)
		u.put("ResyncInterfacesAndIPs b", hang)
		for u.count("ResyncInterfacesAndIPs a")+u.count("ResyncInterfacesAndIPs b") < before+2 {
			rest(100 * time.Millisecond)
		}
		rest(2 * time.Second)
		for _, name := range []string{"a", "b", "z"} {
			all[name].use(4)
			rest(100 * time.Millisecond)
		}
		rest(time.Second)
		g.Expect(r.level("z")).To(Equal([2]int{8, 4}), "long before the calls of a and b are given up")
	})
}

// refusing is a provider that takes long to refuse node a.
type refusing struct{ *unwell }

func (p refusing) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	if p.enter("CreateNetResource " + o.Name); o.Name == "a" {
		return nil
	}
	return p.foreign.CreateNetResource(o, n)
}

// bench is a manager with a provider that is unwell, without agents.
func bench(t *testing.T, of func(*unwell) netresource.AllocationImplementation, test func(g *WithT, m *netresource.NetResourceSetManager, api *memapi.API, u *unwell)) {
	synctest.Test(t, func(t *testing.T) {
		cloud, config := defaults()
		u, api := newUnwell(memcloud.New(cloud)), memapi.New()
		config.Instances, config.API = of(u), api
		m, err := netresource.New(config)
		g := NewWithT(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Start(t.Context())).To(Succeed())
		defer func() { g.Expect(m.Close()).To(Succeed()) }()
		test(g, m, api, u)
	})
}

// A node that the provider refuses is asked for again with its next version.
func TestANodeIsRefused(t *testing.T) {
	bench(t, func(u *unwell) netresource.AllocationImplementation { return refusing{u} },
		func(g *WithT, m *netresource.NetResourceSetManager, _ *memapi.API, u *unwell) {
			for range 2 {
				g.Expect(m.Update(named("a"))).To(MatchError(netresource.ErrRefused))
				g.Expect(m.GetNames()).To(BeEmpty())
			}
			g.Expect(u.count("CreateNetResource a")).To(Equal(2))
		})
}

// A node that the provider refuses is not the manager's, also if the answer comes late.
func TestANodeIsRefusedLate(t *testing.T) {
	bench(t, func(u *unwell) netresource.AllocationImplementation { return refusing{u} },
		func(g *WithT, m *netresource.NetResourceSetManager, api *memapi.API, u *unwell) {
			slow := make(chan struct{})
			u.put("CreateNetResource a", func() { <-slow })
			created, err := api.Create(named("a"))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(m.Update(created)).To(Succeed())
			g.Expect(m.GetNames()).To(Equal([]string{"a"}))
			close(slow)
			rest(time.Minute)
			g.Expect(m.GetNames()).To(BeEmpty())
			writes := api.Writes()
			rest(10 * time.Minute)
			g.Expect(u.count("CreateNetResource a")).To(Equal(2), "once more for the answer that came late, not again and again")
			g.Expect(api.Writes()).To(Equal(writes), "its NetResourceSet is not the manager's to write")
		})
}

// A node that is deleted while the provider makes what serves it stays deleted.
func TestANodeThatIsDeletedStaysDeleted(t *testing.T) {
	bench(t, func(u *unwell) netresource.AllocationImplementation { return refusing{u} },
		func(g *WithT, m *netresource.NetResourceSetManager, _ *memapi.API, u *unwell) {
			slow := make(chan struct{})
			u.put("CreateNetResource b", func() { panic("a defect") })
			g.Expect(m.Update(named("b"))).To(Succeed())
			u.put("CreateNetResource b", func() { <-slow })
			for u.count("CreateNetResource b") < 2 { // a round tries again
				rest(10 * time.Millisecond)
			}
			g.Expect(m.Delete("b")).To(Succeed())
			close(slow)
			rest(time.Minute)
			g.Expect(m.GetNames()).To(BeEmpty())
		})
}

// A plan that comes after its deadline leads to no call: another manager may lead by then.
func TestAPlanThatComesLateLeadsToNoCall(t *testing.T) {
	withUnwell(t, func(g *WithT, r *rig, u *unwell, _ func(), _ *gauges) {
		slow := make(chan struct{})
		a := r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		u.put("PrepareIPAllocation a", func() { <-slow })
		a.use(4)
		rest(time.Minute)
		u.put("ResyncInterfacesAndIPs a", func() { panic("nothing more is decided") })
		close(slow)
		rest(time.Minute)
		g.Expect(u.count("AllocateIPs a")).To(BeZero())
	})
}

// A call that ends its goroutine is one that has panicked.
func TestACallThatEndsItsGoroutine(t *testing.T) {
	withUnwell(t, func(g *WithT, r *rig, u *unwell, _ func(), m *gauges) {
		u.put("ResyncInterfacesAndIPs a", runtime.Goexit)
		r.add("a", v1alpha1.IPAMSpec{PreAllocate: 4})
		rest(2 * time.Minute)
		nrs, err := r.api.Get("a")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(nrs.Status.IPAM.OperatorStatus.Error).To(ContainSubstring("ended its goroutine"))
		m.mu.Lock()
		g.Expect(m.overdue["ResyncInterfacesAndIPs"]).To(BeZero())
		m.mu.Unlock()
		u.put("ResyncInterfacesAndIPs a", nil)
		rest(2 * time.Minute)
		g.Expect(r.level("a")).To(Equal([2]int{4, 0}))
	})
}

// After Close the provider is not called, also not because a call has returned late.
func TestTheProviderIsNotCalledAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, slow := NewWithT(t), make(chan struct{})
		cloud, config := defaults()
		u := newUnwell(memcloud.New(cloud))
		u.put("UpdatedNode a", func() { <-slow })
		config.Instances, config.API = u, memapi.New()
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Start(t.Context())).To(Succeed())
		g.Expect(m.Update(named("a"))).To(Succeed())
		g.Expect(m.Close()).To(MatchError(ContainSubstring("UpdatedNode for node a")))
		before := u.count("UpdatedNode a")
		close(slow)
		rest(time.Minute)
		g.Expect(m.Update(named("b"))).To(Succeed())
		g.Expect(m.Get("b").Ops()).To(BeNil())
		g.Expect(u.count("UpdatedNode a")).To(Equal(before))
		g.Expect(u.count("CreateNetResource b")).To(BeZero())
		before = u.count("ResyncInterfacesAndIPs a")
		m.SetInstancesAPIReadiness(true)
		_ = m.Get("a").MaintainIPPool(t.Context())
		g.Expect(u.count("ResyncInterfacesAndIPs a")).To(Equal(before))
	})
}

// A provider that was not read knows no instance: that does not mean that none runs.
func TestAnInstanceIsNotMissedBeforeTheProviderIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cloud, config := defaults()
		config.Instances, config.API = unread{published(memcloud.New(cloud))}, memapi.New()
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Update(named("a"))).To(Succeed())
		g.Expect(m.Get("a").IsRunning()).To(BeTrue())
		g.Expect(m.Get("a").Known()).To(BeFalse())
		g.Expect(m.Close()).To(Succeed())
	})
}

// unread is a provider that knows no instance yet.
type unread struct{ *foreign }

type unreadNode struct {
	netresource.NetResourceOperations
}

func (p unread) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	return unreadNode{p.foreign.CreateNetResource(o, n)}
}

func (unreadNode) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	return nil, netresource.ErrInstanceNotFound
}
