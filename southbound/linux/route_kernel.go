// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernel holds the methods of *netlink.Handle that the sink calls.
type kernel interface {
	RouteListFilteredIter(family int, filter *netlink.Route, mask uint64, f func(netlink.Route) (more bool)) error
	RouteAdd(*netlink.Route) error    // NLM_F_CREATE, NLM_F_EXCL
	RouteAppend(*netlink.Route) error // NLM_F_CREATE, NLM_F_APPEND
	RouteDel(*netlink.Route) error
	Close()
}

const (
	// listTries limits the attempts of a list while routes change.
	listTries = 10
	// metric6 is the metric that the kernel sets for IPv6 routes without one.
	metric6 = 1024
	// loopback is the interface of IPv6 routes that reject packets, in every namespace.
	loopback = 1
)

// form holds the protocol and the table of own routes.
type form struct{ protocol, table int }

// route returns an own route; without gateway it is unreachable.
func (f form) route(dst netip.Prefix, gateway netip.Addr) (netlink.Route, error) {
	to, err := netlink.ParseIPNet(dst.String())
	if err != nil {
		return netlink.Route{}, fmt.Errorf("destination %s: %w", dst, err)
	}
	r := netlink.Route{Dst: to, Protocol: netlink.RouteProtocol(f.protocol), Table: f.table, Type: unix.RTN_UNICAST}
	if dst.Addr().Is6() {
		r.Priority = metric6
	}
	switch {
	case gateway.IsValid():
		r.Gw = gateway.AsSlice()
	default:
		r.Type = unix.RTN_UNREACHABLE
		if dst.Addr().Is6() {
			r.LinkIndex = loopback // IPv6 needs it to identify the route when it removes it
		}
	}
	return r, nil
}

// ours reports whether r is an own route.
func (f form) ours(r netlink.Route) bool { return int(r.Protocol) == f.protocol && r.Table == f.table }

// gateway returns the gateway of an own route, zero if the route is unreachable. plain is
// false if the route has a form that method route does not make.
func (f form) gateway(r netlink.Route) (gateway netip.Addr, plain bool) {
	rest := r
	rest.Dst, rest.Gw, rest.LinkIndex, rest.Family = nil, nil, 0, 0
	rest.Flags &= unix.RTNH_F_ONLINK // the other flags are state
	bare := netlink.Route{Protocol: netlink.RouteProtocol(f.protocol), Table: f.table, Type: r.Type}
	if r.Family == netlink.FAMILY_V6 {
		bare.Priority = metric6
	}
	if !reflect.DeepEqual(rest, bare) {
		return netip.Addr{}, false
	}
	gateway, _ = netip.AddrFromSlice(r.Gw)
	switch r.Type {
	case unix.RTN_UNICAST:
		return gateway, gateway.IsValid() && r.LinkIndex > 0
	case unix.RTN_UNREACHABLE:
		return netip.Addr{}, !gateway.IsValid()
	}
	return netip.Addr{}, false
}

// table holds the kernel's routes.
type table struct {
	ours    map[netip.Prefix][]netlink.Route
	foreign map[netip.Prefix]netlink.Route   // the first to each requested destination
	hidden  map[netip.Prefix][]netlink.Route // hops of them that may be own routes
	onLink  map[int][]netip.Prefix           // prefixes that each interface reaches directly, of any table
}

// list reads the routes of families, of foreign ones only those to requested
// destinations.
func (f form) list(ctx context.Context, k kernel, families []int, requested map[netip.Prefix]bool) (*table, error) {
	for try := 1; ; try++ {
		t := &table{
			ours: map[netip.Prefix][]netlink.Route{}, foreign: map[netip.Prefix]netlink.Route{},
			hidden: map[netip.Prefix][]netlink.Route{}, onLink: map[int][]netip.Prefix{},
		}
		var err error
		for _, family := range families {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("list routes: %w", context.Cause(ctx))
			}
			// table 0 of the filter means all tables
			each := func(r netlink.Route) bool {
				t.sort(f, r, requested)
				return true
			}
			mask := netlink.RT_FILTER_TABLE
			err = errors.Join(err, k.RouteListFilteredIter(family, &netlink.Route{}, mask, each))
		}
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == listTries {
			return nil, fmt.Errorf("list routes: %w", err)
		}
	}
}

func (t *table) sort(f form, r netlink.Route, requested map[netip.Prefix]bool) {
	dst, ok := prefix(r)
	if !ok {
		return
	}
	if f.ours(r) {
		t.ours[dst] = append(t.ours[dst], r)
		return
	}
	if r.Table == f.table && requested[dst] {
		if _, known := t.foreign[dst]; !known {
			t.foreign[dst] = r
		}
		if all := hops(r); len(all) > 1 { // IPv6 shows the protocol of only one
			for i := range all {
				all[i].Protocol = netlink.RouteProtocol(f.protocol)
			}
			t.hidden[dst] = append(t.hidden[dst], all...)
		}
	}
	if r.Type != unix.RTN_UNICAST || r.Via != nil {
		return
	}
	if r.Gw == nil && len(r.MultiPath) == 0 {
		t.onLink[r.LinkIndex] = append(t.onLink[r.LinkIndex], dst)
	}
	for _, hop := range r.MultiPath {
		if hop.Gw == nil && hop.Via == nil {
			t.onLink[hop.LinkIndex] = append(t.onLink[hop.LinkIndex], dst)
		}
	}
}

// reaches reports whether the gateway of r is still on-link on its interface. The kernel
// checks that only once: r outlives the connected route.
func (t *table) reaches(r netlink.Route, gateway netip.Addr) bool {
	return !gateway.IsValid() ||
		slices.ContainsFunc(t.onLink[r.LinkIndex], func(p netip.Prefix) bool { return p.Contains(gateway) })
}

// prefix returns the destination of a route.
func prefix(r netlink.Route) (netip.Prefix, bool) {
	if r.Dst == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	if r.Family == netlink.FAMILY_V4 {
		a = a.Unmap()
	}
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

// hops returns the routes to remove for r. IPv6 shows all routes of one metric as one, also
// if some are foreign, and removes them one by one.
func hops(r netlink.Route) []netlink.Route {
	r.Flags &= unix.RTNH_F_ONLINK
	if r.Family != netlink.FAMILY_V6 || len(r.MultiPath) == 0 {
		return []netlink.Route{r}
	}
	var all []netlink.Route
	for _, hop := range r.MultiPath {
		one := r
		one.MultiPath, one.LinkIndex, one.Gw, one.Flags = nil, hop.LinkIndex, hop.Gw, hop.Flags&unix.RTNH_F_ONLINK
		all = append(all, one)
	}
	return all
}

// describe returns a route as ip route shows it.
func describe(r netlink.Route) string {
	var s strings.Builder
	switch r.Type {
	case unix.RTN_UNREACHABLE:
		s.WriteString("unreachable ")
	case unix.RTN_BLACKHOLE:
		s.WriteString("blackhole ")
	case unix.RTN_PROHIBIT:
		s.WriteString("prohibit ")
	}
	s.WriteString(r.Dst.String())
	if r.Gw != nil {
		fmt.Fprintf(&s, " via %s", r.Gw)
	}
	if r.Via != nil {
		fmt.Fprintf(&s, " via %s", r.Via)
	}
	for _, hop := range r.MultiPath {
		fmt.Fprintf(&s, " nexthop %s interface %d", hop.Gw, hop.LinkIndex)
	}
	if r.LinkIndex != 0 {
		fmt.Fprintf(&s, " interface %d", r.LinkIndex)
	}
	fmt.Fprintf(&s, " proto %s", r.Protocol)
	if r.Priority != 0 {
		fmt.Fprintf(&s, " metric %d", r.Priority)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		fmt.Fprintf(&s, " table %d", r.Table)
	}
	return s.String()
}
