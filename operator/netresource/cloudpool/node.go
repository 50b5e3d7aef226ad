// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// node implements netresource.NetResourceOperations for one node.
type node struct {
	p    *Provider
	owns string // the machine under which owners of p has it; p.mu guards it

	mu  sync.Mutex
	obj *v1alpha1.NetResourceSet
}

// Families of addresses, as indexes of cloud.Limits.
const (
	v4 = 0
	v6 = 1
)

// UpdatedNode implements netresource.NetResourceOperations.
func (n *node) UpdatedNode(obj *v1alpha1.NetResourceSet) {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	n.mu.Lock()
	n.obj = obj
	n.mu.Unlock()
	if n.p.nodes[obj.Name] == n {
		n.own()
	}
}

// own records the node's machine. The caller holds p.mu.
func (n *node) own() {
	id := n.instance()
	if n.owns == id {
		return
	}
	n.leave()
	if n.p.owners[id] == nil {
		n.p.owners[id] = map[*node]bool{}
	}
	n.owns, n.p.owners[id][n] = id, true
}

// leave forgets the node's machine. The caller holds p.mu.
func (n *node) leave() {
	delete(n.p.owners[n.owns], n)
	if len(n.p.owners[n.owns]) == 0 {
		delete(n.p.owners, n.owns)
	}
	n.owns = ""
}

// before reports whether a NetResourceSet is older than another one.
func before(a, b *v1alpha1.NetResourceSet) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// object returns the newest version of the NetResourceSet, which is only read.
func (n *node) object() *v1alpha1.NetResourceSet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.obj
}

// instance returns the ID of the node's machine: without one, the name of the node.
func (n *node) instance() string {
	obj := n.object()
	return cmp.Or(obj.Spec.InstanceID, obj.Name)
}

// machine returns the node's machine, unless an older NetResourceSet has it. The caller holds
// p.mu.
func (n *node) machine() (*cloud.Instance, error) {
	id := n.instance()
	m := n.p.view.machines[id]
	if m == nil {
		return nil, fmt.Errorf("find machine %q at the cloud %s: %w", id, n.p.config.Cloud.Name(),
			netresource.ErrInstanceNotFound)
	}
	for other := range n.p.owners[id] { // its addresses would be those of two nodes
		if first := other.object(); other != n && before(first, n.object()) {
			return nil, fmt.Errorf("find machine %q: it is the machine of NetResourceSet %s: "+
				"want another spec.instanceID, which follows from cadastre.instanceID or the Node's providerID", id, first.Name)
		}
	}
	return m, nil
}

// PopulateStatusFields implements netresource.NetResourceOperations. An interface stays in
// the status for as long as an address of it is in the pool.
func (n *node) PopulateStatusFields(r *v1alpha1.NetResourceSet) {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return
	}
	subnets := n.p.subnetsFor(m)
	r.Status.IPAM.AvailableSubnetIDs = nil
	for _, s := range subnets[:min(len(subnets), 256)] {
		r.Status.IPAM.AvailableSubnetIDs = append(r.Status.IPAM.AvailableSubnetIDs, s.ID)
	}
	slices.Sort(r.Status.IPAM.AvailableSubnetIDs)
	all := map[string]v1alpha1.NetResourceInterface{}
	for _, at := range r.Spec.IPAM.Pool {
		if i, ok := r.Status.Interfaces[at.Resource]; ok {
			all[at.Resource] = i
		}
	}
	for _, i := range m.Interfaces {
		if !i.Trunk && slices.ContainsFunc(i.Blocks, func(b cloud.Block) bool { return !b.Primary }) {
			all[i.ID] = described(i, n.p.view.subnets)
		}
	}
	if r.Status.Interfaces = all; len(all) == 0 {
		r.Status.Interfaces = nil
	}
}

// described returns an interface as the status has it.
func described(i *cloud.Interface, subnets map[string]*cloud.Subnet) v1alpha1.NetResourceInterface {
	d := v1alpha1.NetResourceInterface{MAC: i.MAC, Device: i.Device}
	s := subnets[i.Subnet]
	if s == nil {
		return d
	}
	for _, r := range s.Ranges[:min(len(s.Ranges), 2)] {
		r2 := v1alpha1.SubnetRange{CIDR: v1alpha1.PodCIDR(r.CIDR.String())}
		if r.Gateway.IsValid() {
			r2.Gateway = r.Gateway.String()
		}
		d.Ranges = append(d.Ranges, r2)
	}
	for _, p := range s.VPC[:min(len(s.VPC), 32)] {
		d.VPCCIDRs = append(d.VPCCIDRs, v1alpha1.PodCIDR(p.String()))
	}
	return d
}

// ResyncInterfacesAndIPs implements netresource.NetResourceOperations.
func (n *node) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	pool := n.object().Spec.IPAM.Pool
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return nil, err
	}
	all := v1alpha1.AllocationMap{}
	for _, i := range m.Interfaces {
		for _, b := range i.Blocks {
			if b.Primary || i.Trunk {
				continue
			}
			key := handshake.Key(b.Prefix)
			if _, had := pool[key]; n.p.view.twice[b.Prefix] && !had {
				continue
			}
			all[key] = v1alpha1.AllocationIP{Resource: i.ID, SubnetID: cmp.Or(b.Subnet, i.Subnet)}
		}
	}
	return all, nil
}

// GetMaximumAllocatableIPv4 implements netresource.NetResourceOperations. It counts IPv6
// addresses for a node that has only those.
func (n *node) GetMaximumAllocatableIPv4() int {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return 0
	}
	interfaces := m.Limits.Interfaces
	for _, i := range m.Interfaces {
		if i.Trunk || i.Exclude {
			interfaces--
		}
	}
	f := n.p.counted()
	return max(interfaces, 0) * m.Limits.Addresses[f] * n.p.prefixSize(m, f)
}

// GetMinimumAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMinimumAllocatableIPv4() int { return n.p.config.Pre }

// GetMaximumBurstableAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMaximumBurstableAllocatableIPv4() int { return 0 }

// IsPrefixDelegated implements netresource.NetResourceOperations.
func (n *node) IsPrefixDelegated() bool {
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	return err == nil && n.p.prefixSize(m, n.p.counted()) > 1
}

// CountsIPv4 implements netresource.IPv4Counter.
func (n *node) CountsIPv4() bool { return n.p.config.IPv4 }

// GetUsedIPWithPrefixes implements netresource.NetResourceOperations.
func (n *node) GetUsedIPWithPrefixes() int {
	used := n.object().Status.IPAM.Used
	n.p.mu.Lock()
	defer n.p.mu.Unlock()
	m, err := n.machine()
	if err != nil {
		return 0
	}
	in, count := usedIn(used), 0
	for _, i := range m.Interfaces {
		for _, b := range i.Blocks {
			if !b.Primary && family(b.Prefix) == n.p.counted() && in(b.Prefix) {
				count += sizeOf(b.Prefix)
			}
		}
	}
	return count
}

// usedIn returns a function that reports whether an address of a block is used.
func usedIn(used v1alpha1.AllocationMap) func(netip.Prefix) bool {
	var all []netip.Addr
	for text := range used {
		if p, err := handshake.ParseKey(text); err == nil {
			all = append(all, p.Addr())
		}
	}
	byBits := map[int]map[netip.Prefix]bool{}
	return func(b netip.Prefix) bool {
		if byBits[b.Bits()] == nil {
			set := map[netip.Prefix]bool{}
			for _, a := range all {
				if p, err := a.Prefix(b.Bits()); err == nil {
					set[p] = true
				}
			}
			byBits[b.Bits()] = set
		}
		return byBits[b.Bits()][b.Masked()]
	}
}

// counted returns the family that the manager counts.
func (p *Provider) counted() int {
	if p.config.IPv4 {
		return v4
	}
	return v6
}

// families returns those that a node gets addresses of.
func (p *Provider) families() []int {
	switch {
	case !p.config.IPv6:
		return []int{v4}
	case !p.config.IPv4:
		return []int{v6}
	}
	return []int{v6, v4}
}

// prefixSize returns the number of addresses of a unit: 1 if the machine gets no prefixes.
func (p *Provider) prefixSize(m *cloud.Instance, family int) int {
	bits := m.Limits.PrefixBits[family]
	if !p.config.Prefixes || bits == 0 {
		return 1
	}
	return 1 << min([2]int{32, 128}[family]-bits, 20)
}

func family(p netip.Prefix) int {
	if p.Addr().Is6() {
		return v6
	}
	return v4
}
