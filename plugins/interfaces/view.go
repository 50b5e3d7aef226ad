// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// view is the machine as the last reading has it, with the changes of this agent since,
// which a reading may not show yet.
type view struct {
	machine *cloud.Instance // nil: not read yet
	began   time.Duration   // uptime of the begin of the reading
	subnets map[string]*cloud.Subnet
	changes []ownChange
	// lacking holds the uptime of the first reading of those in a row that have lacked a
	// block, or with the zero prefix an interface.
	lacking map[place]time.Duration
}

// ownChange is a change that the cloud has confirmed.
type ownChange struct {
	at     time.Duration // uptime
	iface  *cloud.Interface
	blocks []cloud.Block // of an interface that was there; nil: the whole interface
	gone   bool          // removed, otherwise added
}

// place is a block of an interface, or with the zero prefix the interface.
type place struct {
	iface string
	block netip.Prefix
}

func newView() view { return view{lacking: map[place]time.Duration{}} }

func (v *view) valid() bool { return v.machine != nil }

// read replaces the machine by a reading that began at an uptime. It applies the changes
// that may be too young for it.
func (v *view) read(began time.Duration, s *cloud.Snapshot, machine *cloud.Instance) {
	v.machine, v.subnets, v.began = copyOf(machine), s.Subnets, began
	v.changes = slices.DeleteFunc(v.changes, func(c ownChange) bool { return began-c.at >= lateness })
	for _, c := range v.changes {
		v.apply(c)
	}
}

// copyOf copies what the view changes.
func copyOf(m *cloud.Instance) *cloud.Instance {
	copied := *m
	copied.Interfaces = nil
	for _, i := range m.Interfaces {
		one := *i
		one.Blocks = slices.Clone(i.Blocks)
		copied.Interfaces = append(copied.Interfaces, &one)
	}
	slices.SortFunc(copied.Interfaces, func(a, b *cloud.Interface) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.ID, b.ID))
	})
	return &copied
}

// change notes a change that the cloud has confirmed.
func (v *view) change(c ownChange) {
	v.changes = append(v.changes, c)
	v.apply(c)
}

func (v *view) apply(c ownChange) {
	at := slices.IndexFunc(v.machine.Interfaces, func(i *cloud.Interface) bool { return i.ID == c.iface.ID })
	switch {
	case c.blocks == nil && c.gone && at >= 0:
		v.machine.Interfaces = slices.Delete(v.machine.Interfaces, at, at+1)
	case c.blocks == nil && !c.gone && at < 0:
		one := *c.iface
		one.Blocks = slices.Clone(c.iface.Blocks)
		v.machine.Interfaces = append(v.machine.Interfaces, &one)
	case c.blocks == nil || at < 0:
	default:
		i := v.machine.Interfaces[at]
		for _, b := range c.blocks {
			same := func(x cloud.Block) bool { return x.Prefix == b.Prefix }
			i.Blocks = slices.DeleteFunc(i.Blocks, same)
			if !c.gone {
				i.Blocks = append(i.Blocks, b)
			}
		}
	}
}

// missing returns the blocks and interfaces of a machine that the view lacks and that
// are not confirmed to be gone: only one reading has lacked them so far.
func (v *view) missing(m machine, began time.Duration) map[string][]netip.Prefix {
	before := v.lacking
	v.lacking = map[place]time.Duration{}
	doubtful := map[string][]netip.Prefix{}
	lacks := func(p place) (confirmed bool) {
		first, again := before[p]
		if !again {
			first = began
		}
		v.lacking[p] = first
		return again && began-first >= confirm
	}
	for id, a := range m {
		blocks := slices.DeleteFunc(slices.Clone(a.Blocks), a.isGone)
		i := v.find(id)
		if i == nil {
			if !lacks(place{iface: id}) {
				doubtful[id] = blocks
			}
			continue
		}
		for _, p := range blocks {
			if !hasBlock(i, p) && !lacks(place{id, p}) {
				doubtful[id] = append(doubtful[id], p)
			}
		}
	}
	return doubtful
}

func (v *view) find(id string) *cloud.Interface {
	at := slices.IndexFunc(v.machine.Interfaces, func(i *cloud.Interface) bool { return i.ID == id })
	if at < 0 {
		return nil
	}
	return v.machine.Interfaces[at]
}

// uplink returns the ranges of an interface's subnets.
func (v *view) uplink(i *cloud.Interface) nodeset.Uplink {
	u := nodeset.Uplink{Interface: i.ID, MAC: i.MAC, Device: i.Device}
	ids := []string{i.Subnet}
	for _, b := range i.Blocks {
		if b.Subnet != "" && !slices.Contains(ids, b.Subnet) {
			ids = append(ids, b.Subnet)
		}
	}
	for _, id := range ids {
		s := v.subnets[id]
		if s == nil {
			continue
		}
		for _, r := range s.Ranges { // an IPv6 range may be that of several subnets
			same := func(x cloud.Range) bool { return x.CIDR == r.CIDR }
			if !slices.ContainsFunc(u.Ranges, same) {
				u.Ranges = append(u.Ranges, r)
			}
		}
		for _, p := range s.VPC {
			if !slices.Contains(u.VPCCIDRs, p) {
				u.VPCCIDRs = append(u.VPCCIDRs, p)
			}
		}
	}
	return u
}

// room returns the number of addresses or prefixes of a family that an interface can have
// beside those that it has. A subnet that lacks the family gives none.
func (v *view) room(i *cloud.Interface, f ledger.Family) int {
	if s := v.subnets[i.Subnet]; s != nil && !hasFamily(s, f) {
		return 0
	}
	has := 0
	for _, b := range i.Blocks {
		if !b.Primary && ledger.FamilyOf(b.Prefix.Addr()) == f {
			has++
		}
	}
	return max(0, v.machine.Limits.Addresses[f]-has)
}

// counts returns the number of blocks for pods, by family.
func (v *view) counts() (n [2]int) {
	if !v.valid() {
		return n
	}
	for _, i := range v.machine.Interfaces {
		for _, b := range i.Blocks {
			if !b.Primary {
				n[ledger.FamilyOf(b.Prefix.Addr())]++
			}
		}
	}
	return n
}

// hasFamily reports whether a subnet has a range of a family.
func hasFamily(s *cloud.Subnet, f ledger.Family) bool {
	return slices.ContainsFunc(s.Ranges, func(r cloud.Range) bool { return ledger.FamilyOf(r.CIDR.Addr()) == f })
}

// subnetFor returns the subnet with most free addresses for a new interface; "": there is
// none. full are subnets that have no room.
func (v *view) subnetFor(f ledger.Family, full map[string]bool) string {
	var best *cloud.Subnet
	for _, s := range v.subnets {
		if !s.Usable || full[s.ID] || !hasFamily(s, f) || s.Zone != v.machine.Zone || s.Free == 0 {
			continue
		}
		if best == nil || s.Free > best.Free || s.Free == best.Free && s.ID < best.ID {
			best = s
		}
	}
	if best == nil {
		return ""
	}
	return best.ID
}

// device returns the lowest free device number.
func (v *view) device() int {
	n := 0
	for slices.ContainsFunc(v.machine.Interfaces, func(i *cloud.Interface) bool { return i.Device == n }) {
		n++
	}
	return n
}
