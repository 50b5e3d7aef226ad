// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

import (
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// Host lists the networks of this machine: those of the cluster and the destinations
// of its routes. If it cannot read the routes, it logs that and ignores them.
type Host struct {
	Log *slog.Logger
	Own func() []netip.Prefix
}

var (
	_ ipamapi.HostView    = Host{}
	_ ipamapi.AddressView = Host{}
)

// Addresses returns the addresses of this machine's links. If it cannot read them, it
// logs that and returns none.
func (h Host) Addresses() (all []netip.Addr) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		h.Log.Warn("the addresses of this machine cannot be read: gateways of networks may be missed", "error", err)
		return nil
	}
	for _, x := range addrs {
		if a, ok := netip.AddrFromSlice(x.IP); ok {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// Networks returns the prefixes that no Docker pool may overlap, without default
// routes and link-local prefixes.
func (h Host) Networks() []netip.Prefix {
	all := h.Own()
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		h.Log.Warn("the routes of this machine cannot be read: Docker's pools may overlap them", "error", err)
		return all
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), bits)
		if ok && bits > 0 && !p.Addr().IsLinkLocalUnicast() && !p.Addr().IsMulticast() {
			all = append(all, p.Masked())
		}
	}
	return all
}
