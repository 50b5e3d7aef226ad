// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// uplinkNet is a network interface of this node whose addresses pods have.
type uplinkNet struct {
	value *kv.Uplink
	cloud []netip.Prefix // its ranges, and those of the whole cloud network
}

// uplinksOf returns the uplinks by the ID of their interface.
func uplinksOf(all []ipam.Uplink) map[string]uplinkNet {
	var ids []string
	for _, u := range all {
		ids = append(ids, u.Interface)
	}
	numbers := numbersOf("uplink/", ids)
	uplinks := make(map[string]uplinkNet, len(all))
	for _, u := range all {
		m := &kv.Uplink{Interface: u.Interface, Mac: u.MAC, Table: kv.UplinkTables + numbers[u.Interface]}
		n := uplinkNet{value: m, cloud: slices.Clone(u.VPCCIDRs)}
		for _, r := range u.Ranges {
			m.Ranges = append(m.Ranges, &kv.SubnetRange{Cidr: r.CIDR.String(), Gateway: textOf(r.Gateway)})
			n.cloud = append(n.cloud, r.CIDR)
		}
		for _, p := range u.VPCCIDRs {
			m.VpcCidrs = append(m.VpcCidrs, p.String())
		}
		uplinks[u.Interface] = n
	}
	return uplinks
}

// cloudRoutes reports whether the cloud itself routes to a block, because it is one of an
// interface of another machine. Packets to such a block need no route and no tunnel of this node.
func (s *plan) cloudRoutes(block netip.Prefix) bool {
	for _, u := range s.uplinks {
		if slices.ContainsFunc(u.cloud, func(p netip.Prefix) bool { return covers(p, block) }) {
			return true
		}
	}
	return false
}

// meetsCloud reports whether the addresses of p may be those of interfaces.
func (s *plan) meetsCloud(p netip.Prefix) bool {
	for _, u := range s.uplinks {
		if slices.ContainsFunc(u.cloud, p.Overlaps) {
			return true
		}
	}
	return false
}

// uplinkAddress returns the value of a pod's address, nil if it is on no uplink.
func (p *IPNet) uplinkAddress(a netip.Addr) *kv.UplinkAddress {
	if len(p.plan.uplinks) == 0 {
		return nil
	}
	iface, _ := p.IPAM.UplinkOf(a)
	u, ok := p.plan.uplinks[iface]
	if !ok {
		return nil
	}
	return &kv.UplinkAddress{Address: a.String(), Interface: iface, Table: u.value.Table}
}

func uplinkAddressKey(address string) string { return kv.SinkSourcePrefix + address }

// putUplinkAddresses puts the values of the addresses of all attachments.
func (p *IPNet) putUplinkAddresses(txn controller.ResyncOperations) {
	if len(p.plan.uplinks) == 0 {
		return
	}
	for _, a := range p.rendered.order {
		for _, l := range a.leases {
			if m := p.uplinkAddress(l.prefix.Addr()); m != nil {
				txn.Put(uplinkAddressKey(m.Address), m)
			}
		}
	}
}

// refreshUplinkAddresses follows a change of the uplinks, or of the addresses on them.
func (p *IPNet) refreshUplinkAddresses(txn controller.UpdateOperations) {
	for l := range p.Ledger.All() {
		if attached(l) {
			p.setUplinkAddress(l.Prefix().Addr(), txn)
		}
	}
}

// setUplinkAddress makes the value of an address the present one, or deletes it.
func (p *IPNet) setUplinkAddress(a netip.Addr, txn controller.UpdateOperations) {
	key, want := uplinkAddressKey(a.String()), p.uplinkAddress(a)
	have := txn.Get(key)
	switch {
	case want == nil && have != nil:
		txn.Delete(key)
	case want != nil && (have == nil || !proto.Equal(have, want)):
		txn.Put(key, want)
	}
}

// followAddresses sets the values of the addresses of an attachment, whose value is replaced,
// and deletes those of addresses that the new one does not have; nil is none.
func (p *IPNet) followAddresses(before, now *kv.PodNetwork, txn controller.UpdateOperations) {
	kept := map[netip.Addr]bool{}
	for _, text := range now.GetAddresses() {
		if a, err := netip.ParsePrefix(text); err == nil {
			kept[a.Addr()] = true
			p.setUplinkAddress(a.Addr(), txn)
		}
	}
	for _, text := range before.GetAddresses() {
		a, err := netip.ParsePrefix(text)
		if err != nil || kept[a.Addr()] {
			continue
		}
		if key := uplinkAddressKey(a.Addr().String()); txn.Get(key) != nil {
			txn.Delete(key)
		}
	}
}
