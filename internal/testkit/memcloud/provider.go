// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package memcloud

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/watermark"
)

// Provider implements netresource's provider over a Cloud. It remembers what it has read,
// and the changes of its own calls for as long as the cloud may not show them.
type Provider struct {
	cloud *Cloud

	mu   sync.Mutex
	view map[string][]*nic
	own  map[string][]change
}

// change records the effect of one call.
type change struct {
	at      time.Time
	nic     nic // without units
	unit    netip.Prefix
	removed bool
}

var (
	_ netresource.AllocationImplementation = (*Provider)(nil)
	_ netresource.NetResourceOperations    = (*node)(nil)
)

// Provider returns a new provider over the cloud, as for an operator that starts.
func (c *Cloud) Provider() *Provider {
	return &Provider{cloud: c, view: map[string][]*nic{}, own: map[string][]change{}}
}

// CreateNetResource implements netresource.AllocationImplementation.
func (p *Provider) CreateNetResource(
	obj *v1alpha1.NetResourceSet,
	_ *netresource.NetResource,
) netresource.NetResourceOperations {
	n := &node{provider: p}
	n.UpdatedNode(obj)
	return n
}

// GetPoolQuota implements netresource.AllocationImplementation.
func (p *Provider) GetPoolQuota() v1alpha1.PoolQuotaMap {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	quotas := v1alpha1.PoolQuotaMap{}
	for id, prefix := range p.cloud.config.Subnets {
		size := 1 << min(prefix.Addr().BitLen()-p.cloud.bits(prefix), 20)
		quotas[id] = v1alpha1.PoolQuota{AvailabilityZone: "zone-a", AvailableIPs: p.cloud.free(id) * size}
	}
	return quotas
}

// Resync implements netresource.AllocationImplementation.
func (p *Provider) Resync(ctx context.Context) time.Time {
	begun := p.cloud.config.Now()
	view, err := p.cloud.describe(ctx)
	if err != nil {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.view = view
	for instance, changes := range p.own {
		p.own[instance] = slices.DeleteFunc(
			changes,
			func(c change) bool { return begun.Sub(c.at) > p.cloud.config.Lag },
		)
		p.overlay(instance, p.own[instance])
	}
	return begun
}

// overlay applies changes to the view.
func (p *Provider) overlay(instance string, changes []change) {
	for _, c := range changes {
		i := slices.IndexFunc(p.view[instance], func(n *nic) bool { return n.id == c.nic.id })
		if i < 0 && c.removed {
			continue
		}
		if i < 0 {
			made := c.nic
			p.view[instance] = append(p.view[instance], &made)
			i = len(p.view[instance]) - 1
		}
		n := p.view[instance][i]
		n.units = slices.DeleteFunc(n.units, func(u netip.Prefix) bool { return u == c.unit })
		if !c.removed && c.unit.IsValid() {
			n.units = append(n.units, c.unit)
		}
	}
}

// note records the changes of a call.
func (p *Provider) note(instance string, changes []change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own[instance] = append(p.own[instance], changes...)
	p.overlay(instance, changes)
}

// node implements the provider for one node.
type node struct {
	provider *Provider

	mu  sync.Mutex
	obj *v1alpha1.NetResourceSet
}

// instance returns the name of the machine: that of the node by default.
func (n *node) instance() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.obj.Spec.InstanceID != "" {
		return n.obj.Spec.InstanceID
	}
	return n.obj.Name
}

// UpdatedNode implements netresource.NetResourceOperations.
func (n *node) UpdatedNode(obj *v1alpha1.NetResourceSet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.obj = obj
}

// PopulateStatusFields implements netresource.NetResourceOperations.
func (n *node) PopulateStatusFields(r *v1alpha1.NetResourceSet) {
	r.Status.IPAM.AvailableSubnetIDs = nil
	for _, id := range slices.Sorted(maps.Keys(n.provider.cloud.config.Subnets)) {
		r.Status.IPAM.AvailableSubnetIDs = append(r.Status.IPAM.AvailableSubnetIDs, string(id))
	}
}

// ResyncInterfacesAndIPs implements netresource.NetResourceOperations.
func (n *node) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	instance := n.instance()
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	units := 0
	for _, i := range n.provider.view[instance] {
		units += len(i.units)
	}
	all := make(v1alpha1.AllocationMap, units)
	for _, i := range n.provider.view[instance] {
		for _, u := range i.units {
			all[handshake.Key(u)] = v1alpha1.AllocationIP{Resource: i.id, SubnetID: string(i.subnet)}
		}
	}
	return all, nil
}

// size returns the number of addresses of a unit.
func (n *node) size() int {
	for _, p := range n.provider.cloud.config.Subnets {
		return 1 << min(p.Addr().BitLen()-n.provider.cloud.bits(p), 20)
	}
	return 1
}

// PrepareIPAllocation implements netresource.NetResourceOperations.
func (n *node) PrepareIPAllocation(*slog.Logger) (*netresource.AllocationAction, error) {
	instance, c := n.instance(), n.provider.cloud
	quotas := n.provider.GetPoolQuota()
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	nics := n.provider.view[instance]
	a := &netresource.AllocationAction{AvailableInterfaces: max(0, c.config.Interfaces-len(nics))}
	for _, i := range nics {
		if room := min(
			(c.config.PerInterface-len(i.units))*n.size(),
			quotas[i.subnet].AvailableIPs,
		); room > a.AvailableForAllocationIPv4 {
			a.InterfaceID, a.PoolID, a.AvailableForAllocationIPv4 = i.id, i.subnet, room
			a.Interface = v1alpha1.InterfaceRevision{Resource: i, Fingerprint: fmt.Sprint(i.units)}
		}
	}
	if a.PoolID == "" {
		for _, id := range slices.Sorted(maps.Keys(quotas)) {
			if quotas[id].AvailableIPs > quotas[a.PoolID].AvailableIPs {
				a.PoolID = id
			}
		}
	}
	return a, nil
}

// AllocateIPs implements netresource.NetResourceOperations.
func (n *node) AllocateIPs(ctx context.Context, a *netresource.AllocationAction) error {
	instance := n.instance()
	units, err := n.provider.cloud.assign(ctx, instance, a.InterfaceID, watermark.Units(a.MaxIPsToAllocate, n.size()))
	if err != nil {
		return err
	}
	n.provider.note(instance, n.changes(nic{id: a.InterfaceID, instance: instance, subnet: a.PoolID}, units))
	return nil
}

func (n *node) changes(on nic, units []netip.Prefix) (all []change) {
	for _, u := range units {
		all = append(all, change{n.provider.cloud.config.Now(), on, u, false})
	}
	return all
}

// CreateInterface implements netresource.NetResourceOperations.
func (n *node) CreateInterface(
	ctx context.Context,
	a *netresource.AllocationAction,
	_ *slog.Logger,
) (int, string, error) {
	if a.PoolID == "" {
		return 0, "no subnet", errors.New("make an interface: no subnet has a free address")
	}
	instance := n.instance()
	made, err := n.provider.cloud.create(ctx, instance, a.PoolID, watermark.Units(a.MaxIPsToAllocate, n.size()))
	if err != nil {
		return 0, "interface creation failed", err
	}
	units := made.units
	made.units = nil
	n.provider.note(
		instance,
		append([]change{{n.provider.cloud.config.Now(), *made, netip.Prefix{}, false}}, n.changes(*made, units)...),
	)
	return len(units) * n.size(), "success", nil
}

// PrepareIPRelease implements netresource.NetResourceOperations. It chooses free
// units, those of the newest interface and the highest first.
func (n *node) PrepareIPRelease(excess int, _ *slog.Logger) *netresource.ReleaseAction {
	instance := n.instance()
	n.mu.Lock()
	used := n.obj.Status.IPAM.Used
	n.mu.Unlock()
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	a := &netresource.ReleaseAction{}
	for _, i := range slices.Backward(n.provider.view[instance]) {
		units := slices.SortedFunc(
			slices.Values(i.units),
			func(x, y netip.Prefix) int { return y.Addr().Compare(x.Addr()) },
		)
		for _, u := range units {
			if excess < n.size() {
				return a
			}
			if !anyOf(used, u) {
				a.InterfaceID, a.PoolID = i.id, i.subnet
				a.IPsToRelease = append(a.IPsToRelease, handshake.Key(u))
				excess -= n.size()
			}
		}
	}
	return a
}

// anyOf reports whether an address of u is used.
func anyOf(used v1alpha1.AllocationMap, u netip.Prefix) bool {
	if u.IsSingleIP() {
		_, ok := used[u.Addr().String()]
		return ok
	}
	for text := range used {
		if a, err := netip.ParseAddr(text); err == nil && u.Contains(a) {
			return true
		}
	}
	return false
}

// ReleaseIPs implements netresource.NetResourceOperations.
func (n *node) ReleaseIPs(ctx context.Context, a *netresource.ReleaseAction) error {
	instance := n.instance()
	var units []netip.Prefix
	var changes []change
	for _, text := range a.IPsToRelease {
		u, err := handshake.ParseKey(text)
		if err != nil {
			return fmt.Errorf("release %q: it %w", text, err)
		}
		units = append(units, u)
		changes = append(
			changes,
			change{
				n.provider.cloud.config.Now(),
				nic{id: a.InterfaceID, instance: instance, subnet: a.PoolID},
				u,
				true,
			},
		)
	}
	if err := n.provider.cloud.unassign(ctx, instance, units); err != nil {
		return err
	}
	n.provider.note(instance, changes)
	return nil
}

// GetMaximumAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMaximumAllocatableIPv4() int {
	return n.provider.cloud.config.Interfaces * n.provider.cloud.config.PerInterface * n.size()
}

// GetMinimumAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMinimumAllocatableIPv4() int { return n.provider.cloud.config.Pre }

// IsPrefixDelegated implements netresource.NetResourceOperations.
func (n *node) IsPrefixDelegated() bool { return n.provider.cloud.config.PrefixLen > 0 }

// GetUsedIPWithPrefixes implements netresource.NetResourceOperations.
func (n *node) GetUsedIPWithPrefixes() int {
	instance := n.instance()
	n.mu.Lock()
	used := n.obj.Status.IPAM.Used
	n.mu.Unlock()
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	count := 0
	for _, i := range n.provider.view[instance] {
		for _, u := range i.units {
			if anyOf(used, u) {
				count += n.size()
			}
		}
	}
	return count
}

// GetMaximumBurstableAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMaximumBurstableAllocatableIPv4() int { return 0 }

var _ v1alpha1.Interface = (*nic)(nil)

// InterfaceID implements v1alpha1.Interface.
func (i *nic) InterfaceID() string { return i.id }

// ForeachAddress implements v1alpha1.Interface.
func (i *nic) ForeachAddress(instanceID string, fn v1alpha1.AddressIterator) error {
	for _, u := range i.units {
		if err := fn(instanceID, i.id, handshake.Key(u), string(i.subnet)); err != nil {
			return err
		}
	}
	return nil
}
