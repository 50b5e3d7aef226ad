// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

// routeWay is the way of a route: to a gateway, through a tunnel, or nowhere.
type routeWay struct {
	routeLink
	gateway netip.Addr // zero with DIRECT: unreachable
}

// route returns the route of a way as the kernel shows it. Of a direct one the kernel chooses
// the interface.
func (w routeWay) route(place routePlace, links map[routeLink]uint32) (rtnl.Route, error) {
	r := rtnl.Route{
		Family:   familyOf(place.dst.Addr()),
		Protocol: ownProtocol,
		Type:     unix.RTN_UNICAST,
		Dst:      place.dst,
		Table:    place.id(),
		Hop:      rtnl.Hop{Gateway: w.gateway, Link: links[w.routeLink], Onlink: w.transport == kv.Transport_VXLAN},
	}
	if r.Family == unix.AF_INET6 {
		r.Metric = routeMetric6
	}
	switch {
	case w.name() != "" && r.Link == 0:
		return r, fmt.Errorf("route %s: there is no link %s", place.dst, w.name())
	case w.transport == kv.Transport_WIREGUARD && r.Family == unix.AF_INET:
		r.Scope = unix.RT_SCOPE_LINK
	case w.transport == kv.Transport_DIRECT && !w.gateway.IsValid():
		r.Type = unix.RTN_UNREACHABLE
		if r.Family == unix.AF_INET6 {
			r.Link = loopback // IPv6 needs it to identify the route when it removes it
		}
	}
	return r, nil
}

// routeLink identifies the link of a tunnel.
type routeLink struct {
	transport kv.Transport
	vni       uint32 // of the link of a network; 0: the node's link
}

// name returns the name of the link, "" if routes of the transport need none.
func (l routeLink) name() string {
	switch {
	case l.transport == kv.Transport_WIREGUARD:
		return wireguardName
	case l.transport != kv.Transport_VXLAN:
		return ""
	case l.vni != 0:
		return networkLinkName(l.vni)
	}
	return vxlanName
}

// routeWant holds the request of one value.
type routeWant struct {
	place routePlace
	way   routeWay
	value *kv.NodeRoute
}

// tunnel returns the key of the tunnel that a route leads through.
func (w routeWant) tunnel() []string {
	if w.way.transport == kv.Transport_DIRECT {
		return nil
	}
	return []string{kv.SinkTunnelKey(w.value.GetNodeId(), w.value.GetNetwork())}
}

// same compares what the kernel shows of a route, and its tunnel. The kernel does not show the
// name of a node.
func (w routeWant) same(other routeWant) bool {
	return w.way == other.way && slices.Equal(w.tunnel(), other.tunnel())
}

// unreachable returns the route that stands in for one through a tunnel. While the tunnel is not
// made, packets to its subnet do not leave by another route, such as the default route.
func (w routeWant) unreachable() proto.Message {
	if w.way.transport == kv.Transport_DIRECT {
		return nil
	}
	r := w.value
	return &kv.NodeRoute{Dst: r.GetDst(), NodeId: r.GetNodeId(), NodeName: r.GetNodeName(), Table: r.GetTable()}
}

// readPlace reads the destination and the table of a key.
func readPlace(key string) (p routePlace, err error) {
	text := strings.TrimPrefix(key, kv.SinkRoutePrefix)
	if table, dst, found := strings.Cut(text, "/"); found && !strings.ContainsAny(table, ".:") {
		id, err := strconv.ParseUint(table, 10, 32)
		switch {
		case err != nil:
			return p, fmt.Errorf("table %q of the key: want a number", table)
		case id == 0 || id == unix.RT_TABLE_LOCAL || id == unix.RT_TABLE_MAIN:
			return p, fmt.Errorf("table %d of the key: want that of a custom network", id)
		}
		p.table, text = uint32(id), dst
	}
	p.dst, err = routeDestination(text)
	return p, err
}

// readRoute reads a value.
func readRoute(key string, value proto.Message) (want routeWant, err error) {
	route, ok := value.(*kv.NodeRoute)
	if !ok {
		return want, fmt.Errorf("it is a %T, not a NodeRoute", value)
	}
	if want.place, err = readPlace(key); err != nil {
		return want, err
	}
	want.value, want.way.routeLink = route, routeLink{route.GetTransport(), route.GetVni()}
	switch {
	case route.GetDst() != want.place.dst.String():
		return want, fmt.Errorf("its destination %q is not that of its key", route.GetDst())
	case (route.GetVni() != 0) != (route.GetNetwork() != ""):
		return want, fmt.Errorf("network %q with VNI %d: want both or none", route.GetNetwork(), route.GetVni())
	case route.GetVni() != 0 && route.GetTransport() != kv.Transport_VXLAN:
		return want, fmt.Errorf(
			"transport %s through the link of network %q: want VXLAN",
			route.GetTransport(),
			route.GetNetwork(),
		)
	case route.GetTable() != want.place.table:
		return want, fmt.Errorf("its table %d is not that of its key", route.GetTable())
	}
	switch want.way.transport {
	case kv.Transport_DIRECT:
		if route.GetGateway() == "" {
			return want, nil
		}
	case kv.Transport_VXLAN:
		if route.GetGateway() == "" {
			return want, errors.New("gateway: want the VXLAN address of the other node")
		}
	case kv.Transport_WIREGUARD:
		return want, nil // the tunnel knows its end
	default:
		return want, fmt.Errorf("transport %s: want DIRECT, VXLAN or WIREGUARD", want.way.transport)
	}
	want.way.gateway, err = routeGateway(route.GetGateway(), want)
	return want, err
}

// routeDestination parses a prefix in canonical form, so that no two keys have the same
// destination.
func routeDestination(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("destination: %w", err)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("destination %s is an IPv4 one within IPv6", text)
	case p.Masked().String() != text:
		return netip.Prefix{}, fmt.Errorf("destination %s is not written %s", text, p.Masked())
	case p.Bits() == 0:
		return netip.Prefix{}, fmt.Errorf("destination %s is the default route, not a subnet", text)
	case p.Addr().IsMulticast():
		return netip.Prefix{}, fmt.Errorf("destination %s is multicast", text)
	}
	return p, nil
}

// routeGateway parses the gateway of a route.
func routeGateway(text string, want routeWant) (netip.Addr, error) {
	dst := want.place.dst
	a, err := netip.ParseAddr(text)
	direct := want.way.transport == kv.Transport_DIRECT
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("gateway: %w", err)
	case a.Is4() != dst.Addr().Is4() || a.Is4In6():
		return netip.Addr{}, fmt.Errorf("gateway %s is not of the family of destination %s", a, dst)
	case a.Zone() != "" || direct && a.Is6() && a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("gateway %s is good on one interface only", a)
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback():
		return netip.Addr{}, fmt.Errorf("gateway %s is not an address of another node", a)
	}
	return a, nil
}
