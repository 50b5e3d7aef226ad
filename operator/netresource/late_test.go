// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"log/slog"
	"runtime"

	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
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

// A call whose outcome was read back long ago says nothing, when it returns, of the
// one that is under way now.
func TestACallReturnsAfterTheNextOneHasBegun(t *testing.T) {
	withUnwell(t, func(g *WithT, r *rig, u *unwell, _ func(), _ *gauges) {
		first, second := make(chan struct{}), make(chan struct{})
		a := r.add("a", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Minute)
		u.put("answer of AllocateIPs a", func() { <-first })
		a.use(4)
		rest(2 * time.Minute)
		g.Expect(r.level("a")).To(Equal([2]int{12, 4}))
		u.put("answer of AllocateIPs a", nil)
		u.put("AllocateIPs a", func() { <-second })
		a.use(8)
		rest(2 * time.Minute)
		made := u.count("CreateInterface a")
		close(first)
		rest(2 * time.Minute)
		g.Expect([]int{u.count("AllocateIPs a"), u.count("CreateInterface a")}).To(Equal([]int{2, made}))
		close(second)
		rest(2 * time.Minute)
		g.Expect(r.level("a")).To(Equal([2]int{16, 8}))
		r.consistent("a")
	})
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
	return p.Provider.CreateNetResource(o, n)
}

func (p refusing) Forget(name string) { p.enter("Forget " + name) }

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
			g.Expect(u.count("CreateNetResource a")).To(Equal(1), "it is not asked for again and again")
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
			g.Expect(u.count("Forget b")).To(BeNumerically(">=", 1), "the provider knows it")
		})
}

// What a provider forgets late is not what it has made for the next node of the name.
func TestANodeIsMadeAfterTheOneBeforeIsForgotten(t *testing.T) {
	bench(t, func(u *unwell) netresource.AllocationImplementation { return refusing{u} },
		func(g *WithT, m *netresource.NetResourceSetManager, _ *memapi.API, u *unwell) {
			slow := make(chan struct{})
			u.put("Forget b", func() { <-slow })
			g.Expect(m.Update(named("b"))).To(Succeed())
			g.Expect(m.Delete("b")).To(Succeed())
			g.Expect(m.Update(named("b"))).To(Succeed())
			rest(time.Hour)
			g.Expect(u.count("CreateNetResource b")).To(Equal(1), "the provider still forgets")
			close(slow)
			rest(time.Millisecond)
			g.Expect(u.count("CreateNetResource b")).To(Equal(2))
			g.Expect(m.Get("b").Ops()).NotTo(BeNil())
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
	})
}

// A provider that was not read knows no instance: that does not mean that none runs.
func TestAnInstanceIsNotMissedBeforeTheProviderIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cloud, config := defaults()
		config.Instances, config.API = unread{providerOf(memcloud.New(cloud))}, memapi.New()
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Update(named("a"))).To(Succeed())
		g.Expect(m.Get("a").IsRunning()).To(BeTrue())
		g.Expect(m.Get("a").Known()).To(BeFalse())
		g.Expect(m.Close()).To(Succeed())
	})
}

// unread is a provider that knows no instance yet.
type unread struct{ *cloudpool.Provider }

type unreadNode struct {
	netresource.NetResourceOperations
}

func (p unread) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	return unreadNode{p.Provider.CreateNetResource(o, n)}
}

func (unreadNode) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	return nil, netresource.ErrInstanceNotFound
}
