// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

const (
	// lastMetric is that of the routes which close the table of a network. Wires makes them.
	lastMetric = 1<<32 - 1
	// loopback is the interface of IPv6 routes that reject packets, in every namespace.
	loopback = 1
)

// routeTable holds the kernel's routes.
type routeTable struct {
	requested map[routePlace]bool // false: changed since it was read
	links     map[routeLink]uint32
	ours      map[routePlace][]rtnl.Route
	foreign   map[routePlace][]rtnl.Route // to requested destinations
	onLink    map[uint32][]netip.Prefix   // prefixes that each interface reaches directly, of any table
}

// listRoutes returns the routes of a family, but those of the node's own addresses.
func listRoutes(host *rtnl.Socket, family byte) (found []rtnl.Route, err error) {
	var failed error
	body := make(rtnl.Message, unix.SizeofRtMsg)
	body[0] = family
	err = host.Dump("routes", unix.RTM_GETROUTE, body, func() { found, failed = found[:0], nil }, func(b []byte) {
		r, err := rtnl.DecodeRoute(b)
		if err != nil {
			failed = err
		} else if r.Table != unix.RT_TABLE_LOCAL {
			found = append(found, r)
		}
	})
	if err == nil {
		err = failed
	}
	return found, err
}

func placeOf(r rtnl.Route) routePlace {
	if r.Table == unix.RT_TABLE_MAIN {
		return routePlace{0, r.Dst}
	}
	return routePlace{r.Table, r.Dst}
}

func (t *routeTable) sort(r rtnl.Route) {
	place := placeOf(r)
	if t.own(r) {
		t.ours[place] = append(t.ours[place], r)
		return
	}
	if t.requested[place] {
		t.foreign[place] = append(t.foreign[place], r)
	}
	if r.Type != unix.RTN_UNICAST {
		return
	}
	for _, hop := range append(r.Hops, r.Hop) {
		if !hop.Gateway.IsValid() && hop.Link != 0 {
			t.onLink[hop.Link] = append(t.onLink[hop.Link], r.Dst)
		}
	}
}

// own reports whether a route is one of this descriptor. Wires and tunnels make routes of
// the same protocol: default routes, routes through other links without a gateway, and
// those that close a table.
func (t *routeTable) own(r rtnl.Route) bool {
	if r.Dst.Bits() == 0 || r.Protocol != ownProtocol || r.Metric == lastMetric {
		return false
	}
	through := r.Type == unix.RTN_UNICAST && !r.Gateway.IsValid() && len(r.Hops) == 0
	return !through || r.Link == t.links[routeLink{transport: kv.Transport_WIREGUARD}]
}

// hidden returns the hops of foreign routes that may be own routes: IPv6 shows the protocol of
// only one.
func (t *routeTable) hidden(place routePlace) (all []rtnl.Route) {
	for _, r := range t.foreign[place] {
		if several := hops(r); len(several) > 1 {
			all = append(all, several...)
		}
	}
	return all
}

// hops returns the routes to remove for r. IPv6 shows all routes of one metric as one, also
// if some are foreign, and removes them one by one.
func hops(r rtnl.Route) []rtnl.Route {
	if r.Family != unix.AF_INET6 || len(r.Hops) == 0 {
		return []rtnl.Route{r}
	}
	var all []rtnl.Route
	for _, hop := range r.Hops {
		one := r
		one.Hops, one.Hop = nil, hop
		all = append(all, one)
	}
	return all
}

// way returns the way of an own route. plain is false if the route has a form that routeWay.route
// does not make.
func (t *routeTable) way(r rtnl.Route) (w routeWay, plain bool) {
	w.gateway = r.Gateway
	if r.Type == unix.RTN_UNICAST {
		for link, index := range t.links {
			if index == r.Link {
				w.routeLink = link
			}
		}
	}
	bare, err := w.route(placeOf(r), t.links)
	return w, err == nil && len(r.Hops) == 0 && !r.More && !r.Source.IsValid() && r.TOS == 0 &&
		r.Type == bare.Type && r.Scope == bare.Scope && r.Metric == bare.Metric && r.Onlink == bare.Onlink
}

// reaches reports whether the gateway of r is still on-link on its interface. The kernel
// checks that only once: r outlives the connected route.
func (t *routeTable) reaches(r rtnl.Route, w routeWay) bool {
	return w.transport != kv.Transport_DIRECT || !w.gateway.IsValid() ||
		slices.ContainsFunc(t.onLink[r.Link], func(p netip.Prefix) bool { return p.Contains(w.gateway) })
}

// routeLinks returns the indexes of the present ones of links.
func routeLinks(host *rtnl.Socket, links map[routeLink]bool) (map[routeLink]uint32, error) {
	found := map[routeLink]uint32{}
	var all []*rtnl.Request
	for l := range links {
		all = append(all, &rtnl.Request{
			What:  "find link " + l.name(),
			Kind:  unix.RTM_GETLINK,
			Body:  make(rtnl.Message, unix.SizeofIfInfomsg).Text(unix.IFLA_IFNAME, l.name()),
			Allow: []unix.Errno{unix.ENODEV},
			Each: func(_ uint16, body []byte) {
				if link, err := rtnl.DecodeLink(body); err == nil {
					found[l] = link.Index
				}
			},
		})
	}
	return found, host.Run(all)
}

// addRoute returns the request that adds a route.
func addRoute(r rtnl.Route, flags uint16) *rtnl.Request {
	return &rtnl.Request{
		What:  "add " + routeText(r),
		Kind:  unix.RTM_NEWROUTE,
		Flags: unix.NLM_F_CREATE | flags,
		Body:  routeBody(r),
	}
}

// removeRoute returns the request that removes a route of ours, never a foreign one like it.
func removeRoute(r rtnl.Route) *rtnl.Request {
	r.Protocol = ownProtocol
	return &rtnl.Request{What: "remove " + routeText(r), Kind: unix.RTM_DELROUTE, Body: routeBody(r)}
}

func routeBody(r rtnl.Route) rtnl.Message {
	m := make(rtnl.Message, unix.SizeofRtMsg)
	m[0], m[1], m[3], m[5], m[6], m[7] = r.Family, byte(r.Dst.Bits()), r.TOS, r.Protocol, r.Scope, r.Type
	if r.Onlink {
		binary.NativeEndian.PutUint32(m[8:], unix.RTNH_F_ONLINK)
	}
	m = m.Attr(unix.RTA_DST, r.Dst.Addr().AsSlice()).U32(unix.RTA_TABLE, r.Table)
	if r.Metric != 0 {
		m = m.U32(unix.RTA_PRIORITY, r.Metric)
	}
	if r.Link != 0 {
		m = m.U32(unix.RTA_OIF, r.Link)
	}
	m = gatewayOf(m, r, r.Hop)
	var hops rtnl.Message
	for _, hop := range r.Hops {
		one := gatewayOf(make(rtnl.Message, unix.SizeofRtNexthop), r, hop)
		binary.NativeEndian.PutUint16(one, uint16(len(one)))
		binary.NativeEndian.PutUint32(one[4:], hop.Link)
		hops = append(hops, one...)
	}
	if len(hops) > 0 {
		m = m.Attr(unix.RTA_MULTIPATH, hops)
	}
	return m
}

// gatewayOf appends the gateway of a hop. One of the other family has an attribute of its own.
func gatewayOf(m rtnl.Message, r rtnl.Route, hop rtnl.Hop) rtnl.Message {
	switch family := familyOf(hop.Gateway); {
	case !hop.Gateway.IsValid():
		return m
	case family != r.Family:
		via := binary.NativeEndian.AppendUint16(nil, uint16(family))
		return m.Attr(unix.RTA_VIA, append(via, hop.Gateway.AsSlice()...))
	}
	return m.Attr(unix.RTA_GATEWAY, hop.Gateway.AsSlice())
}

// routeText returns a route as ip route shows it.
func routeText(r rtnl.Route) string {
	text := r.Dst.String()
	switch r.Type {
	case unix.RTN_UNREACHABLE:
		text = "unreachable " + text
	case unix.RTN_BLACKHOLE:
		text = "blackhole " + text
	case unix.RTN_PROHIBIT:
		text = "prohibit " + text
	}
	if r.Gateway.IsValid() {
		text += " via " + r.Gateway.String()
	}
	for _, hop := range r.Hops {
		text += fmt.Sprintf(" nexthop %s interface %d", hop.Gateway, hop.Link)
	}
	if r.Link != 0 {
		text += " interface " + strconv.Itoa(int(r.Link))
	}
	text += " proto " + protocolText(r.Protocol)
	if r.Metric != 0 {
		text += " metric " + strconv.Itoa(int(r.Metric))
	}
	if r.Table != unix.RT_TABLE_MAIN {
		text += " table " + strconv.Itoa(int(r.Table))
	}
	return text
}

// protocolText returns the name of the program that has added a route, or its number.
func protocolText(protocol byte) string {
	switch protocol {
	case unix.RTPROT_KERNEL:
		return "kernel"
	case unix.RTPROT_BOOT:
		return "boot"
	case unix.RTPROT_STATIC:
		return "static"
	case unix.RTPROT_RA:
		return "ra"
	case unix.RTPROT_DHCP:
		return "dhcp"
	case unix.RTPROT_BIRD:
		return "bird"
	case unix.RTPROT_ZEBRA:
		return "zebra"
	}
	return strconv.Itoa(int(protocol))
}
