// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"errors"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	informers "k8s.io/client-go/informers/core/v1"
	clientset "k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// TestPublishedNames has the API as it was published, but for the Cloud, which
// was an interface with much more in it.
//
//nolint:staticcheck // the types state the published signatures
func TestPublishedNames(t *testing.T) {
	var _ func(clientset.Interface, nodeipam.Cloud, informers.NodeInformer, nodeipam.CIDRAllocatorType, *net.IPNet, *net.IPNet, int) (nodeipam.CIDRAllocator, error) = nodeipam.New
	var _ func(clientset.Interface, informers.NodeInformer, *net.IPNet, *net.IPNet, int, *v1.NodeList) (nodeipam.CIDRAllocator, error) = nodeipam.NewCIDRRangeAllocator
	var _ func(clientset.Interface, nodeipam.Cloud, informers.NodeInformer) (nodeipam.CIDRAllocator, error) = nodeipam.NewCloudCIDRAllocator
	var _ func(*nodeipam.Config, clientset.Interface, nodeipam.Cloud, *net.IPNet, *net.IPNet, int) (*nodeipam.Controller, error) = nodeipam.NewController
	var _ interface {
		AllocateOrOccupyCIDR(*v1.Node) error
		ReleaseCIDR(*v1.Node) error
		Run(<-chan struct{})
	} = nodeipam.CIDRAllocator(nil)
	var _ interface {
		Start(informers.NodeInformer) error
	} = (*nodeipam.Controller)(nil)
	var _ interface {
		Next() time.Duration
		Update(ok bool)
	} = &nodeipam.Timeout{Resync: 1, MaxBackoff: 1, InitialRetry: 1}
	g := NewWithT(t)
	g.Expect([]any{nodeipam.RangeAllocatorType, nodeipam.CloudAllocatorType, nodeipam.IPAMFromClusterAllocatorType, nodeipam.IPAMFromCloudAllocatorType}).
		To(Equal([]any{nodeipam.CIDRAllocatorType("RangeAllocator"), nodeipam.CIDRAllocatorType("CloudAllocator"), "IPAMFromCluster", "IPAMFromCloud"}))
	g.Expect([]any{nodeipam.SyncFromCloud, nodeipam.SyncFromCluster}).
		To(Equal([]any{nodeipam.NodeSyncMode("SyncFromCloud"), nodeipam.NodeSyncMode("SyncFromCluster")}))
}

// TestControllerConfig is upstream's table of what its node IPAM controller is
// given, from flags to allocators.
func TestControllerConfig(t *testing.T) {
	const ranged, cloud = nodeipam.RangeAllocatorType, nodeipam.CloudAllocatorType
	for _, x := range []struct {
		what  string
		kind  nodeipam.CIDRAllocatorType
		o     nodeipam.Options
		fails bool
	}{
		{"one range", ranged, nodeipam.Options{Cluster: "10.0.0.0/21", Service: "10.1.0.0/21", Mask: 24}, false},
		{"two families", ranged, nodeipam.Options{Cluster: "10.0.0.0/21,2000::/48", Service: "10.1.0.0/21", MaskIPv4: 24, MaskIPv6: 64}, false},
		{"and of services", ranged, nodeipam.Options{Cluster: "10.0.0.0/21,2000::/48", Service: "10.1.0.0/21,3000::/112"}, false},
		{"cloud", cloud, nodeipam.Options{Cluster: "10.0.0.0/21", Service: "10.1.0.0/21", Mask: 24}, false},
		{"cloud, no cluster CIDR", cloud, nodeipam.Options{Cluster: "invalid", Service: "10.1.0.0/21", Mask: 24}, false},
		{"from cluster", fromCluster, nodeipam.Options{Cluster: "10.0.0.0/21", Service: "10.1.0.0/21", Mask: 24}, false},
		{"from cloud", fromCloud, nodeipam.Options{Cluster: "10.0.0.0/21", Service: "10.1.0.0/21", Mask: 24}, false},
		{"no cluster CIDR", ranged, nodeipam.Options{Cluster: "invalid", Service: "10.1.0.0/21", Mask: 24}, true},
		{"from cluster, none", fromCluster, nodeipam.Options{Cluster: "invalid", Service: "10.1.0.0/21", Mask: 24}, true},
		{"from cloud, none", fromCloud, nodeipam.Options{Cluster: "invalid", Service: "10.1.0.0/21", Mask: 24}, true},
		{"range smaller than a block", ranged, nodeipam.Options{Cluster: "10.0.0.0/26", Mask: 24}, true},
		{"from cluster, smaller", fromCluster, nodeipam.Options{Cluster: "10.0.0.0/26", Mask: 24}, true},
		{"IPv6 smaller", ranged, nodeipam.Options{Cluster: "10.0.0.0/16,2000::/64", MaskIPv6: 48}, true},
		{"nothing but services", fromCluster, nodeipam.Options{Cluster: "10.0.0.0/16", Service: "10.0.0.0/8"}, true},
		{"no such type", "Other", nodeipam.Options{Cluster: "10.0.0.0/16"}, true},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			x.o.Allocate, x.o.Type = true, string(x.kind)
			settings, _, errs := x.o.Settings()
			err := errors.Join(errs...)
			if err == nil {
				_, err = nodeipam.NewAllocator(nodeipam.Deps{Cloud: memcloud.New(memcloud.Config{})}, settings)
			}
			g.Expect(err != nil).To(Equal(x.fails), "%v", err)
		})
	}
}

func TestNewController(t *testing.T) {
	g := NewWithT(t)
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.0.0.0/16 24"))
	stop := make(chan struct{})
	deps, factory := b.Program(stop)
	defer factory.Shutdown()
	defer close(stop)
	cloud, cluster := memcloud.New(memcloud.Config{}), ipNet(t, "10.0.0.0/16")
	make1 := func(config *nodeipam.Config, cloud nodeipam.Cloud, cluster, service *net.IPNet, mask int) error {
		c, err := nodeipam.NewController(config, deps.Client, cloud, cluster, service, mask)
		g.Expect(c == nil).To(Equal(err != nil))
		return err
	}
	both := []*nodeipam.Config{{Mode: nodeipam.SyncFromCluster}, {Mode: nodeipam.SyncFromCloud}}
	for _, config := range both {
		g.Expect(make1(config, cloud, cluster, ipNet(t, "10.0.0.0/20"), 24)).To(Succeed())
		g.Expect(make1(config, nil, cluster, nil, 24)).To(MatchError(ContainSubstring("it needs a cloud")))
	}
	g.Expect(make1(both[0], cloud, nil, nil, 24)).To(MatchError(ContainSubstring("it needs a cluster CIDR")))
	g.Expect(make1(both[0], cloud, ipNet(t, "10.0.0.0/26"), nil, 24)).To(MatchError(ContainSubstring("larger than the range")))
	g.Expect(make1(both[0], cloud, cluster, ipNet(t, "10.0.0.0/8"), 24)).To(MatchError(ContainSubstring("no CIDRs remaining")))
	g.Expect(make1(nil, cloud, cluster, nil, 24)).To(MatchError(ContainSubstring("no configuration")))
	g.Expect(make1(&nodeipam.Config{Mode: "sideways"}, cloud, cluster, nil, 24)).To(MatchError(ContainSubstring(`invalid IPAM controller mode "sideways"`)))
}

func TestAControllerNeedsTheNodes(t *testing.T) {
	g := NewWithT(t)
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.0.0.0/16 24"))
	stop := make(chan struct{})
	deps, factory := b.Program(stop)
	defer factory.Shutdown()
	defer close(stop)
	deps.Cloud = memcloud.New(memcloud.Config{})
	c, err := nodeipam.NewControllerOf(deps, nodeipam.RangesOf(fromCluster, "10.0.0.0/16 24"))
	g.Expect(err).NotTo(HaveOccurred())
	b.FaultsOf("list", nodeipam.FailRequest)
	g.Expect(c.Start(deps.Nodes)).To(MatchError(ContainSubstring("list the nodes")))
	g.Expect(c.Close()).To(Succeed())
}
