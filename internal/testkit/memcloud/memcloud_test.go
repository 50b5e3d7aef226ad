// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// scene holds a cloud with one machine, and a clock that stands still.
type scene struct {
	cloud *memcloud.Cloud
	p     *memcloud.Provider
	ops   netresource.NetResourceOperations
	now   time.Time
	fault memcloud.Fault
}

func newScene(change func(*memcloud.Config)) *scene {
	s := &scene{now: time.Unix(1000, 0)}
	c := memcloud.Config{
		Subnets:    map[v1alpha1.PoolID]netip.Prefix{"a": netip.MustParsePrefix("10.0.0.0/28")},
		Interfaces: 2, PerInterface: 10,
		Now: func() time.Time { return s.now },
		Fault: func(c memcloud.Call) memcloud.Fault {
			if c.What == "describe" {
				return memcloud.None
			}
			return s.fault
		},
	}
	change(&c)
	s.cloud = memcloud.New(c)
	s.p = s.cloud.Provider()
	n := &v1alpha1.NetResourceSet{}
	n.Name = "node"
	s.ops = s.p.CreateNetResource(n, nil)
	return s
}

func (s *scene) keys(t *testing.T) []string {
	g := NewWithT(t)
	all, err := s.ops.ResyncInterfacesAndIPs(t.Context(), slog.Default())
	g.Expect(err).NotTo(HaveOccurred())
	return slices.Sorted(maps.Keys(all))
}

func (s *scene) create(t *testing.T, n int) error {
	_, _, err := s.ops.CreateInterface(t.Context(), &netresource.AllocationAction{PoolID: "a", MaxIPsToAllocate: n}, slog.Default())
	return err
}

func TestLimitsOfTheCloud(t *testing.T) {
	g, s := NewWithT(t), newScene(func(*memcloud.Config) {})
	a, err := s.ops.PrepareIPAllocation(nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(*a).To(Equal(netresource.AllocationAction{PoolID: "a", AvailableInterfaces: 2}))
	g.Expect(s.create(t, 12)).To(Succeed())
	g.Expect(s.keys(t)).To(HaveLen(10), "no more than an interface can have")
	g.Expect(s.create(t, 12)).To(Succeed())
	g.Expect(s.keys(t)).To(HaveLen(16), "no more than the subnet has")
	g.Expect(s.p.GetPoolQuota()["a"].AvailableIPs).To(BeZero())
	g.Expect(s.create(t, 1)).To(MatchError(ContainSubstring("the most")))
	a, _ = s.ops.PrepareIPAllocation(nil)
	g.Expect(a.AvailableForAllocationIPv4).To(BeZero())
	r := s.ops.PrepareIPRelease(3, nil)
	g.Expect(r.IPsToRelease).To(Equal([]string{"10.0.0.15", "10.0.0.14", "10.0.0.13"}), "of the newest interface, the highest")
	g.Expect(s.ops.PrepareIPRelease(1, nil).IPsToRelease).To(Equal(r.IPsToRelease[:1]), "the same again")
	g.Expect(s.ops.ReleaseIPs(t.Context(), r)).To(Succeed())
	g.Expect(s.ops.ReleaseIPs(t.Context(), r)).To(Succeed())
	g.Expect(s.cloud.Units("node")).To(HaveLen(13))
	s.cloud.Terminate("node")
	g.Expect(s.p.GetPoolQuota()["a"].AvailableIPs).To(Equal(16))
}

func TestPartialCalls(t *testing.T) {
	g, s := NewWithT(t), newScene(func(*memcloud.Config) {})
	for _, c := range []struct {
		fault memcloud.Fault
		want  int
	}{{memcloud.Refuse, 0}, {memcloud.Half, 0}, {memcloud.Tear, 4}} {
		s.fault = c.fault
		g.Expect(errors.Is(s.create(t, 4), memcloud.ErrInjected)).To(BeTrue())
		g.Expect(s.cloud.Units("node")).To(HaveLen(c.want), "%v", c.fault)
		g.Expect(s.keys(t)).To(BeEmpty(), "the provider cannot know")
	}
	s.p.Resync(t.Context())
	g.Expect(s.keys(t)).To(HaveLen(4), "until it reads")
	s.fault = memcloud.Half
	r := s.ops.PrepareIPRelease(4, nil)
	g.Expect(s.ops.ReleaseIPs(t.Context(), r)).NotTo(Succeed())
	g.Expect(s.cloud.Units("node")).To(HaveLen(2))
}

func TestChangesAreShownLate(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) { c.Lag = 5 * time.Second })
	other := s.cloud.Provider()
	n := &v1alpha1.NetResourceSet{}
	n.Name = "node"
	o := &scene{ops: other.CreateNetResource(n, nil)}
	g.Expect(s.create(t, 3)).To(Succeed())
	s.now = s.now.Add(4 * time.Second)
	s.p.Resync(t.Context())
	other.Resync(t.Context())
	g.Expect(s.keys(t)).To(HaveLen(3), "it knows its own")
	g.Expect(o.keys(t)).To(BeEmpty())
	s.now = s.now.Add(2 * time.Second)
	other.Resync(t.Context())
	g.Expect(o.keys(t)).To(HaveLen(3))
	g.Expect(s.ops.ReleaseIPs(t.Context(), s.ops.PrepareIPRelease(3, nil))).To(Succeed())
	s.p.Resync(t.Context())
	other.Resync(t.Context())
	g.Expect(s.keys(t)).To(BeEmpty())
	g.Expect(o.keys(t)).To(HaveLen(3), "what is gone is still shown")
}

func TestTooManyCallsAreThrottled(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) { c.QPS = 1 })
	g.Expect(s.create(t, 1)).To(Succeed())
	g.Expect(errors.Is(s.create(t, 1), netresource.ErrThrottled)).To(BeTrue())
	g.Expect(s.p.Resync(t.Context()).IsZero()).To(BeTrue())
	s.now = s.now.Add(time.Second)
	g.Expect(s.create(t, 1)).To(Succeed())
	g.Expect(s.cloud.Calls()).To(Equal(map[string]int{"create": 3, "describe": 1, "throttled": 2}))
}

func TestInterfacesAreToldOf(t *testing.T) {
	g, s := NewWithT(t), newScene(func(c *memcloud.Config) { c.PrefixLen = 30 })
	g.Expect(s.create(t, 5)).To(Succeed())
	g.Expect(s.keys(t)).To(Equal([]string{"10.0.0.0/30", "10.0.0.4/30"}))
	a, err := s.ops.PrepareIPAllocation(nil)
	g.Expect(err).NotTo(HaveOccurred())
	var all []string
	g.Expect(a.Interface.Resource.ForeachAddress("node", func(_, id, ip, pool string) error { all = append(all, id+" "+ip+" "+pool); return nil })).To(Succeed())
	g.Expect(all).To(Equal([]string{"eni-1 10.0.0.0/30 a", "eni-1 10.0.0.4/30 a"}))
	g.Expect(a.Interface.Resource.InterfaceID()).To(Equal(a.InterfaceID))
	g.Expect(s.ops.GetUsedIPWithPrefixes()).To(BeZero())
	n := &v1alpha1.NetResourceSet{}
	n.Name, n.Status.IPAM.Used = "node", v1alpha1.AllocationMap{"10.0.0.5": {}}
	s.ops.UpdatedNode(n)
	g.Expect(s.ops.GetUsedIPWithPrefixes()).To(Equal(4))
	g.Expect(s.ops.PrepareIPRelease(8, nil).IPsToRelease).To(Equal([]string{"10.0.0.0/30"}))
	g.Expect(s.ops.ReleaseIPs(t.Context(), &netresource.ReleaseAction{IPsToRelease: []string{"here"}})).NotTo(Succeed())
}
