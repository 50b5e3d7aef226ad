// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam

import (
	"errors"
	"log/slog"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
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
func (h Host) Addresses() []netip.Addr {
	var all []netip.Addr
	body := make([]byte, unix.SizeofIfAddrmsg)
	err := list("addresses", unix.RTM_GETADDR, body, func() { all = nil }, func(b []byte) {
		if a, err := rtnl.DecodeAddress(b); err == nil {
			all = append(all, a.Prefix.Addr())
		}
	})
	if err != nil {
		h.Log.Warn("the addresses of this machine cannot be read: gateways of networks may be missed", "error", err)
		return nil
	}
	return all
}

// Networks returns the prefixes that no Docker pool may overlap, without default
// routes and link-local prefixes.
func (h Host) Networks() []netip.Prefix {
	var routed []netip.Prefix
	body := make([]byte, unix.SizeofRtMsg)
	err := list("routes", unix.RTM_GETROUTE, body, func() { routed = nil }, func(b []byte) {
		r, err := rtnl.DecodeRoute(b)
		if err != nil || r.Table != unix.RT_TABLE_MAIN || r.Flags&unix.RTM_F_CLONED != 0 {
			return
		}
		if a := r.Dst.Addr(); r.Dst.Bits() > 0 && !a.IsLinkLocalUnicast() && !a.IsMulticast() {
			routed = append(routed, r.Dst.Masked())
		}
	})
	if err != nil {
		h.Log.Warn("the routes of this machine cannot be read: Docker's pools may overlap them", "error", err)
		return h.Own()
	}
	return append(h.Own(), routed...)
}

// list calls each for all objects of a kind in the network namespace of the process, and reset
// before it begins anew.
func list(what string, kind uint16, body []byte, reset func(), each func(body []byte)) error {
	s, err := rtnl.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	return errors.Join(s.Dump(what, kind, body, reset, each), s.Close())
}
