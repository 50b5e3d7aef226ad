// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

import (
	"log/slog"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/ipam/ipamapi"
)

// Host is what this machine's networks are: those of the cluster, and where its
// routes lead. Routes that cannot be read are logged, and do not count.
type Host struct {
	Log *slog.Logger
	Own func() []netip.Prefix
}

var _ ipamapi.HostView = Host{}

// Networks are the prefixes that no Docker pool may overlap. Default routes and
// link-local ones are not among them.
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
