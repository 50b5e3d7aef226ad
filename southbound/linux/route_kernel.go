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

	"github.com/cadastre/cadastre/api/kv"
)

// routeKernel holds the methods of *netlink.Handle that routes calls.
type routeKernel interface {
	RouteListFilteredIter(family int, filter *netlink.Route, mask uint64, f func(netlink.Route) (more bool)) error
	RouteAdd(*netlink.Route) error    // NLM_F_CREATE, NLM_F_EXCL
	RouteAppend(*netlink.Route) error // NLM_F_CREATE, NLM_F_APPEND
	RouteDel(*netlink.Route) error
	LinkByName(name string) (netlink.Link, error)
	Close()
}

const (
	// routeListTries limits the attempts of a list while routes change.
	routeListTries = 10
	// routeMetric is the metric that the kernel sets for IPv6 routes without one.
	routeMetric = 1024
	// lastMetric is that of the routes which close the table of a network. Wires makes them.
	lastMetric = 1<<32 - 1
	// loopback is the interface of IPv6 routes that reject packets, in every namespace.
	loopback = 1
)

// kernelRoute returns the own route of a value.
func kernelRoute(w routeWant, t *routeTable) (netlink.Route, error) {
	dst := w.place.dst
	to, err := netlink.ParseIPNet(dst.String())
	if err != nil {
		return netlink.Route{}, fmt.Errorf("destination %s: %w", dst, err)
	}
	r := netlink.Route{
		Dst:      to,
		Protocol: ownProtocol,
		Table:    w.place.id(),
		Type:     unix.RTN_UNICAST,
	}
	if dst.Addr().Is6() {
		r.Priority = routeMetric
	}
	if w.way.gateway.IsValid() {
		r.Gw = w.way.gateway.AsSlice()
	}
	switch {
	case w.way.transport != kv.Transport_DIRECT:
		if r.LinkIndex = t.links[w.way.routeLink]; r.LinkIndex == 0 {
			return netlink.Route{}, fmt.Errorf("route %s: there is no link %s", dst, w.way.name())
		}
		if w.way.transport == kv.Transport_VXLAN {
			r.Flags = unix.RTNH_F_ONLINK
		} else if dst.Addr().Is4() {
			r.Scope = unix.RT_SCOPE_LINK
		}
	case !w.way.gateway.IsValid():
		r.Type = unix.RTN_UNREACHABLE
		if dst.Addr().Is6() {
			r.LinkIndex = loopback // IPv6 needs it to identify the route when it removes it
		}
	}
	return r, nil
}

// nodeLinks returns the node's own links that routes lead through.
func nodeLinks() []routeLink {
	return []routeLink{{transport: kv.Transport_VXLAN}, {transport: kv.Transport_WIREGUARD}}
}

// through returns the tunnel's link that a route leads through.
func (t *routeTable) through(index int) (link routeLink, found bool) {
	for link, i := range t.links {
		if i == index {
			return link, true
		}
	}
	return routeLink{}, false
}

// way returns the way of an own route. plain is false if the route has a form that method
// route does not make.
func (t *routeTable) way(r netlink.Route) (w routeWay, plain bool) {
	rest := r
	rest.Dst, rest.Gw, rest.LinkIndex, rest.Family = nil, nil, 0, 0
	rest.Flags &= unix.RTNH_F_ONLINK // the other flags are state
	bare := netlink.Route{Protocol: r.Protocol, Table: r.Table, Type: r.Type}
	if r.Family == netlink.FAMILY_V6 {
		bare.Priority = routeMetric
	}
	w.gateway, _ = netip.AddrFromSlice(r.Gw)
	link, tunnel := t.through(r.LinkIndex)
	switch {
	case r.Type == unix.RTN_UNREACHABLE:
		plain = !w.gateway.IsValid()
	case r.Type != unix.RTN_UNICAST || r.LinkIndex == 0:
	case tunnel && link.transport == kv.Transport_VXLAN:
		w.routeLink, bare.Flags = link, unix.RTNH_F_ONLINK
		plain = w.gateway.IsValid()
	case tunnel:
		w.routeLink = link
		if r.Family == netlink.FAMILY_V4 {
			bare.Scope = unix.RT_SCOPE_LINK
		}
		plain = !w.gateway.IsValid()
	default:
		plain = w.gateway.IsValid()
	}
	return w, plain && reflect.DeepEqual(rest, bare)
}

// routeTable holds the kernel's routes.
type routeTable struct {
	requested map[routePlace]bool
	stale     map[routePlace]bool // changed since they were read
	links     map[routeLink]int
	ours      map[routePlace][]netlink.Route
	foreign   map[routePlace]netlink.Route   // the first to each requested destination
	hidden    map[routePlace][]netlink.Route // hops of them that may be own routes
	onLink    map[int][]netip.Prefix         // prefixes that each interface reaches directly, of any table
}

// listRoutes reads the routes of families, of foreign ones only those to requested
// destinations. networks are the links of networks that routes may lead through.
func listRoutes(
	ctx context.Context,
	k routeKernel,
	families []int,
	requested map[routePlace]bool,
	networks ...routeLink,
) (*routeTable, error) {
	links := map[routeLink]int{}
	for _, l := range append(nodeLinks(), networks...) {
		link, err := k.LinkByName(l.name())
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find link %s: %w", l.name(), err)
		}
		links[l] = link.Attrs().Index
	}
	for try := 1; ; try++ {
		t := &routeTable{
			requested: requested,
			stale:     map[routePlace]bool{},
			links:     links,
			ours:      map[routePlace][]netlink.Route{},
			foreign:   map[routePlace]netlink.Route{},
			hidden:    map[routePlace][]netlink.Route{},
			onLink:    map[int][]netip.Prefix{},
		}
		var err error
		for _, family := range families {
			if ctx.Err() != nil {
				return nil, fmt.Errorf("list routes: %w", context.Cause(ctx))
			}
			// table 0 of the filter means all tables
			each := func(r netlink.Route) bool {
				t.sort(r)
				return true
			}
			mask := netlink.RT_FILTER_TABLE
			err = errors.Join(err, k.RouteListFilteredIter(family, &netlink.Route{}, mask, each))
		}
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == routeListTries {
			return nil, fmt.Errorf("list routes: %w", err)
		}
	}
}

// own reports whether a route is one of this descriptor. Wires and tunnels make routes of
// the same protocol: default routes, routes through other links without a gateway, and
// those that close a table.
func (t *routeTable) own(r netlink.Route) bool {
	if bits, _ := r.Dst.Mask.Size(); bits == 0 || int(r.Protocol) != ownProtocol || r.Table == unix.RT_TABLE_LOCAL {
		return false
	}
	through := r.Type == unix.RTN_UNICAST && r.Gw == nil && r.Via == nil && len(r.MultiPath) == 0
	return r.Priority != lastMetric &&
		(!through || r.LinkIndex == t.links[routeLink{transport: kv.Transport_WIREGUARD}])
}

func (t *routeTable) sort(r netlink.Route) {
	dst, ok := routePrefix(r)
	if !ok {
		return
	}
	place := routePlace{uint32(r.Table), dst}
	if r.Table == unix.RT_TABLE_MAIN {
		place.table = 0
	}
	if t.own(r) {
		t.ours[place] = append(t.ours[place], r)
		return
	}
	if t.requested[place] {
		if _, known := t.foreign[place]; !known {
			t.foreign[place] = r
		}
		if all := hops(r); len(all) > 1 { // IPv6 shows the protocol of only one
			for i := range all {
				all[i].Protocol = ownProtocol
			}
			t.hidden[place] = append(t.hidden[place], all...)
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
func (t *routeTable) reaches(r netlink.Route, w routeWay) bool {
	return w.transport != kv.Transport_DIRECT || !w.gateway.IsValid() ||
		slices.ContainsFunc(t.onLink[r.LinkIndex], func(p netip.Prefix) bool { return p.Contains(w.gateway) })
}

func familyOfRoute(p netip.Prefix) int {
	if p.Addr().Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// routePrefix returns the destination of a route.
func routePrefix(r netlink.Route) (netip.Prefix, bool) {
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

// describeRoute returns a route as ip route shows it.
func describeRoute(r netlink.Route) string {
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
