// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/cloud"
)

// inventory holds the machines and subnets of the last reading, with the provider's own
// changes since, and with what that reading alone lacks. Its user locks it.
type inventory struct {
	consistency time.Duration
	machines    map[string]*cloud.Instance
	subnets     map[string]*cloud.Subnet
	own         map[item]change
	missing     map[item]time.Time    // since which reading
	twice       map[netip.Prefix]bool // of which two interfaces of the last reading have a part
}

// item is a machine, an interface of it, or a block of that.
type item struct {
	instance, iface string
	block           netip.Prefix
}

// change is the effect of one call on an item.
type change struct {
	at      time.Time
	removed bool
	iface   cloud.Interface // of an interface that was created, without blocks
	block   cloud.Block
}

func newInventory(consistency time.Duration) inventory {
	return inventory{
		consistency: consistency,
		own:         map[item]change{},
		missing:     map[item]time.Time{},
	}
}

// find returns an interface of a machine; nil: there is none.
func (v *inventory) find(instance, iface string) *cloud.Interface {
	m := v.machines[instance]
	if m == nil {
		return nil
	}
	for _, i := range m.Interfaces {
		if i.ID == iface {
			return i
		}
	}
	return nil
}

// read replaces the machines and subnets by a reading that has begun at a time.
func (v *inventory) read(begun time.Time, s *cloud.Snapshot) {
	before := v.machines
	v.machines, v.subnets = s.Instances, s.Subnets
	if v.machines == nil {
		v.machines = map[string]*cloud.Instance{}
	}
	maps.DeleteFunc(v.own, func(_ item, c change) bool { return begun.Sub(c.at) > v.consistency })
	v.overlay()
	v.carry(begun, before)
	v.twice = twice(v.machines)
}

// overlay applies the provider's own changes to a reading: interfaces before their blocks.
func (v *inventory) overlay() {
	for _, ofBlocks := range []bool{false, true} {
		for on, c := range v.own {
			if on.block.IsValid() == ofBlocks {
				v.apply(on, c)
			}
		}
	}
}

// note records a change and applies it.
func (v *inventory) note(on item, c change) {
	v.own[on] = c
	v.apply(on, c)
}

func (v *inventory) apply(on item, c change) {
	m := v.machines[on.instance]
	if m == nil {
		return
	}
	i := v.find(on.instance, on.iface)
	switch {
	case !on.block.IsValid() && c.removed:
		m.Interfaces = slices.DeleteFunc(m.Interfaces, func(x *cloud.Interface) bool { return x == i })
	case !on.block.IsValid() && i == nil:
		made := c.iface
		m.Interfaces = append(m.Interfaces, &made)
		slices.SortFunc(m.Interfaces, byDevice)
	case on.block.IsValid() && i != nil:
		v.applyBlock(i, on.block, c)
	}
}

func (v *inventory) applyBlock(i *cloud.Interface, block netip.Prefix, c change) {
	at := slices.IndexFunc(i.Blocks, func(b cloud.Block) bool { return b.Prefix == block })
	switch {
	case c.removed && at >= 0:
		v.spend(i.Blocks[at].Subnet, block, 1)
		i.Blocks = slices.Delete(i.Blocks, at, at+1)
	case !c.removed && at < 0:
		v.spend(c.block.Subnet, block, -1)
		i.Blocks = append(i.Blocks, c.block)
	}
}

// spend changes the number of free addresses of a subnet by those of a block. If the subnet
// has two families it counts the IPv4 addresses.
func (v *inventory) spend(subnet string, block netip.Prefix, sign int) {
	s := v.subnets[subnet]
	if s == nil || s.Free < 0 || block.Addr().Is6() && len(s.Ranges) > 1 {
		return
	}
	s.Free = max(0, s.Free+sign*sizeOf(block))
}

// carry keeps what a reading lacks and the one before had, until readings have lacked it for
// longer than the time of consistency.
func (v *inventory) carry(begun time.Time, before map[string]*cloud.Instance) {
	still := map[item]time.Time{}
	keep := func(what item) bool {
		since := cmp.Or(v.missing[what], begun)
		if v.consistency == 0 || begun.Sub(since) > v.consistency {
			return false
		}
		still[what] = since
		return true
	}
	for id, old := range before {
		m := v.machines[id]
		if m == nil {
			if keep(item{instance: id}) {
				v.machines[id] = old
			}
			continue
		}
		for _, i := range old.Interfaces {
			now := v.find(id, i.ID)
			if now == nil {
				on := item{instance: id, iface: i.ID}
				if !v.own[on].removed && keep(on) {
					m.Interfaces = append(m.Interfaces, i)
					slices.SortFunc(m.Interfaces, byDevice)
				}
				continue
			}
			for _, b := range i.Blocks {
				on := item{id, i.ID, b.Prefix}
				there := slices.ContainsFunc(now.Blocks, func(x cloud.Block) bool { return x.Prefix == b.Prefix })
				if !there && !v.own[on].removed && keep(on) {
					now.Blocks = append(now.Blocks, b)
				}
			}
		}
	}
	v.missing = still
}

// twice returns the blocks of which two interfaces have a part.
func twice(machines map[string]*cloud.Instance) map[netip.Prefix]bool {
	var all []netip.Prefix
	for _, m := range machines {
		for _, i := range m.Interfaces {
			of := map[netip.Prefix]bool{} // an interface that names a block twice has it once
			for _, b := range i.Blocks {
				if !of[b.Prefix] {
					all = append(all, b.Prefix)
				}
				of[b.Prefix] = true
			}
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	found := map[netip.Prefix]bool{}
	var around []netip.Prefix // those that contain the next one, the largest first
	for _, p := range all {
		for len(around) > 0 && !around[len(around)-1].Overlaps(p) {
			around = around[:len(around)-1]
		}
		for _, q := range around {
			found[p], found[q] = true, true
		}
		around = append(around, p)
	}
	return found
}

func byDevice(a, b *cloud.Interface) int {
	return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.ID, b.ID))
}

// sizeOf returns the number of addresses of a block, 2^20 at most.
func sizeOf(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), 20) }
