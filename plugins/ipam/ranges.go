// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// NetworkRanges returns the ranges of each pod network in the whole cluster, by the name
// of the network; none before the first resync. Draining pools count, removed ones do not.
func (i *IPAM) NetworkRanges() map[string][]netip.Prefix {
	s := i.state.Load()
	if s.networks == nil {
		return nil
	}
	all := map[string][]netip.Prefix{PodPool: nil}
	for _, p := range s.pools {
		if p.State == poolplan.Removed {
			continue
		}
		for _, r := range p.Ranges {
			all[p.Network] = append(all[p.Network], r.CIDR)
		}
	}
	if len(all[PodPool]) == 0 { // blocks of the pod network do not follow from pools
		for _, f := range s.families {
			all[PodPool] = append(all[PodPool], f.Pods)
		}
	}
	for name, ranges := range all {
		slices.SortFunc(ranges, netip.Prefix.Compare)
		all[name] = slices.Compact(ranges)
	}
	return all
}

// HostSubnetsOf returns the VPP-host subnets of a node, one of each family; none before the
// first resync or if the ID does not fit.
func (i *IPAM) HostSubnetsOf(nodeID uint32) (all []netip.Prefix) {
	for _, f := range i.families() {
		if p, err := addrspace.NodePrefix(f.Hosts, f.HostsOneNode, nodeID); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// VxlanAddressesOf returns the VXLAN addresses of a node, one of each family, each with the
// length of its network. It returns none before the first resync or if the ID fits no VXLAN
// network.
func (i *IPAM) VxlanAddressesOf(nodeID uint32) (all []netip.Prefix) {
	for _, f := range i.families() {
		if p, err := f.VxlanIP(nodeID); err == nil {
			all = append(all, p)
		}
	}
	return all
}
