// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"

	"go.fd.io/govpp/binapi/fib_types"
)

// pathTo returns the way of a wanted route with the interface's index.
func (st *state) pathTo(r route) (path, error) {
	switch {
	case r.drop:
		return path{index: none, drop: true}, nil
	case r.unreachable:
		return path{index: none, unreachable: true}, nil
	case r.link == "":
		return path{index: none, into: r.into}, nil
	}
	a := st.byTag[r.link]
	if a == nil {
		return path{}, fmt.Errorf("route to %s in table %d: interface %s is missing", r.dst, r.table, r.link)
	}
	return path{index: a.index, via: r.via}, nil
}

// fib returns the form of VPP.
func (p path) fib(six bool) []fib_types.FibPath {
	f := fib_types.FibPath{SwIfIndex: p.index, TableID: p.into, Weight: 1}
	if six {
		f.Proto = fib_types.FIB_API_PATH_NH_PROTO_IP6
	}
	switch {
	case p.drop:
		f.Type = fib_types.FIB_API_PATH_TYPE_DROP
	case p.unreachable:
		f.Type = fib_types.FIB_API_PATH_TYPE_ICMP_UNREACH
	case p.via.IsValid():
		f.Nh.Address = vppAddr(p.via).Un
	}
	return []fib_types.FibPath{f}
}
