// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// thresholds returns the thresholds of the set, or the defaults.
func (set *NetResourceSet) thresholds() nodeset.Thresholds {
	t := nodeset.Thresholds{Allocate: nodeset.DefaultAllocate, Release: nodeset.DefaultRelease}
	if set.AllocationThreshold > 0 {
		t.Allocate = uint64(set.AllocationThreshold)
	}
	if set.ReleaseThreshold > 0 {
		t.Release = uint64(set.ReleaseThreshold)
	}
	return t
}

// active returns the CIDRs of both families that addresses are allocated from.
func active(lists [2]nodeset.CIDRs) []netip.Prefix {
	return slices.Concat(lists[ledger.IPv4].Active(), lists[ledger.IPv6].Active())
}

// updateCIDRs grants the CIDRs of a NetResourceSet.
func (m *IPAM) updateCIDRs(ctx context.Context, next *resources) error {
	used := m.usage()
	for f := range next.cidrs {
		next.cidrs[f] = next.cidrs[f].Update(m.readCIDRs(ledger.Family(f), next.set), used)
	}
	return m.deps.Grants.Grant(ctx, m.pool, active(next.cidrs))
}

// readCIDRs reads the CIDRs of a family. It drops texts that are not a CIDR,
// repetitions and CIDRs that overlap an earlier one.
func (m *IPAM) readCIDRs(f ledger.Family, set *NetResourceSet) nodeset.Listing {
	l := nodeset.Listing{Released: map[netip.Prefix]bool{}, First: m.resources.set == nil}
	for text, state := range set.Status.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && state == Released {
			l.Released[p.Masked()] = true
		}
	}
	if m.allocatorOf(f) == nil {
		return l
	}
	for _, text := range set.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		p = p.Masked()
		switch {
		case err != nil:
			m.log.Error("a pod CIDR of the NetResourceSet cannot be parsed",
				"name", set.Name, "cidr", text, "error", err)
		case ledger.FamilyOf(p.Addr()) != f:
		case slices.ContainsFunc(l.CIDRs, p.Overlaps):
			m.log.Error("a pod CIDR of the NetResourceSet overlaps an earlier one", "name", set.Name, "cidr", text)
		default:
			l.CIDRs = append(l.CIDRs, p)
		}
	}
	return l
}

// usage returns the counts of each block of the pool.
func (m *IPAM) usage() map[netip.Prefix]nodeset.BlockUse {
	used := map[netip.Prefix]nodeset.BlockUse{}
	for _, s := range m.stats() {
		used[s.Block] = nodeset.BlockUse{
			Held: uint64(s.Held + s.Quarantined + s.Cooling + s.Infra),
			Free: s.Free,
		}
	}
	return used
}

// reviewCIDRs returns the state of all CIDRs. A CIDR that can be released drains,
// durably, before it is reported as released.
func (m *IPAM) reviewCIDRs(ctx context.Context) (map[string]string, error) {
	if m.resources.set == nil {
		return nil, nil
	}
	t := m.resources.set.thresholds()
	next, used, all := m.resources.cidrs, m.usage(), map[string]string{}
	var unneeded []netip.Prefix
	for f := range next {
		states, more := next[f].Review(t, used)
		maps.Copy(all, states)
		next[f] = next[f].Release(more)
		unneeded = append(unneeded, more...)
	}
	if len(unneeded) == 0 {
		return all, nil
	}
	if err := m.deps.Grants.Grant(ctx, m.pool, active(next)); err != nil {
		return nil, err
	}
	used = m.usage() // an address may have been allocated before the grant
	if i := slices.IndexFunc(unneeded, func(p netip.Prefix) bool { return used[p].Held > 0 }); i >= 0 {
		if err := m.deps.Grants.Grant(ctx, m.pool, active(m.resources.cidrs)); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s was to be released and is in use again", unneeded[i])
	}
	m.resources.cidrs = next
	m.publish()
	return all, nil
}
