// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// setOf converts the node's object: each address has the MAC of its interface, and the
// range of its subnet that contains it.
func setOf(m *kv.NetResourceSet) *NetResourceSet {
	uplinks := nodeset.UplinksOf(m)
	set := &NetResourceSet{
		Name:                m.GetName(),
		PodCIDRs:            slices.Clone(m.GetPodCidrs()),
		AllocationThreshold: int(m.GetMarks().GetAllocationThreshold()),
		ReleaseThreshold:    int(m.GetMarks().GetReleaseThreshold()),
		MinAllocate:         int(m.GetMarks().GetMinAllocate()),
		PreAllocate:         int(m.GetMarks().GetPreAllocate()),
		Pool:                map[string]PoolIP{},
		VPCCIDRs:            vpcCIDRs(uplinks.All()),
		Status: Status{
			Used:       map[string]Use{},
			PodCIDRs:   m.GetCidrStates(),
			ReleaseIPs: m.GetReleases(),
		},
	}
	for key, x := range m.GetPool() {
		set.Pool[key] = poolIPOf(uplinks, key, x)
	}
	for a, x := range m.GetUsed() {
		set.Status.Used[a] = Use{x.GetOwner(), x.GetResource()}
	}
	return set
}

// poolIPOf describes an address or a block of the pool.
func poolIPOf(uplinks nodeset.Uplinks, key string, x *kv.NetResource) PoolIP {
	about := PoolIP{Interface: x.GetResource()}
	p, err := handshake.ParseKey(key)
	if err != nil {
		return about
	}
	u, ok := uplinks.Of(p.Addr())
	if !ok {
		return about
	}
	about.MAC = u.MAC
	if r, ok := u.RangeOf(p.Addr()); ok {
		about.Subnet, about.Gateway = r.CIDR, r.Gateway
	}
	return about
}

// vpcCIDRs returns the ranges of the cloud network, those of the machine's first interface
// first.
func vpcCIDRs(uplinks []nodeset.Uplink) (texts []string) {
	slices.SortStableFunc(uplinks, func(x, y nodeset.Uplink) int { return cmp.Compare(x.Device, y.Device) })
	var all []netip.Prefix
	for _, u := range uplinks {
		all = append(all, u.VPCCIDRs...)
	}
	for i, p := range all {
		if !slices.Contains(all[:i], p) {
			texts = append(texts, p.String())
		}
	}
	return texts
}

// message converts the part of a set that package nodeset reads. A node with single
// addresses has no CIDRs.
func (set *NetResourceSet) message() *kv.NetResourceSet {
	m := &kv.NetResourceSet{Name: set.Name, Pool: map[string]*kv.NetResource{}, Releases: set.Status.ReleaseIPs}
	for key, about := range set.Pool {
		m.Pool[key] = &kv.NetResource{Resource: about.Interface}
	}
	return m
}
