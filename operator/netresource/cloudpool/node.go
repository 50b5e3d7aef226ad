// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// node is the provider's part for one NetResourceSet. p.mu guards it.
type node struct {
	p    *Provider
	set  *v1alpha1.NetResourceSet // the newest version, which is only read
	owns string                   // the machine under which owners of p has it
}

// Families of addresses, as indexes of cloud.Limits.
const (
	v4 = 0
	v6 = 1
)

// node returns the node of a NetResourceSet that State was called for.
func (p *Provider) node(set *v1alpha1.NetResourceSet) (*node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[set.Name]
	if n == nil {
		return nil, fmt.Errorf("find node %s: its State comes first", set.Name)
	}
	n.set = set
	n.own()
	return n, nil
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

// instance returns the ID of the node's machine: without one, the name of the node. The caller
// holds p.mu.
func (n *node) instance() string { return cmp.Or(n.set.Spec.InstanceID, n.set.Name) }

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
		if first := other.set; other != n && before(first, n.set) {
			return nil, fmt.Errorf("find machine %q: it is the machine of NetResourceSet %s: "+
				"want another spec.instanceID, which follows from cadastre.instanceID or the Node's providerID", id, first.Name)
		}
	}
	return m, nil
}

// Describe implements netresource.Provider. An interface stays in the status for as long as an
// address of it is in the pool.
func (p *Provider) Describe(_ context.Context, r *v1alpha1.NetResourceSet) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[r.Name]
	if n == nil {
		return nil
	}
	m, err := n.machine()
	if err != nil {
		return nil //nolint:nilerr // State has returned it
	}
	subnets := p.subnetsFor(m)
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
			all[i.ID] = described(i, p.view.subnets)
		}
	}
	if r.Status.Interfaces = all; len(all) == 0 {
		r.Status.Interfaces = nil
	}
	return nil
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

// State implements netresource.Provider.
func (p *Provider) State(_ context.Context, set *v1alpha1.NetResourceSet) (s netresource.State, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[set.Name]
	if n == nil {
		n = &node{p: p}
		p.nodes[set.Name] = n
	}
	n.set = set
	n.own()
	m, err := n.machine()
	if err != nil {
		return s, err
	}
	s = netresource.State{
		Available: n.available(m),
		Most:      p.most(m),
		Least:     p.config.Pre,
		Prefixes:  p.prefixSize(m, p.counted()) > 1,
		// IPv6 addresses come first, and IPv4 addresses are counted: what is half done goes on.
		CountsIPv4: p.config.IPv4,
	}
	if s.Prefixes {
		s.Used = n.usedPrefixes(m)
	}
	return s, nil
}

// available returns the addresses of a machine for pods.
func (n *node) available(m *cloud.Instance) v1alpha1.AllocationMap {
	pool, all := n.set.Spec.IPAM.Pool, v1alpha1.AllocationMap{}
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
	return all
}

// most returns the number of addresses that a machine can have for pods, of the family that
// the manager counts.
func (p *Provider) most(m *cloud.Instance) int {
	interfaces := m.Limits.Interfaces
	for _, i := range m.Interfaces {
		if i.Trunk || i.Exclude {
			interfaces--
		}
	}
	f := p.counted()
	return max(interfaces, 0) * m.Limits.Addresses[f] * p.prefixSize(m, f)
}

// usedPrefixes counts the addresses of a machine's prefixes of which one is used.
func (n *node) usedPrefixes(m *cloud.Instance) (count int) {
	in := usedIn(n.set.Status.IPAM.Used)
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
