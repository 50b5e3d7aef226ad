// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// TestNothingIsAskedForTwiceInDoubt: the answer to a call was lost, and until
// a reading of the provider its outcome is not known.
func TestNothingIsAskedForTwiceInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cc, config := defaults()
		cc.Fault = func(c memcloud.Call) memcloud.Fault {
			if c.What == "create" {
				return memcloud.Tear
			}
			return memcloud.None
		}
		cloud, api := memcloud.New(cc), memapi.New()
		provider := providerOf(cloud)
		config.Provider, config.API = provider, api
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		nrs := &v1alpha1.NetResourceSet{}
		nrs.Name = "node"
		cloud.AddInstance("node", "")
		nrs, err = api.Create(nrs)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Create(nrs)).To(Succeed())
		before, err := provider.Read(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		m.SetInstancesAPIReadiness(true)
		time.Sleep(time.Second)
		g.Expect(m.Get("node").MaintainIPPool(t.Context())).NotTo(Succeed())
		seen, _ := api.Get("node")
		g.Expect(seen.Status.IPAM.OperatorStatus.Error).To(ContainSubstring("create an interface"))
		for _, begun := range []time.Time{{}, before} {
			time.Sleep(time.Minute)
			m.Resync(t.Context(), begun)
			g.Expect(m.Get("node").MaintainIPPool(t.Context())).To(Succeed())
			g.Expect(cloud.Calls()["create"]).To(Equal(1), "a reading from before the call says nothing")
		}
		now, err := provider.Read(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		m.Resync(t.Context(), now)
		g.Expect(m.Get("node").MaintainIPPool(t.Context())).To(Succeed())
		g.Expect(cloud.Calls()["create"]).To(Equal(1), "it was done")
		g.Expect(m.Get("node").Pool()).To(HaveLen(8))
		seen, _ = api.Get("node")
		g.Expect(seen.Spec.IPAM.Pool).To(HaveLen(8))
		g.Expect(seen.Status.IPAM.OperatorStatus.Error).To(BeEmpty())
	})
}

// forgetful is a provider that shows what was released for another 20 seconds.
type forgetful struct {
	*cloudpool.Provider

	mu   sync.Mutex
	gone map[string]time.Time
}

func (f *forgetful) Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *netresource.ReleaseAction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, key := range a.IPsToRelease {
		f.gone[key] = time.Now()
	}
	return f.Provider.Release(ctx, set, a)
}

func (f *forgetful) State(ctx context.Context, set *v1alpha1.NetResourceSet) (netresource.State, error) {
	s, err := f.Provider.State(ctx, set)
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, at := range f.gone {
		if time.Since(at) < 20*time.Second {
			s.Available[key] = v1alpha1.AllocationIP{}
		}
	}
	return s, err
}

func TestReleasedAddressIsNotAllocatedWhileTheProviderStillShowsIt(t *testing.T) {
	cloud, config := defaults()
	config.ReleaseExcess = true
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, cloud, config)
		_ = r.manager.Close()
		config.Provider = &forgetful{Provider: providerOf(r.cloud), gone: map[string]time.Time{}}
		r.start(config)
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 4})
		for round := range 10 {
			a.use(20 - 15*(round%2))
			for range 30 {
				rest(time.Second)
				real := map[string]bool{}
				for _, u := range r.cloud.Units("node") {
					real[u.Addr().String()] = true
				}
				a.mu.Lock()
				for l := range a.leases {
					NewWithT(t).Expect(real).To(HaveKey(l), "%s is leased and not the node's", l)
				}
				a.mu.Unlock()
			}
		}
		NewWithT(t).Expect(r.cloud.Calls()["unassign"]).To(BeNumerically(">", 0))
		a.use(5)
		rest(5 * time.Minute)
		r.consistent("node")
		NewWithT(t).Expect(r.level("node")).To(Equal([2]int{9, 5}))
		_ = r.manager.Close()
	})
}

// TestWhatWasReadyInAnotherLifeIsAskedAgain: the API server came back older, and
// what an agent had said to be ready it may have allocated since.
func TestWhatWasReadyInAnotherLifeIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		api, provider := memapi.New(), clusterpool.New(clusterpool.Config{})
		_, config := defaults()
		config.Provider, config.API, config.ReleaseExcess = provider, api, true
		nrs := &v1alpha1.NetResourceSet{}
		nrs.Name, nrs.Spec.IPAM.PreAllocate = "node", 8
		nrs.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.0.0.0/28": {}, "10.0.0.16/28": {}, "10.0.0.32/28": {}}
		nrs.Status.IPAM.ReleaseIPs = map[string]handshake.State{"10.0.0.32/28": handshake.Ready}
		nrs, err := api.Create(nrs)
		g.Expect(err).NotTo(HaveOccurred())
		m, err := netresource.New(config)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Create(nrs)).To(Succeed())
		api.Changed = func(n *v1alpha1.NetResourceSet) { _ = m.Update(n) }
		g.Expect(m.Start(t.Context())).To(Succeed())
		said := func() (handshake.State, int) {
			rest(time.Minute)
			n, err := api.Get("node")
			g.Expect(err).NotTo(HaveOccurred())
			return n.Status.IPAM.ReleaseIPs["10.0.0.32/28"], len(n.Spec.IPAM.Pool)
		}
		state, blocks := said()
		g.Expect(state).To(Equal(handshake.Marked))
		g.Expect(blocks).To(Equal(3), "nothing was given back")
		g.Expect(api.Change("node", func(n *v1alpha1.NetResourceSet) {
			n.Status.IPAM.ReleaseIPs["10.0.0.32/28"] = handshake.Ready
		})).To(Succeed())
		state, blocks = said()
		g.Expect(state).To(Equal(handshake.Released), "now it is true")
		g.Expect(blocks).To(Equal(2))
		g.Expect(m.Close()).To(Succeed())
	})
}
