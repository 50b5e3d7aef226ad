// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
	"github.com/cadastre/cadastre/operator/netresource/objects"
)

// TestALateProviderIsWaitedFor: the cloud shows for 20 seconds what it was, and
// the manager that has called it ends. The next one must not call it again.
func TestALateProviderIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, config := defaults()
		cloud.Lag, config.Consistency = 20*time.Second, 30*time.Second
		r := newRig(t, cloud, config)
		r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		rest(time.Second)
		g := NewWithT(t)
		g.Expect(r.level("node")).To(Equal([2]int{8, 0}))
		_ = r.manager.Close()

		config.Since = time.Now()
		config.Provider, config.API = providerOf(r.cloud), r.api
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		r.mu.Lock()
		r.manager = m
		r.mu.Unlock()
		nrs, err := r.api.Get("node")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Create(nrs)).To(Succeed())
		g.Expect(m.Start(t.Context())).To(Succeed())
		g.Expect(time.Since(config.Since)).To(BeNumerically("~", 30*time.Second, time.Second))
		rest(time.Minute)
		g.Expect(r.cloud.Calls()["create"]).To(Equal(1))
		g.Expect(r.cloud.Units("node")).To(HaveLen(8))
		r.consistent("node")
		_ = m.Close()
	})
}

// TestATakeoverEnds with its context, while it waits.
func TestATakeoverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cloud, config := defaults()
		config.Provider, config.API, config.Since = providerOf(memcloud.New(cloud)), memapi.New(), time.Now()
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		g.Expect(errors.Is(m.Start(ctx), context.DeadlineExceeded)).To(BeTrue())
		g.Expect(m.InstancesAPIIsReady()).To(BeFalse())
		g.Expect(m.Close()).To(Succeed())
	})
}

// slow is an API server that a writer's request for the pool of node z reaches late.
type slow struct {
	*memapi.API
	arrives chan struct{}
	answer  chan error
}

func (s *slow) Update(a, b *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	if b.Name != "z" || len(b.Spec.IPAM.Pool) == 0 {
		return s.API.Update(a, b)
	}
	<-s.arrives
	written, err := s.API.Update(a, b)
	s.answer <- err
	return written, err
}

// late makes z, and a manager that gives it a block of /28. The request is under way when the
// manager is deposed.
func late(t *testing.T, api *memapi.API, cidr string) (*slow, *netresource.NetResourceSetManager) {
	g := NewWithT(t)
	way := &slow{API: api, arrives: make(chan struct{}), answer: make(chan error, 9)}
	var deposed atomic.Bool
	one := poolManager(t, way, cidr, func(context.Context) error {
		if deposed.Load() {
			return errors.New("another manager leads")
		}
		return nil
	})
	_, err := api.Create(named("z"))
	g.Expect(err).NotTo(HaveOccurred())
	follow(api, one)
	g.Expect(one.Start(t.Context())).To(Succeed())
	rest(5 * time.Second)
	z, err := api.Get("z")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(z.Spec.IPAM.Pool).To(BeEmpty(), "it has not arrived")
	g.Expect(netresource.IntentOf(z)).To(HaveLen(1), "it was announced")
	deposed.Store(true)
	return way, one
}

// TestAWriteThatIsLate: the leader gives node z the only block, and the request is under way
// when another one takes over. No other node gets the block, whenever the request arrives.
func TestAWriteThatIsLate(t *testing.T) {
	for what, before := range map[string]bool{"it arrives before the takeover": true, "it arrives after it": false} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, api := NewWithT(t), memapi.New()
				way, one := late(t, api, "10.0.0.0/28")
				_, err := api.Create(named("b"))
				g.Expect(err).NotTo(HaveOccurred())
				if before {
					close(way.arrives)
					g.Expect(<-way.answer).To(Succeed())
				}
				two := poolManager(t, api, "10.0.0.0/28", nil)
				follow(api, two)
				g.Expect(two.Start(t.Context())).To(Succeed())
				rest(time.Minute)
				if !before {
					close(way.arrives)
					g.Expect(apierrors.IsConflict(<-way.answer)).To(BeTrue())
				}
				g.Expect(one.Close()).To(Succeed())
				rest(time.Minute)
				g.Expect(poolSizes(api)).To(Equal(map[string]int{"z": 1, "b": 0}))
				z, err := api.Get("z")
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(netresource.IntentOf(z)).To(BeEmpty())
				g.Expect(two.Close()).To(Succeed())
			})
		})
	}
}

// TestABlockThatMayStillArriveIsHeldBack: the leader's request with a block for node z is under
// way, and the API server refuses all that the next leader writes to z. The next leader serves
// the other nodes, and gives none of them that block.
func TestABlockThatMayStillArriveIsHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, api := NewWithT(t), memapi.New()
		way, one := late(t, api, "10.0.0.0/26")
		z, err := api.Get("z")
		g.Expect(err).NotTo(HaveOccurred())
		announced := netresource.IntentOf(z)[0]
		for i := range 4 { // as many as there are blocks
			_, err := api.Create(named(fmt.Sprint("n", i)))
			g.Expect(err).NotTo(HaveOccurred())
		}
		var refuses atomic.Bool
		refuses.Store(true)
		api.Fault = func(call, name string) error {
			if refuses.Load() && name == "z" && call != "get" {
				return apierrors.NewForbidden(v1alpha1.Resource(v1alpha1.NetResourceSets).GroupResource(), name, errors.New("policy"))
			}
			return nil
		}
		two := poolManager(t, api, "10.0.0.0/26", nil)
		follow(api, two)
		g.Expect(two.Start(t.Context())).To(Succeed())
		rest(time.Hour)
		served := 0
		all, _ := api.Lister().List(everything())
		for _, nrs := range all {
			served += len(nrs.Spec.IPAM.Pool)
			g.Expect(nrs.Spec.IPAM.Pool).NotTo(HaveKey(announced), nrs.Name)
		}
		g.Expect(served).To(Equal(3), "all blocks but the one that may still arrive")

		refuses.Store(false)
		close(way.arrives)
		g.Expect(<-way.answer).To(Succeed())
		rest(2 * time.Minute)
		z, err = api.Get("z")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(z.Spec.IPAM.Pool).To(HaveLen(1))
		g.Expect(z.Spec.IPAM.Pool).To(HaveKey(announced))
		g.Expect(one.Close()).To(Succeed())
		g.Expect(two.Close()).To(Succeed())
	})
}

// TestAnnouncementsAreReadFromTheAPIServer: an informer's first list is older than the
// announcement of a former leader.
func TestAnnouncementsAreReadFromTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, gvr := NewWithT(t), v1alpha1.Resource(v1alpha1.NetResourceSets)
		server := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "NetResourceSetList"})
		encode := func(n *v1alpha1.NetResourceSet, version string, announced string) *unstructured.Unstructured {
			n = n.DeepCopy()
			n.ResourceVersion = version
			if announced != "" {
				n.Annotations = map[string]string{netresource.IntentAnnotation: announced}
			}
			u, err := objects.Encode(n, "NetResourceSet")
			g.Expect(err).NotTo(HaveOccurred())
			return u
		}
		g.Expect(server.Tracker().Create(gvr, encode(named("a"), "5", ""), "")).To(Succeed())
		g.Expect(server.Tracker().Create(gvr, encode(named("z"), "7", "10.0.0.0/28"), "")).To(Succeed())
		lists := 0
		server.PrependReactor("list", gvr.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return lists == 1, &unstructured.UnstructuredList{
				Object: map[string]any{"kind": "NetResourceSetList", "apiVersion": "cadastre.dev/v1alpha1"},
				Items:  []unstructured.Unstructured{*encode(named("a"), "5", ""), *encode(named("z"), "6", "")},
			}, nil
		})
		server.PrependWatchReactor(gvr.Resource, func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), nil })
		client := netresource.NewClient(server, 0)
		m := poolManager(t, client, "10.0.0.0/28", nil)
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { _ = client.Run(ctx, m) })
		rest(20 * time.Second)
		g.Expect(m.Get("z").Pool()).To(HaveKey("10.0.0.0/28"))
		g.Expect(m.Get("a").Pool()).To(BeEmpty())
		cancel()
		work.Wait()
	})
}

func named(name string) *v1alpha1.NetResourceSet {
	n := &v1alpha1.NetResourceSet{}
	n.Name = name
	n.Spec.IPAM.PreAllocate = 4
	return n
}

// poolManager is a manager, with two workers, of the blocks of /28 of one range.
func poolManager(
	t *testing.T,
	api netresource.NetResourceSetGetterUpdater,
	cidr string,
	fence func(context.Context) error,
) *netresource.NetResourceSetManager {
	p := clusterpool.New(clusterpool.Config{})
	pool := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: cidr, BlockPrefixLen: 28}}}}
	pool.Name = "only"
	NewWithT(t).Expect(p.SetPool(pool)).To(Succeed())
	m, err := netresource.New(netresource.Config{Provider: p, API: api, Fence: fence, Consistency: -1, Workers: 2, Log: quiet()})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return m
}

// TestTheFenceIsAskedFirst: while it says no, nothing is written and nothing is
// called; many who wait are answered together.
func TestTheFenceIsAskedFirst(t *testing.T) {
	cloud, config := defaults()
	errDeposed := errors.New("another one leads")
	var deposed atomic.Bool
	var refuses atomic.Bool
	var asked atomic.Int64
	cloud.Fault = func(c memcloud.Call) memcloud.Fault {
		if refuses.Load() && c.What == "create" {
			return memcloud.Refuse
		}
		return memcloud.None
	}
	config.Workers = 50
	config.Fence = func(ctx context.Context) error {
		asked.Add(1)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
		if deposed.Load() {
			return errDeposed
		}
		return nil
	}
	simulated(t, cloud, config, func(t *testing.T, g *WithT, r *rig) {
		for i := range 100 {
			r.add(nodeName(i), v1alpha1.IPAMSpec{PreAllocate: 4})
		}
		rest(time.Minute)
		for i := range 100 {
			g.Expect(r.level(nodeName(i))).To(Equal([2]int{4, 0}))
		}
		g.Expect(r.api.Writes() + r.cloud.Calls()["create"]).To(BeNumerically(">=", 400))
		g.Expect(asked.Load()).To(BeNumerically("<", 40))
		refuses.Store(true)
		r.add("late", v1alpha1.IPAMSpec{PreAllocate: 4})
		rest(10 * time.Minute) // all that can be written of it is
		deposed.Store(true)
		rest(time.Second)
		r.add("later", v1alpha1.IPAMSpec{PreAllocate: 4})
		writes, calls := r.api.Writes(), r.cloud.Calls()
		g.Expect(calls["create"]).To(BeNumerically(">", 100))
		rest(10 * time.Minute)
		g.Expect(r.api.Writes()).To(Equal(writes))
		g.Expect(r.cloud.Calls()["create"]).To(Equal(calls["create"]))
		g.Expect(r.manager.Get("later").MaintainIPPool(t.Context())).To(Or(Succeed(), MatchError(errDeposed)))
	})
}

// TestAllNetResourceSetsAreSeenFirst: an informer's first list may be old.
func TestAllNetResourceSetsAreSeenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, gvr := NewWithT(t), v1alpha1.Resource(v1alpha1.NetResourceSets)
		server := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "NetResourceSetList"})
		tracker, lists := server.Tracker(), 0
		encode := func(n *v1alpha1.NetResourceSet) *unstructured.Unstructured {
			u, err := objects.Encode(n, "NetResourceSet")
			g.Expect(err).NotTo(HaveOccurred())
			return u
		}
		a, z := named("a"), encode(named("z"))
		a.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.0.0.0/28": {}}
		g.Expect(tracker.Create(gvr, encode(a), "")).To(Succeed())
		g.Expect(tracker.Create(gvr, z, "")).To(Succeed())
		server.PrependReactor("list", gvr.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return lists == 1, &unstructured.UnstructuredList{Object: map[string]any{"kind": "NetResourceSetList", "apiVersion": "cadastre.dev/v1alpha1"}, Items: []unstructured.Unstructured{*z}}, nil
		})
		watched := watch.NewFake()
		server.PrependWatchReactor(gvr.Resource, func(clienttesting.Action) (bool, watch.Interface, error) { return true, watched, nil })
		client := netresource.NewClient(server, 0)
		m := poolManager(t, client, "10.0.0.0/28", nil)
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() { _ = client.Run(ctx, m) })
		rest(20 * time.Second)
		g.Expect(m.InstancesAPIIsReady()).To(BeFalse(), "nothing is decided")
		watched.Add(encode(a))
		rest(20 * time.Second)
		g.Expect(m.InstancesAPIIsReady()).To(BeTrue())
		g.Expect(m.GetNames()).To(Equal([]string{"a", "z"}))
		g.Expect(m.Get("z").Pool()).To(BeEmpty())
		cancel()
		work.Wait()
	})
}

// TestAProviderIsReadAgain: a leader takes over from a cloud that refuses its requests for a
// while.
func TestAProviderIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, gvr := NewWithT(t), v1alpha1.Resource(v1alpha1.NetResourceSets)
		server := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{gvr: "NetResourceSetList"})
		cc, config := defaults()
		var reads atomic.Int64
		var serves atomic.Bool
		cc.Fault = func(memcloud.Call) memcloud.Fault {
			if reads.Add(1); !serves.Load() {
				return memcloud.Refuse
			}
			return memcloud.None
		}
		client := netresource.NewClient(server, 0)
		config.Provider, config.API = providerOf(memcloud.New(cc)), client
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- client.Run(ctx, m) }()
		rest(10 * time.Minute)
		g.Expect(ended).NotTo(Receive())
		g.Expect(m.InstancesAPIIsReady()).To(BeFalse())
		g.Expect(reads.Load()).To(And(BeNumerically(">", 20), BeNumerically("<", 100)), "the waits grow to a limit")
		serves.Store(true)
		rest(time.Minute)
		g.Expect(m.InstancesAPIIsReady()).To(BeTrue())
		cancel()
		g.Expect(<-ended).To(Succeed())
	})
}
