// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net"

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
	if len(b) > 0 && b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return nil, nil
	}
	r, err := rtnl.DecodeRoute(b)
	if err != nil || r.Type != unix.RTN_UNICAST || r.Table == unix.RT_TABLE_LOCAL || r.Flags&unix.RTM_F_CLONED != 0 {
		return nil, err
	}
	if r.Table == unix.RT_TABLE_MAIN {
		r.Table = 0
	}
	hops := r.Hops
	if hops == nil {
		hops = []rtnl.Hop{r.Hop}
	}
	var routes []witness.Route
	for _, h := range hops {
		routes = append(routes, witness.Route{Dst: r.Dst, Table: r.Table, Link: int(int32(h.Link)), Gateway: h.Gateway})
	}
	return routes, nil
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

// parseNeighbour decodes a neighbour, and reports whether a view shows it.
func parseNeighbour(b []byte) (witness.Neighbour, bool, error) {
	n, err := rtnl.DecodeNeighbour(b)
	shown := witness.Neighbour{
		Link:  int(int32(n.Link)),
		Addr:  n.Addr,
		MAC:   net.HardwareAddr(n.MAC).String(),
		State: stateName(n.State),
	}
	ip := n.Family == unix.AF_INET || n.Family == unix.AF_INET6
	return shown, err == nil && ip && shown.State != "" && n.Addr.IsValid(), err
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
