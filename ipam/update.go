// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// resources holds what a NetResourceSet gives this node. IPAM.change guards it.
type resources struct {
	set   *NetResourceSet  // nil: none was received yet
	cidrs [2]nodeset.CIDRs // of a cluster pool, by family
	ips   poolIPs          // single addresses
}

// snapshot holds what allocations need of the resources. It is a value.
type snapshot struct {
	set    *NetResourceSet
	listed bool // blocks are used up in the order of the NetResourceSet, not of the pool
	ips    poolIPs
	strict bool        // addresses need the data of the NetResourceSet
	vpc    [2][]string // CIDRs of the cloud network, by family
}

// reload takes the blocks of an earlier process from the ledger, for the time
// until a NetResourceSet is received.
func (m *IPAM) reload(ctx context.Context) error {
	var cidrs [2][]netip.Prefix
	for _, s := range m.stats() {
		cidrs[s.Family] = append(cidrs[s.Family], s.Block)
	}
	for f := range cidrs {
		m.resources.cidrs[f] = nodeset.NewCIDRs(cidrs[f])
	}
	m.publish()
	return m.deps.Grants.Grant(ctx, m.pool, m.deps.Ledger.Blocks(m.pool.Name))
}

// publish replaces the snapshot of the resources.
func (m *IPAM) publish() {
	s := &snapshot{set: m.resources.set, ips: m.resources.ips, strict: m.named == vpcENI}
	if m.mode == ClusterPool && s.set != nil {
		s.listed = true
	}
	for _, cidr := range s.vpcCIDRs() {
		f := ledger.FamilyOf(cidr.Addr())
		s.vpc[f] = append(s.vpc[f], cidr.String())
	}
	m.snapshot.Store(s)
}

// vpcCIDRs returns the CIDRs of the cloud network, the primary one first.
func (s *snapshot) vpcCIDRs() (all []netip.Prefix) {
	if s.set == nil {
		return nil
	}
	for _, text := range s.set.VPCCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// followsSets reports whether the addresses are those of a NetResourceSet.
func (m *IPAM) followsSets() bool { return m.mode == ClusterPool || m.mode == Given }

// Update applies a NetResourceSet of this node: new addresses can be allocated,
// missing ones no longer, and leases stay. It ignores the NetResourceSets of other
// nodes. After an error nothing has changed.
func (m *IPAM) Update(ctx context.Context, set *NetResourceSet) error {
	switch {
	case m.broken != nil:
		return m.broken
	case !m.followsSets(), set == nil, set.Name != m.deps.Name:
		return nil
	}
	err := context.Cause(ctx)
	var cidrs []netip.Prefix
	if err == nil {
		cidrs, err = m.apply(ctx, set)
	}
	if err != nil {
		return fmt.Errorf("follow NetResourceSet %q: %w", set.Name, err)
	}
	if m.mode == ClusterPool {
		m.notifyOwner(cidrs)
	}
	if vpc := m.GetVpcCIDRs(); len(vpc) > 0 && vpc[0].Prefix().Addr().Is4() {
		m.deps.Config.SetIPv4NativeRoutingCIDR(vpc[0])
	}
	m.poke()
	return nil
}

// apply grants the resources of set and publishes them. It returns the CIDRs of a
// cluster pool.
func (m *IPAM) apply(ctx context.Context, set *NetResourceSet) (cidrs []netip.Prefix, err error) {
	m.change.Lock()
	defer m.change.Unlock()
	next := m.resources
	next.set = set
	if m.mode == ClusterPool {
		err = m.updateCIDRs(ctx, &next)
	} else {
		err = m.updatePoolIPs(ctx, &next)
	}
	if err != nil {
		return nil, err
	}
	m.resources = next
	m.publish()
	close(m.updated)
	m.updated = make(chan struct{})
	return slices.Concat(next.cidrs[ledger.IPv4].All(), next.cidrs[ledger.IPv6].All()), nil
}

// GetVpcCIDRs returns the CIDRs of the cloud network, the primary one first; nil
// if the addresses are not from a cloud.
func (m *IPAM) GetVpcCIDRs() (vpcCIDRs []*CIDR) {
	if m.broken != nil || m.mode != Given {
		return nil
	}
	for _, p := range m.snapshot.Load().vpcCIDRs() {
		vpcCIDRs = append(vpcCIDRs, NewCIDR(p))
	}
	return vpcCIDRs
}

// notifyOwner calls the owner with the blocks that pods have addresses of.
func (m *IPAM) notifyOwner(blocks []netip.Prefix) {
	if m.deps.Owner == nil {
		return
	}
	var byFamily [2][]netip.Prefix
	for _, p := range blocks {
		f := ledger.FamilyOf(p.Addr())
		byFamily[f] = append(byFamily[f], p)
	}
	m.deps.Owner.LocalAllocCIDRsUpdated(toCIDRs(byFamily[ledger.IPv4]), toCIDRs(byFamily[ledger.IPv6]))
}
