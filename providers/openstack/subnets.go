// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/subnetpools"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"

	"github.com/cadastre/cadastre/cloud"
)

// freshness bounds the age of a network's subnets that a change works with.
const freshness = time.Minute

// subnet is a subnet of Neutron: one range of one family.
type subnet struct {
	id      string
	network string
	cidr    netip.Prefix
	gateway netip.Addr
	pools   []span
	auto    bool // each port derives its address from its MAC; none can be asked for
	usable  bool
	tags    map[string]string
	scope   string // ID of its address scope
}

// span is a range of addresses with both ends.
type span struct{ first, last netip.Addr }

func (s span) overlaps(p netip.Prefix) bool {
	return !last(p).Less(s.first) && !s.last.Less(p.Addr())
}

// last returns the last address of a prefix without host bits.
func last(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(bytes) // it has the length of an address
	return addr
}

func (s *subnet) is6() bool { return s.cidr.Addr().Is6() }

// networkState holds the subnets of a network.
type networkState struct {
	read    time.Time
	subnets []*subnet
	vpc     []netip.Prefix
}

// find returns the subnet with an ID; nil if the network has none.
func (n *networkState) find(id string) *subnet {
	at := slices.IndexFunc(n.subnets, func(s *subnet) bool { return s.id == id })
	if at < 0 {
		return nil
	}
	return n.subnets[at]
}

// companion returns the subnet from which ports with an address of s take those of the
// family: s itself, or for IPv6 the first usable one of the network. nil: there is none.
func (n *networkState) companion(s *subnet, ipv6 bool) *subnet {
	if s.is6() == ipv6 {
		return s
	}
	if !ipv6 {
		return nil // an IPv4 subnet stands for both families
	}
	for _, other := range n.subnets {
		if other.is6() && !other.auto && other.usable {
			return other
		}
	}
	return nil
}

// networkOf returns the subnets of one network, which may be as old as freshness.
func (c *Cloud) networkOf(ctx context.Context, id string) (*networkState, error) {
	c.mu.Lock()
	known := c.known[id]
	c.mu.Unlock()
	if known != nil && c.config.Now().Sub(known.read) < freshness {
		return known, nil
	}
	all, err := c.readNetworks(ctx, []string{id})
	if err != nil {
		return nil, err
	}
	if all[id] == nil {
		return nil, fmt.Errorf("network %s has no subnets that the project sees", id)
	}
	return all[id], nil
}

// readNetworks reads the subnets of networks, by ID of the network; no IDs mean all.
func (c *Cloud) readNetworks(ctx context.Context, ids []string) (map[string]*networkState, error) {
	values := url.Values{"limit": {strconv.Itoa(c.config.PageSize)}}
	if len(ids) > 0 {
		values["network_id"] = ids
	}
	pages, err := subnets.List(c.network, subnetList(values)).AllPages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list subnets: %w", failure(err))
	}
	list, err := subnets.ExtractSubnets(pages)
	if err != nil {
		return nil, fmt.Errorf("list subnets: %w", err)
	}
	scopes, err := c.readScopes(ctx, list)
	if err != nil {
		return nil, err
	}
	all := map[string]*networkState{}
	for _, s := range list {
		parsed, err := c.parse(s)
		if err != nil {
			return nil, fmt.Errorf("subnet %s: %w", s.ID, err)
		}
		parsed.scope = scopes.of[s.SubnetPoolID]
		n := all[s.NetworkID]
		if n == nil {
			n = &networkState{read: c.config.Now()}
			all[s.NetworkID] = n
		}
		n.subnets = append(n.subnets, parsed)
	}
	for _, n := range all {
		slices.SortFunc(n.subnets, func(a, b *subnet) int { return cmp.Compare(a.id, b.id) })
		n.vpc = c.vpc(n, scopes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range all {
		c.known[id] = n
	}
	return all, nil
}

// subnetList is a query in the form of gophercloud.
type subnetList url.Values

// ToSubnetListQuery implements subnets.ListOptsBuilder.
func (l subnetList) ToSubnetListQuery() (string, error) { return "?" + url.Values(l).Encode(), nil }

func (c *Cloud) parse(s subnets.Subnet) (*subnet, error) {
	cidr, err := netip.ParsePrefix(s.CIDR)
	if err != nil {
		return nil, err
	}
	parsed := &subnet{id: s.ID, network: s.NetworkID, cidr: cidr.Masked(), tags: map[string]string{}}
	if s.GatewayIP != "" {
		if parsed.gateway, err = netip.ParseAddr(s.GatewayIP); err != nil {
			return nil, err
		}
	}
	for _, p := range s.AllocationPools {
		first, err := netip.ParseAddr(p.Start)
		if err != nil {
			return nil, err
		}
		last, err := netip.ParseAddr(p.End)
		if err != nil {
			return nil, err
		}
		parsed.pools = append(parsed.pools, span{first, last})
	}
	for _, mode := range []string{s.IPv6AddressMode, s.IPv6RAMode} {
		parsed.auto = parsed.auto || mode == "slaac" || mode == "dhcpv6-stateless"
	}
	parsed.usable = true
	for _, tag := range c.config.SubnetTags {
		parsed.usable = parsed.usable && slices.Contains(s.Tags, tag)
	}
	for _, tag := range s.Tags {
		key, value, _ := strings.Cut(tag, "=")
		parsed.tags[key] = value
	}
	return parsed, nil
}

// scopes holds the address scopes of subnet pools, and the prefixes of each scope.
type scopes struct {
	of       map[string]string // by ID of the subnet pool
	prefixes map[string][]netip.Prefix
}

// readScopes reads the subnet pools, if a subnet comes from one.
func (c *Cloud) readScopes(ctx context.Context, list []subnets.Subnet) (scopes, error) {
	found := scopes{map[string]string{}, map[string][]netip.Prefix{}}
	if !slices.ContainsFunc(list, func(s subnets.Subnet) bool { return s.SubnetPoolID != "" }) {
		return found, nil
	}
	pages, err := subnetpools.List(c.network, subnetpools.ListOpts{}).AllPages(ctx)
	if err != nil {
		return found, fmt.Errorf("list subnet pools: %w", failure(err))
	}
	pools, err := subnetpools.ExtractSubnetPools(pages)
	if err != nil {
		return found, fmt.Errorf("list subnet pools: %w", err)
	}
	for _, p := range pools {
		if p.AddressScopeID == "" {
			continue
		}
		found.of[p.ID] = p.AddressScopeID
		for _, text := range p.Prefixes {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return found, fmt.Errorf("subnet pool %s: %w", p.ID, err)
			}
			found.prefixes[p.AddressScopeID] = append(found.prefixes[p.AddressScopeID], prefix.Masked())
		}
	}
	return found, nil
}

// vpc returns the ranges that a network reaches without translation: its subnets, the
// prefixes of their address scopes, and those of the configuration.
func (c *Cloud) vpc(n *networkState, known scopes) []netip.Prefix {
	all := slices.Clone(c.config.VPC)
	for _, s := range n.subnets {
		all = append(all, s.cidr)
		all = append(all, known.prefixes[s.scope]...)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var distinct []netip.Prefix // a range that another one contains adds nothing
	for _, p := range all {
		if !slices.ContainsFunc(distinct, func(q netip.Prefix) bool { return q.Overlaps(p) }) {
			distinct = append(distinct, p)
		}
	}
	return distinct
}

// offered returns the subnet in the form of package cloud: an IPv4 subnet stands for both
// families of its ports. nil: it is part of another one.
func (n *networkState) offered(s *subnet) *cloud.Subnet {
	offer := &cloud.Subnet{
		ID:     s.id,
		Ranges: []cloud.Range{{CIDR: s.cidr, Gateway: s.gateway}},
		VPC:    n.vpc,
		Free:   -1,
		Usable: s.usable && !s.auto,
		Tags:   s.tags,
	}
	if other := n.companion(s, !s.is6()); other != nil {
		offer.Ranges = append(offer.Ranges, cloud.Range{CIDR: other.cidr, Gateway: other.gateway})
	}
	return offer
}

// free returns the number of IPv4 addresses of a subnet that no port has, among those that
// can be asked for: an upper bound if the project does not see all ports of the network.
func (s *subnet) free(used map[netip.Addr]bool) int {
	if s.is6() {
		return -1
	}
	const reserved = 2 // the first and the last address of an IPv4 subnet
	total := math.Exp2(float64(32-s.cidr.Bits())) - reserved
	taken := 0
	for addr := range used {
		if s.cidr.Contains(addr) && addr != s.gateway {
			taken++
		}
	}
	if s.gateway.IsValid() {
		taken++
	}
	return max(int(total)-taken, 0)
}
