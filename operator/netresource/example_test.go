// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/netresourcetest/memapi"
)

// tenNet is a provider that gives each node addresses of 10.0.0.0/24.
type tenNet struct{}

func (tenNet) CreateNetResource(*v1alpha1.NetResourceSet, *netresource.NetResource) netresource.NetResourceOperations {
	return &tenNode{next: netip.MustParseAddr("10.0.0.10"), has: v1alpha1.AllocationMap{}}
}

func (tenNet) GetPoolQuota() v1alpha1.PoolQuotaMap { return nil }

func (tenNet) Resync(context.Context) time.Time { return time.Now() }

// tenNode is the provider for one node. It embeds the interface, so that this
// example shows only the calls that this node needs.
type tenNode struct {
	netresource.NetResourceOperations
	next netip.Addr
	has  v1alpha1.AllocationMap
}

func (n *tenNode) UpdatedNode(*v1alpha1.NetResourceSet) {}

func (n *tenNode) PopulateStatusFields(*v1alpha1.NetResourceSet) {}

func (n *tenNode) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	return maps.Clone(n.has), nil
}

func (n *tenNode) PrepareIPAllocation(*slog.Logger) (*netresource.AllocationAction, error) {
	return &netresource.AllocationAction{PoolID: "ten", AvailableForAllocationIPv4: 100}, nil
}

func (n *tenNode) AllocateIPs(_ context.Context, a *netresource.AllocationAction) error {
	for range a.MaxIPsToAllocate {
		n.has[n.next.String()] = v1alpha1.AllocationIP{SubnetID: string(a.PoolID)}
		n.next = n.next.Next()
	}
	return nil
}

func (n *tenNode) GetMaximumAllocatableIPv4() int          { return 0 }
func (n *tenNode) GetMinimumAllocatableIPv4() int          { return 2 }
func (n *tenNode) IsPrefixDelegated() bool                 { return false }
func (n *tenNode) GetUsedIPWithPrefixes() int              { return 0 }
func (n *tenNode) GetMaximumBurstableAllocatableIPv4() int { return 0 }

// writes is an API server that passes on the pools that the manager writes.
type writes struct {
	netresource.NetResourceSetGetterUpdater
	pools chan v1alpha1.AllocationMap
}

func (w writes) Update(was, is *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	w.pools <- is.Spec.IPAM.Pool
	return w.NetResourceSetGetterUpdater.Update(was, is)
}

// A program with a provider of its own. In a cluster, API is a netresource.Client,
// whose Run starts the manager and passes all changes to it.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	api := writes{memapi.New(), make(chan v1alpha1.AllocationMap, 10)}
	node, err := api.Create(&v1alpha1.NetResourceSet{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	if err != nil {
		panic(err)
	}
	m, err := netresource.New(netresource.Config{
		Instances: tenNet{},
		API:       api,
		Log:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	if err := m.Create(node); err != nil { // for every NetResourceSet, before Start
		panic(err)
	}
	if err := m.Start(ctx); err != nil {
		panic(err)
	}
	defer m.Close()
	fmt.Println(slices.Sorted(maps.Keys(<-api.pools)))
	// Output: [10.0.0.10 10.0.0.11]
}
