// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/cloud"
)

// Uplink is a network interface of this node whose addresses pods have.
type Uplink struct {
	Interface string // the provider's ID
	MAC       string // by which the link is found
	Device    int    // 0 is the machine's first interface
	Ranges    []cloud.Range
	VPCCIDRs  []netip.Prefix // ranges of the whole cloud network
}

// equal reports whether two uplinks are the same.
func (u Uplink) equal(v Uplink) bool {
	return u.Interface == v.Interface && u.MAC == v.MAC && u.Device == v.Device &&
		slices.Equal(u.Ranges, v.Ranges) && slices.Equal(u.VPCCIDRs, v.VPCCIDRs)
}

// uplinks holds the uplinks of a node and the uplink of each block. It is immutable. The
// source of the node's blocks makes it: a NetResourceSet, or the node's own view of its
// cloud. The zero value has none.
type uplinks struct {
	all    []Uplink // sorted by Interface
	blocks []uplinkBlock
}

// uplinkBlock is a block, or an address, of an uplink.
type uplinkBlock struct {
	prefix netip.Prefix
	iface  string
}

// newUplinks returns the uplinks among interfaces that have one of blocks, which holds the
// ID of the interface of each block. A block of an unknown interface has no uplink.
func newUplinks(interfaces []Uplink, blocks map[netip.Prefix]string) (u uplinks) {
	has := map[string]bool{}
	for _, x := range interfaces {
		has[x.Interface] = false
	}
	for p, iface := range blocks {
		if _, known := has[iface]; known {
			has[iface] = true
			u.blocks = append(u.blocks, uplinkBlock{p.Masked(), iface})
		}
	}
	slices.SortFunc(u.blocks, func(x, y uplinkBlock) int { return x.prefix.Compare(y.prefix) })
	for _, x := range interfaces {
		if has[x.Interface] {
			u.all = append(u.all, x)
		}
	}
	slices.SortFunc(u.all, func(x, y Uplink) int { return cmp.Compare(x.Interface, y.Interface) })
	return u
}

// of returns the interface of an address: that of the longest block that contains it.
func (u uplinks) of(a netip.Addr) (iface string, ok bool) {
	for bits := a.BitLen(); bits >= 0 && len(u.blocks) > 0; bits-- {
		p := netip.PrefixFrom(a, bits).Masked()
		at, found := slices.BinarySearchFunc(u.blocks, p, func(x uplinkBlock, p netip.Prefix) int { return x.prefix.Compare(p) })
		if found {
			return u.blocks[at].iface, true
		}
	}
	return "", false
}

// equal reports whether u and v have the same uplinks with the same blocks.
func (u uplinks) equal(v uplinks) bool {
	return slices.EqualFunc(u.all, v.all, Uplink.equal) && slices.Equal(u.blocks, v.blocks)
}

// Uplinks returns the network interfaces of this node that have blocks of the default
// network, sorted by Interface; none if its addresses are not of interfaces. The loop
// pushes a PodNetworkChange after a change of them.
func (i *IPAM) Uplinks() []Uplink { return slices.Clone(i.state.Load().uplinks.all) }

// UplinkOf returns the ID of the interface that an address is of. ok is false if that is
// not an Uplink.
func (i *IPAM) UplinkOf(a netip.Addr) (iface string, ok bool) {
	return i.state.Load().uplinks.of(a.Unmap())
}

// uplinksOfSet returns the uplinks of a NetResourceSet. The use that this node has
// reported tells the interface of an address that is leased and has left the pool.
func uplinksOfSet(set *kv.NetResourceSet) uplinks {
	var interfaces []Uplink
	for _, id := range slices.Sorted(maps.Keys(set.GetInterfaces())) {
		interfaces = append(interfaces, uplinkOfSet(id, set.Interfaces[id]))
	}
	blocks := map[netip.Prefix]string{}
	for key, x := range set.GetPool() {
		if p, err := handshake.ParseKey(key); err == nil && x.GetResource() != "" {
			blocks[p] = x.Resource
		}
	}
	pool := newUplinks(interfaces, blocks)
	for key, x := range set.GetUsed() {
		a, err := netip.ParseAddr(key)
		if err != nil || x.GetResource() == "" {
			continue
		}
		if _, inPool := pool.of(a); !inPool {
			blocks[netip.PrefixFrom(a, a.BitLen())] = x.Resource
		}
	}
	if len(blocks) == len(pool.blocks) {
		return pool
	}
	return newUplinks(interfaces, blocks)
}

// uplinkOfSet converts an interface. It leaves out a range that cannot be parsed.
func uplinkOfSet(id string, m *kv.NetResourceInterface) Uplink {
	u := Uplink{Interface: id, MAC: m.GetMac(), Device: int(m.GetDevice())}
	for _, r := range m.GetRanges() {
		p, err := netip.ParsePrefix(r.GetCidr())
		if err != nil {
			continue
		}
		gateway, _ := netip.ParseAddr(r.GetGateway()) // otherwise the zero Addr: none
		u.Ranges = append(u.Ranges, cloud.Range{CIDR: p.Masked(), Gateway: gateway})
	}
	for _, text := range m.GetVpcCidrs() {
		if p, err := netip.ParsePrefix(text); err == nil {
			u.VPCCIDRs = append(u.VPCCIDRs, p.Masked())
		}
	}
	return u
}
