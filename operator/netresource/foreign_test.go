// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// foreign is a published provider as others write them: it knows what its last reading has
// shown, takes what is available, and lists each address of a prefix.
type foreign struct {
	cloud *memcloud.Cloud

	mu   sync.Mutex
	last *cloud.Snapshot
}

// published returns a published provider over a cloud.
func published(c *memcloud.Cloud) *foreign { return &foreign{cloud: c, last: &cloud.Snapshot{}} }

func (f *foreign) Resync(ctx context.Context) time.Time {
	begun := time.Now()
	s, err := f.cloud.Read(ctx)
	if err != nil {
		return time.Time{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = s
	return begun
}

func (f *foreign) GetPoolQuota() v1alpha1.PoolQuotaMap { return nil }

func (f *foreign) CreateNetResource(o *v1alpha1.NetResourceSet, n *netresource.NetResource) netresource.NetResourceOperations {
	return &foreignNode{f: f, name: o.Name, node: n}
}

type foreignNode struct {
	f    *foreign
	name string
	node *netresource.NetResource
}

func (n *foreignNode) machine() (*cloud.Instance, error) {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if m := n.f.last.Instances[n.name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("find machine %s: %w", n.name, netresource.ErrInstanceNotFound)
}

func (n *foreignNode) UpdatedNode(*v1alpha1.NetResourceSet) {}

func (n *foreignNode) PopulateStatusFields(o *v1alpha1.NetResourceSet) {
	o.Status.IPAM.AvailableSubnetIDs = []string{"subnet-a"}
}

// listed returns the addresses of a block.
func listed(b netip.Prefix) (all []string) {
	for a := b.Addr(); b.Contains(a); a = a.Next() {
		all = append(all, a.String())
	}
	return all
}

func (n *foreignNode) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	m, err := n.machine()
	if err != nil {
		return nil, err
	}
	all := v1alpha1.AllocationMap{}
	for _, i := range m.Interfaces {
		for _, b := range i.Blocks {
			for _, a := range listed(b.Prefix) {
				if !b.Primary {
					all[a] = v1alpha1.AllocationIP{Resource: i.ID, SubnetID: i.Subnet}
				}
			}
		}
	}
	return all, nil
}

// unit returns the number of addresses that one request gives.
func (n *foreignNode) unit() int { return 1 << (32 - cmp.Or(n.f.cloud.Config().PrefixLen, 32)) }

func (n *foreignNode) wanted(addresses int) cloud.Want {
	return cloud.Want{Count: (addresses + n.unit() - 1) / n.unit(), Prefixes: n.unit() > 1}
}

func (n *foreignNode) PrepareIPAllocation(*slog.Logger) (*netresource.AllocationAction, error) {
	m, err := n.machine()
	if err != nil {
		return nil, err
	}
	a := &netresource.AllocationAction{PoolID: "subnet-a", AvailableInterfaces: m.Limits.Interfaces - len(m.Interfaces)}
	for _, i := range m.Interfaces {
		used := len(slices.DeleteFunc(slices.Clone(i.Blocks), func(b cloud.Block) bool { return b.Primary }))
		if room := (m.Limits.Addresses[0] - used) * n.unit(); room > a.AvailableForAllocationIPv4 {
			a.InterfaceID, a.AvailableForAllocationIPv4 = i.ID, room
		}
	}
	return a, nil
}

func (n *foreignNode) AllocateIPs(ctx context.Context, a *netresource.AllocationAction) error {
	_, err := n.f.cloud.Assign(ctx, n.name, a.InterfaceID, n.wanted(a.AvailableForAllocationIPv4))
	return err
}

func (n *foreignNode) CreateInterface(ctx context.Context, a *netresource.AllocationAction, _ *slog.Logger) (int, string, error) {
	m, err := n.machine()
	if err != nil {
		return 0, "no machine", err
	}
	made, err := n.f.cloud.CreateInterface(ctx, n.name, cloud.NewInterface{
		Subnet: string(a.PoolID), Want: n.wanted(a.MaxIPsToAllocate), Device: len(m.Interfaces),
	})
	if err != nil {
		return 0, "interface not created", err
	}
	return (len(made.Blocks) - 1) * n.unit(), "", nil
}

// PrepareIPRelease chooses the highest units without a used address.
func (n *foreignNode) PrepareIPRelease(excess int, _ *slog.Logger) *netresource.ReleaseAction {
	m, err := n.machine()
	if err != nil {
		return nil
	}
	a, used := &netresource.ReleaseAction{}, n.node.ResourceCopy().Status.IPAM.Used
	for _, i := range slices.Backward(m.Interfaces) {
		for _, b := range slices.Backward(i.Blocks) {
			all := listed(b.Prefix)
			inUse := slices.ContainsFunc(all, func(key string) bool { _, in := used[key]; return in })
			if !b.Primary && !inUse && len(all) <= excess {
				excess -= len(all)
				a.IPsToRelease = append(a.IPsToRelease, all...)
			}
		}
	}
	return a
}

func (n *foreignNode) ReleaseIPs(ctx context.Context, a *netresource.ReleaseAction) error {
	var blocks []netip.Prefix
	for _, text := range a.IPsToRelease {
		b, err := netip.MustParseAddr(text).Prefix(cmp.Or(n.f.cloud.Config().PrefixLen, 32))
		if err == nil && !slices.Contains(blocks, b) {
			blocks = append(blocks, b)
		}
	}
	return n.f.cloud.Unassign(ctx, n.name, a.InterfaceID, blocks)
}

func (n *foreignNode) GetMaximumAllocatableIPv4() int          { return 0 }
func (n *foreignNode) GetMinimumAllocatableIPv4() int          { return 8 }
func (n *foreignNode) IsPrefixDelegated() bool                 { return n.unit() > 1 }
func (n *foreignNode) GetMaximumBurstableAllocatableIPv4() int { return 0 }

func (n *foreignNode) GetUsedIPWithPrefixes() (count int) {
	used := map[netip.Prefix]bool{}
	for text := range n.node.ResourceCopy().Status.IPAM.Used {
		if b, err := netip.MustParseAddr(text).Prefix(n.f.cloud.Config().PrefixLen); err == nil {
			used[b] = true
		}
	}
	return len(used) * n.unit()
}
