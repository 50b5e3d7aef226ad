// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/cloud"
)

// Uplink is a network interface of a node whose addresses pods have.
type Uplink struct {
	Interface string         // the provider's ID
	MAC       string         // by which the link is found
	Device    int            // 0 is the machine's first interface
	Ranges    []cloud.Range  // of its subnets, with their gateways
	VPCCIDRs  []netip.Prefix // ranges of the whole cloud network
}

// Equal reports whether two uplinks are the same.
func (u Uplink) Equal(v Uplink) bool {
	return u.Interface == v.Interface && u.MAC == v.MAC && u.Device == v.Device &&
		slices.Equal(u.Ranges, v.Ranges) && slices.Equal(u.VPCCIDRs, v.VPCCIDRs)
}

// RangeOf returns the range of the uplink's subnet that contains an address. ok is false
// if there is none.
func (u Uplink) RangeOf(a netip.Addr) (r cloud.Range, ok bool) {
	i := slices.IndexFunc(u.Ranges, func(r cloud.Range) bool { return r.CIDR.Contains(a) })
	if i < 0 {
		return cloud.Range{}, false
	}
	return u.Ranges[i], true
}

// Uplinks holds the uplinks of a node and the uplink of each block. It is immutable. The
// source of the node's blocks makes it: a NetResourceSet, or the node's own view of its
// cloud. The zero value has none.
type Uplinks struct {
	all    []Uplink // sorted by Interface
	blocks []uplinkBlock
}

// uplinkBlock is a block, or an address, of an uplink.
type uplinkBlock struct {
	prefix netip.Prefix
	uplink int // in all
}

// NewUplinks returns the uplinks among interfaces that have one of blocks, which holds the
// ID of the interface of each block. A block of an unknown interface has no uplink.
func NewUplinks(interfaces []Uplink, blocks map[netip.Prefix]string) (u Uplinks) {
	used := map[string]bool{}
	for _, id := range blocks {
		used[id] = true
	}
	for _, x := range interfaces {
		if used[x.Interface] {
			u.all = append(u.all, x)
		}
	}
	slices.SortFunc(u.all, func(x, y Uplink) int { return cmp.Compare(x.Interface, y.Interface) })
	at := map[string]int{}
	for i, x := range u.all {
		at[x.Interface] = i
	}
	for p, id := range blocks {
		if i, known := at[id]; known {
			u.blocks = append(u.blocks, uplinkBlock{p.Masked(), i})
		}
	}
	slices.SortFunc(u.blocks, func(x, y uplinkBlock) int { return x.prefix.Compare(y.prefix) })
	return u
}

// All returns the uplinks, sorted by Interface.
func (u Uplinks) All() []Uplink { return slices.Clone(u.all) }

// Of returns the uplink of an address: that of the longest block that contains it.
func (u Uplinks) Of(a netip.Addr) (x Uplink, ok bool) {
	for bits := a.BitLen(); bits >= 0 && len(u.blocks) > 0; bits-- {
		p := netip.PrefixFrom(a, bits).Masked()
		at, found := slices.BinarySearchFunc(u.blocks, p, func(x uplinkBlock, p netip.Prefix) int {
			return x.prefix.Compare(p)
		})
		if found {
			return u.all[u.blocks[at].uplink], true
		}
	}
	return Uplink{}, false
}

// Equal reports whether u and v have the same uplinks with the same blocks.
func (u Uplinks) Equal(v Uplinks) bool {
	return slices.EqualFunc(u.all, v.all, Uplink.Equal) && slices.Equal(u.blocks, v.blocks)
}

// Keeping returns u with the uplinks that before has for addresses in use, as far as u has
// none for them. A set that was deleted, or lacks an interface for a time, so takes no
// running pod off its interface. The description of an interface in u counts.
func (u Uplinks) Keeping(before Uplinks, used []netip.Addr) Uplinks {
	blocks := map[netip.Prefix]string{}
	interfaces := slices.Clone(u.all)
	for _, a := range used {
		if _, found := u.Of(a); found {
			continue
		}
		x, had := before.Of(a)
		if !had {
			continue
		}
		blocks[netip.PrefixFrom(a, a.BitLen())] = x.Interface
		if !slices.ContainsFunc(interfaces, func(y Uplink) bool { return y.Interface == x.Interface }) {
			interfaces = append(interfaces, x)
		}
	}
	if len(blocks) == 0 {
		return u
	}
	for _, b := range u.blocks {
		blocks[b.prefix] = u.all[b.uplink].Interface
	}
	return NewUplinks(interfaces, blocks)
}

// uplinkRecord is the form in JSON of an uplink with its blocks.
type uplinkRecord struct {
	Interface string         `json:"interface"`
	MAC       string         `json:"mac,omitempty"`
	Device    int            `json:"device,omitempty"`
	Ranges    []cloud.Range  `json:"ranges,omitempty"`
	VPCCIDRs  []netip.Prefix `json:"vpc,omitempty"`
	Blocks    []netip.Prefix `json:"blocks"`
}

// MarshalJSON returns a list of the uplinks with their blocks.
func (u Uplinks) MarshalJSON() ([]byte, error) {
	all := make([]uplinkRecord, len(u.all))
	for i, x := range u.all {
		all[i] = uplinkRecord{x.Interface, x.MAC, x.Device, x.Ranges, x.VPCCIDRs, nil}
	}
	for _, b := range u.blocks {
		all[b.uplink].Blocks = append(all[b.uplink].Blocks, b.prefix)
	}
	return json.Marshal(all)
}

// UnmarshalJSON reads what MarshalJSON has returned. After an error u is as it was.
func (u *Uplinks) UnmarshalJSON(text []byte) error {
	var all []uplinkRecord
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	var interfaces []Uplink
	blocks := map[netip.Prefix]string{}
	for _, x := range all {
		interfaces = append(interfaces, Uplink{x.Interface, x.MAC, x.Device, x.Ranges, x.VPCCIDRs})
		for _, p := range x.Blocks {
			if !p.IsValid() {
				return fmt.Errorf("blocks of interface %s: one is empty, want a CIDR", x.Interface)
			}
			blocks[p] = x.Interface
		}
	}
	*u = NewUplinks(interfaces, blocks)
	return nil
}

// UplinksOf returns the uplinks of a set. The use that the node has reported tells the
// interface of an address that is leased and has left the pool.
func UplinksOf(set *kv.NetResourceSet) Uplinks {
	var interfaces []Uplink
	for _, id := range slices.Sorted(maps.Keys(set.GetInterfaces())) {
		interfaces = append(interfaces, uplinkOf(id, set.Interfaces[id]))
	}
	blocks := map[netip.Prefix]string{}
	for key, x := range set.GetPool() {
		if p, err := handshake.ParseKey(key); err == nil && x.GetResource() != "" {
			blocks[p] = x.Resource
		}
	}
	inPool := NewUplinks(interfaces, blocks)
	n := len(blocks)
	for key, x := range set.GetUsed() {
		a, err := netip.ParseAddr(key)
		if err != nil || x.GetResource() == "" {
			continue
		}
		if _, found := inPool.Of(a); !found {
			blocks[netip.PrefixFrom(a, a.BitLen())] = x.Resource
		}
	}
	if len(blocks) == n {
		return inPool
	}
	return NewUplinks(interfaces, blocks)
}

// uplinkOf converts an interface. It leaves out a range that cannot be parsed.
func uplinkOf(id string, m *kv.NetResourceInterface) Uplink {
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
