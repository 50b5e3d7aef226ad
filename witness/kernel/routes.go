// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/witness"
)

// routes returns the unicast routes of the main table, of both families. The kernel
// lists the routes of the socket's own namespace only.
func (c *conn) routes() ([]witness.Route, error) {
	main, _, err := c.listRoutes(rtnl.Message(make([]byte, unix.SizeofRtMsg)).U32(unix.RTA_TABLE, unix.RT_TABLE_MAIN))
	return main, err
}

// allRoutes also returns the unicast routes of the other tables.
func (c *conn) allRoutes() (main, others []witness.Route, err error) {
	return c.listRoutes(make([]byte, unix.SizeofRtMsg))
}

func (c *conn) listRoutes(body []byte) (main, others []witness.Route, err error) {
	reset := func() { main, others = main[:0], others[:0] }
	err = c.list("the routes", unix.RTM_GETROUTE, body, reset, func(b []byte) error {
		more, err := parseRoute(b)
		if len(more) > 0 && more[0].Table == 0 {
			main = append(main, more...)
		} else {
			others = append(others, more...)
		}
		return err
	})
	return main, others, err
}

// parseRoute decodes a route: one for each next hop, none if it is not a unicast route.
func parseRoute(b []byte) ([]witness.Route, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("a message about a route has %d bytes, less than %d", len(b), unix.SizeofRtMsg)
	}
	family, bits, kind, flags := b[0], int(b[1]), b[7], binary.NativeEndian.Uint32(b[8:])
	table := uint32(b[4])
	dst := netip.IPv4Unspecified()
	switch family {
	case unix.AF_INET:
	case unix.AF_INET6:
		dst = netip.IPv6Unspecified()
	default:
		return nil, nil
	}
	var one witness.Route
	var hops []byte
	rtnl.Attributes(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_TABLE:
			table = uint32(number(v))
		case unix.RTA_MULTIPATH:
			hops = v
		default:
			hop(&one, kind, v)
		}
	})
	if kind != unix.RTN_UNICAST || table == unix.RT_TABLE_LOCAL || flags&unix.RTM_F_CLONED != 0 {
		return nil, nil
	}
	if table != unix.RT_TABLE_MAIN {
		one.Table = table
	}
	if one.Dst = netip.PrefixFrom(dst, bits); !one.Dst.IsValid() {
		return nil, fmt.Errorf("a route has a destination that cannot be decoded: %x", b)
	}
	if hops == nil {
		return []witness.Route{one}, nil
	}
	return nextHops(one, hops), nil
}

// hop decodes the attributes of a next hop.
func hop(r *witness.Route, kind uint16, v []byte) {
	switch kind {
	case unix.RTA_GATEWAY:
		r.Gateway, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA: // a gateway of the other family, after two bytes with the family
		if len(v) > 2 {
			r.Gateway, _ = netip.AddrFromSlice(v[2:])
		}
	case unix.RTA_OIF:
		r.Link = int(number(v))
	}
}

// nextHops decodes the next hops of a route with several ones.
func nextHops(of witness.Route, b []byte) (routes []witness.Route) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		r := witness.Route{Dst: of.Dst, Table: of.Table, Link: int(int32(binary.NativeEndian.Uint32(b[4:])))}
		rtnl.Attributes(b[unix.SizeofRtNexthop:size], func(kind uint16, v []byte) { hop(&r, kind, v) })
		routes = append(routes, r)
		b = b[min((size+3)&^3, len(b)):] // aligned to 4 bytes
	}
	return routes
}

// neighbours returns the ARP and ND caches, without the entries that need no resolution.
func (c *conn) neighbours() ([]witness.Neighbour, error) {
	var all []witness.Neighbour
	body := make([]byte, unix.SizeofNdMsg)
	err := c.list("the neighbours", unix.RTM_GETNEIGH, body, func() { all = all[:0] }, func(b []byte) error {
		n, known, err := parseNeighbour(b)
		if known {
			all = append(all, n)
		}
		return err
	})
	return all, err
}

func parseNeighbour(b []byte) (n witness.Neighbour, known bool, err error) {
	if len(b) < unix.SizeofNdMsg {
		return n, false, fmt.Errorf("a message about a neighbour has %d bytes, less than %d", len(b), unix.SizeofNdMsg)
	}
	family, state := b[0], binary.NativeEndian.Uint16(b[8:])
	n.Link = int(int32(binary.NativeEndian.Uint32(b[4:])))
	n.State = stateName(state)
	rtnl.Attributes(b[unix.SizeofNdMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			n.MAC = net.HardwareAddr(v).String()
		}
	})
	ip := family == unix.AF_INET || family == unix.AF_INET6
	return n, ip && n.State != "" && n.Addr.IsValid(), nil
}

// stateName returns the state of a neighbour as "ip neigh" shows it, "" for NOARP and NONE.
func stateName(state uint16) string {
	switch state {
	case unix.NUD_INCOMPLETE:
		return "INCOMPLETE"
	case unix.NUD_REACHABLE:
		return "REACHABLE"
	case unix.NUD_STALE:
		return "STALE"
	case unix.NUD_DELAY:
		return "DELAY"
	case unix.NUD_PROBE:
		return "PROBE"
	case unix.NUD_FAILED:
		return "FAILED"
	case unix.NUD_PERMANENT:
		return "PERMANENT"
	}
	return ""
}
