// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud_test

import (
	"log/slog"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// subnets configures the subnets of the cloud.
func subnets(all map[v1alpha1.PoolID]string) func(*memcloud.Config) {
	return func(c *memcloud.Config) {
		c.Subnets = map[v1alpha1.PoolID]netip.Prefix{}
		for id, prefix := range all {
			c.Subnets[id] = netip.MustParsePrefix(prefix)
		}
	}
}

// prepared returns the next action of the provider.
func (s *scene) prepared(t *testing.T) *netresource.AllocationAction {
	a, err := s.ops.PrepareIPAllocation(slog.Default())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return a
}

// The subnet of an interface with room comes first, then the one with most free addresses.
func TestChoiceOfSubnet(t *testing.T) {
	g, s := NewWithT(t), newScene(subnets(map[v1alpha1.PoolID]string{"a": "10.0.0.0/30", "b": "10.0.1.0/29", "c": "10.0.2.0/32"}))
	g.Expect(*s.prepared(t)).To(Equal(netresource.AllocationAction{PoolID: "b", AvailableInterfaces: 2}))
	g.Expect(s.create(t, 1)).To(Succeed(), "a caller chooses a")
	a := s.prepared(t)
	g.Expect([]any{a.PoolID, a.InterfaceID, a.AvailableForAllocationIPv4}).To(Equal([]any{v1alpha1.PoolID("a"), "eni-1", 3}), "the subnet of its interface")
	a.MaxIPsToAllocate = 3
	g.Expect(s.ops.AllocateIPs(t.Context(), a)).To(Succeed())
	g.Expect(*s.prepared(t)).To(Equal(netresource.AllocationAction{PoolID: "b", AvailableInterfaces: 1}), "which is full")

	others := s.p.CreateNetResource(named("other"), nil)
	for _, full := range []v1alpha1.PoolID{"b", "c"} {
		_, _, err := others.CreateInterface(t.Context(), &netresource.AllocationAction{PoolID: full, MaxIPsToAllocate: 8}, slog.Default())
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(*s.prepared(t)).To(Equal(netresource.AllocationAction{AvailableInterfaces: 1}), "all are")
	for id, quota := range s.p.GetPoolQuota() {
		g.Expect(quota.AvailableIPs).To(BeZero(), string(id))
	}
}

func named(name string) *v1alpha1.NetResourceSet {
	n := &v1alpha1.NetResourceSet{}
	n.Name = name
	return n
}

// Without a free address no interface is created, since a machine can have only a few.
func TestInterfaceNeedsAddress(t *testing.T) {
	g, s := NewWithT(t), newScene(subnets(map[v1alpha1.PoolID]string{"a": "10.0.0.0/30"}))
	other := s.p.CreateNetResource(named("other"), nil)
	_, _, err := other.CreateInterface(t.Context(), &netresource.AllocationAction{PoolID: "a", MaxIPsToAllocate: 4}, slog.Default())
	g.Expect(err).NotTo(HaveOccurred())
	for _, x := range []struct{ subnet, want string }{{"", "no subnet"}, {"a", "is full"}, {"d", `"d"`}} {
		_, _, err := s.ops.CreateInterface(t.Context(), &netresource.AllocationAction{PoolID: v1alpha1.PoolID(x.subnet), MaxIPsToAllocate: 4}, slog.Default())
		g.Expect(err).To(MatchError(ContainSubstring(x.want)))
		g.Expect(s.prepared(t).AvailableInterfaces).To(Equal(2))
	}
	g.Expect(s.cloud.Calls()["create"]).To(Equal(3), "without a subnet the cloud is not asked")
	s.cloud.Terminate("other")
	g.Expect(s.create(t, 4)).To(Succeed())
	g.Expect(s.prepared(t).AvailableInterfaces).To(Equal(1))
}

// TestQuotasOfSubnets counts addresses, whatever a unit is.
func TestQuotasOfSubnets(t *testing.T) {
	for _, c := range []struct {
		subnet    string
		prefixLen int
		want      int
	}{
		{"10.0.0.0/16", 0, 65536}, {"10.0.0.0/24", 0, 256}, {"10.0.0.0/24", 28, 256}, {"10.0.0.5/32", 0, 1}, {"10.0.0.0/24", 24, 256},
		// no more than 2^20 for a unit
		{"fd00::/112", 0, 65536}, {"fd00::/64", 80, 1 << 36}, {"fd00::/56", 64, 1 << 28},
	} {
		g := NewWithT(t)
		s := newScene(func(config *memcloud.Config) {
			subnets(map[v1alpha1.PoolID]string{"a": c.subnet})(config)
			config.PrefixLen = c.prefixLen
		})
		g.Expect(s.p.GetPoolQuota()["a"].AvailableIPs).To(Equal(c.want), "%s in /%d", c.subnet, c.prefixLen)
	}
}

// A subnet with too few addresses gives all that it has, and the manager asks again.
func TestPartialAllocation(t *testing.T) {
	g, s := NewWithT(t), newScene(subnets(map[v1alpha1.PoolID]string{"a": "10.0.0.0/30"}))
	g.Expect(s.create(t, 1)).To(Succeed())
	a := s.prepared(t)
	a.MaxIPsToAllocate = 4
	g.Expect(s.ops.AllocateIPs(t.Context(), a)).To(Succeed())
	g.Expect(s.keys(t)).To(Equal([]string{"10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"}))
	g.Expect(s.ops.AllocateIPs(t.Context(), a)).To(MatchError(ContainSubstring("full")), "but not nothing")
	before := s.p.GetPoolQuota()
	g.Expect(s.ops.ReleaseIPs(t.Context(), &netresource.ReleaseAction{IPsToRelease: []string{"10.0.0.9", "1.1.1.1"}})).To(Succeed())
	g.Expect(s.p.GetPoolQuota()).To(Equal(before), "addresses that the machine never had")
	g.Expect(s.ops.ReleaseIPs(t.Context(), &netresource.ReleaseAction{InterfaceID: a.InterfaceID, IPsToRelease: []string{"10.0.0.2"}})).To(Succeed())
	g.Expect(s.p.GetPoolQuota()["a"].AvailableIPs).To(Equal(1))
}
