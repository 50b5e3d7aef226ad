// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/ip"
)

// makeRoute makes or replaces a route.
func (x *change) makeRoute(r route) error {
	want, err := x.st.pathTo(r)
	if err != nil {
		return err
	}
	if have, found := x.st.routes[r.place]; found && have == want {
		return nil
	}
	if err := x.register(); err != nil {
		return err
	}
	err = x.do(fmt.Sprintf("route to %s in table %d", r.dst, r.table), &ip.IPRouteAddDelV2{
		IsAdd: true,
		Route: ip.IPRouteV2{
			TableID: r.table,
			Prefix:  vppPrefix(r.dst),
			Src:     x.st.source,
			Paths:   want.fib(r.dst.Addr().Is6()),
		},
	})
	if err == nil {
		x.st.routes[r.place] = want
	}
	return err
}

func (x *change) removeRoute(at place) error {
	if _, found := x.st.routes[at]; !found {
		return nil
	}
	err := x.do(fmt.Sprintf("remove the route to %s in table %d", at.dst, at.table), &ip.IPRouteAddDelV2{
		Route: ip.IPRouteV2{TableID: at.table, Prefix: vppPrefix(at.dst), Src: x.st.source},
	}, api.NO_SUCH_FIB)
	if err == nil {
		delete(x.st.routes, at)
	}
	return err
}

// takenOver reports whether a route of a value is that of another one by now: pods exchange
// addresses, and a pod whose removal has failed loses its address to the next one.
func (st *state) takenOver(r route) bool {
	have, found := st.routes[r.place]
	if !found || r.link == "" {
		return false
	}
	now, own := st.links[have.index], st.byTag[r.link]
	return now != nil && now != own && roleOf(now.tag) != ""
}
