// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// NetworkPair names two networks by their keys in ipamConfig, in the order in
// which networkNames has them.
type NetworkPair struct{ A, B string }

// String returns the pair as it is written in allowOverlap.
func (n NetworkPair) String() string { return n.A + "/" + n.B }

// networkNames returns the keys of the networks that must not overlap.
func networkNames() []string {
	return []string{"podSubnetCIDR", "vppHostSubnetCIDR", "nodeInterconnectCIDR", "vxlanCIDR", "serviceCIDR"}
}

// networksOf returns the networks of a family, in the order of networkNames.
func networksOf(f addrplan.Family) []netip.Prefix {
	return []netip.Prefix{f.Pods, f.Hosts, f.Nodes, f.Vxlan, f.Service}
}

// pair reads an entry of allowOverlap.
func (r *reading) pair(key, s string) (NetworkPair, bool) {
	names := networkNames()
	var at []int
	for part := range strings.SplitSeq(s, "/") {
		at = append(at, slices.IndexFunc(names, func(n string) bool {
			return strings.EqualFold(n, strings.TrimSpace(part))
		}))
	}
	if len(at) != 2 || at[0] < 0 || at[1] < 0 || at[0] == at[1] {
		r.Add(RuleAllowOverlap, key, s,
			"is not a pair of networks: write two of %s with a slash between them, such as \"podSubnetCIDR/vxlanCIDR\"",
			strings.Join(names, ", "))
		return NetworkPair{}, false
	}
	slices.Sort(at)
	return NetworkPair{names[at[0]], names[at[1]]}, true
}
