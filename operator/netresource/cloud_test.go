// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// families counts the addresses of both families in a node's pool.
func (r *rig) families(name string) (n [2]int) {
	nrs, err := r.api.Get(name)
	NewWithT(r.t).Expect(err).NotTo(HaveOccurred())
	for key := range nrs.Spec.IPAM.Pool {
		if strings.Contains(key, ":") {
			n[1]++
		} else {
			n[0]++
		}
	}
	return n
}

// attached returns the number of interfaces of a machine.
func attached(t *testing.T, c *memcloud.Cloud, instance string) int {
	s, err := c.Read(t.Context())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return len(s.Instances[instance].Interfaces)
}

// A dual-stack node grows and shrinks in both families, and its interfaces follow.
func TestDualStackNodeGrowsAndShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cc, config := defaults()
		cc.PerInterface, cc.Lag = 8, 3*time.Second
		cc.Second = map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("fd00::/64")}
		config.ReleaseExcess, config.Consistency = true, 5*time.Second
		r := &rig{t: t, api: memapi.New(), cloud: memcloud.New(cc), agents: map[string]*agent{}}
		r.api.Changed = r.changed
		config.Provider = cloudpool.New(cloudpool.Config{Cloud: r.cloud, Pre: 4, IPv4: true, IPv6: true, Consistency: 5 * time.Second, Log: quiet()})
		r.start(config)
		a := r.add("node", v1alpha1.IPAMSpec{})
		for _, x := range []struct{ pods, has, interfaces int }{{0, 4, 1}, {20, 24, 3}, {1, 5, 1}, {30, 34, 5}, {0, 4, 1}} {
			a.use(x.pods)
			rest(5 * time.Minute)
			g.Expect(r.families("node")).To(Equal([2]int{x.has, x.has}), "%d pods", x.pods)
			g.Expect(attached(t, r.cloud, "node")).To(Equal(x.interfaces), "%d pods", x.pods)
			r.consistent("node")
			nrs, err := r.api.Get("node")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(nrs.Status.Interfaces).To(HaveLen(x.interfaces))
			for key, at := range nrs.Spec.IPAM.Pool {
				g.Expect(nrs.Status.Interfaces).To(HaveKey(at.Resource), key)
			}
		}
		g.Expect(r.manager.Close()).To(Succeed())
	})
}

// An address is in the pool only after the status describes its interface.
func TestStatusDescribesInterfaceBeforeItsFirstAddress(t *testing.T) {
	cc, config := defaults()
	cc.PerInterface, config.ReleaseExcess = 4, true
	simulated(t, cc, config, func(t *testing.T, g *WithT, r *rig) {
		changed := r.api.Changed
		r.api.Changed = func(nrs *v1alpha1.NetResourceSet) {
			for key, at := range nrs.Spec.IPAM.Pool {
				g.Expect(nrs.Status.Interfaces[at.Resource].MAC).NotTo(BeEmpty(), "%s of %s", key, at.Resource)
			}
			changed(nrs)
		}
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 2})
		for _, pods := range []int{0, 14, 3, 0, 9} {
			a.use(pods)
			rest(3 * time.Minute)
		}
		g.Expect(attached(t, r.cloud, "node")).To(BeNumerically(">", 1))
	})
}

// The excess counts all addresses of a used prefix as used, also if the provider lists them
// one by one.
func TestPrefixesThatAreListedAsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		cc, config := defaults()
		cc.PrefixLen, config.ReleaseExcess = 28, true
		r := &rig{t: t, api: memapi.New(), cloud: memcloud.New(cc), agents: map[string]*agent{}}
		r.api.Changed = r.changed
		config.Instances = published(r.cloud)
		r.start(config)
		a := r.add("node", v1alpha1.IPAMSpec{PreAllocate: 8})
		a.use(40)
		rest(time.Minute)
		g.Expect(r.level("node")).To(Equal([2]int{48, 40}))
		a.use(17) // sorted as text, one of them is in the last prefix
		rest(10 * time.Minute)
		g.Expect(r.level("node")[0]).To(BeNumerically(">=", 32))
		nrs, err := r.api.Get("node")
		g.Expect(err).NotTo(HaveOccurred())
		inUse := map[netip.Prefix]bool{}
		for l := range nrs.Status.IPAM.Used {
			inUse[netip.PrefixFrom(netip.MustParseAddr(l), 28).Masked()] = true
		}
		g.Expect(r.cloud.Units("node")).To(HaveLen(max(len(inUse), 2)+1), "8 more are free, and what is used stays: %v", inUse)
		g.Expect(nrs.Status.IPAM.ReleaseIPs).To(BeEmpty(), "no address is asked back in vain")
		a.use(0)
		rest(10 * time.Minute)
		g.Expect(r.cloud.Units("node")).To(HaveLen(1))
		g.Expect(r.level("node")).To(Equal([2]int{16, 0}))
		g.Expect(r.manager.Close()).To(Succeed())
	})
}
