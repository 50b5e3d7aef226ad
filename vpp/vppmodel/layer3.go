// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vppmodel

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/fib"
	"go.fd.io/govpp/binapi/fib_types"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_neighbor"
	"go.fd.io/govpp/binapi/ip_types"
)

// Numbers of VPP: firstSource is the first source of routes that is registered.
const (
	firstSource = 26
	noPaths     = -52 // of a route; govpp has another name
)

// executeL3 executes requests about addresses, tables, neighbours and routes.
func (w *world) executeL3(m api.Message) []api.Message {
	switch m := m.(type) {
	case *fib.FibSourceDump:
		all := one(&fib.FibSourceDetails{Src: fib.FibSource{ID: apiSource, Name: "API"}})
		for n, name := range w.sources {
			all = append(all, &fib.FibSourceDetails{Src: fib.FibSource{ID: uint8(firstSource + n), Name: name}})
		}
		return all
	case *fib.FibSourceAdd:
		w.sources = append(w.sources, m.Src.Name)
		return one(&fib.FibSourceAddReply{ID: uint8(firstSource + len(w.sources) - 1)})
	case *ip.IPTableDump:
		var all []api.Message
		for id, name := range w.tables {
			all = append(all, &ip.IPTableDetails{Table: ip.IPTable{TableID: id.id, IsIP6: id.six, Name: name}})
		}
		return some(all)
	case *ip.IPTableAddDelV2:
		w.changeTable(m)
		return one(&ip.IPTableAddDelV2Reply{})
	case *ip.IPRouteV2Dump:
		return some(w.dumpRoutes(m))
	case *ip.IPRouteAddDelV2:
		return one(&ip.IPRouteAddDelV2Reply{Retval: retval(w.changeRoute(m))})
	case *ip_neighbor.IPNeighborDump:
		return some(w.dumpNeighbours(m))
	case *ip_neighbor.IPNeighborAddDel:
		return one(&ip_neighbor.IPNeighborAddDelReply{Retval: retval(w.changeNeighbour(m))})
	}
	return w.executeAddress(m)
}

// executeAddress executes requests about the addresses and the table of an interface.
func (w *world) executeAddress(m api.Message) []api.Message {
	missing := retval(api.INVALID_SW_IF_INDEX)
	switch m := m.(type) {
	case *ip.IPUnnumberedDump:
		var all []api.Message
		for _, i := range w.ifaces {
			if i.lender != none {
				all = append(all, &ip.IPUnnumberedDetails{
					SwIfIndex:   interface_types.InterfaceIndex(i.index),
					IPSwIfIndex: interface_types.InterfaceIndex(i.lender),
				})
			}
		}
		return some(all)
	case *ip.IPAddressDump:
		var all []api.Message
		if i := w.ifaces[uint32(m.SwIfIndex)]; i != nil {
			for p := range i.addresses {
				if p.Addr().Is6() == m.IsIPv6 {
					all = append(all, &ip.IPAddressDetails{
						SwIfIndex: m.SwIfIndex,
						Prefix:    ip_types.AddressWithPrefix(prefix(p)),
					})
				}
			}
		}
		return some(all)
	case *interfaces.SwInterfaceGetTable:
		i := w.ifaces[uint32(m.SwIfIndex)]
		if i == nil {
			return one(&interfaces.SwInterfaceGetTableReply{Retval: missing})
		}
		return one(&interfaces.SwInterfaceGetTableReply{VrfID: i.table[family(m.IsIPv6)]})
	case *interfaces.SwInterfaceSetTable:
		return one(&interfaces.SwInterfaceSetTableReply{Retval: retval(w.bind(m))})
	case *interfaces.SwInterfaceAddDelAddress:
		return one(&interfaces.SwInterfaceAddDelAddressReply{Retval: retval(w.changeAddress(m))})
	case *interfaces.SwInterfaceSetUnnumbered:
		return one(&interfaces.SwInterfaceSetUnnumberedReply{Retval: retval(w.borrow(m))})
	}
	return nil
}

func family(six bool) int {
	if six {
		return 1
	}
	return 0
}

func (w *world) changeTable(m *ip.IPTableAddDelV2) {
	id := tableID{m.Table.TableID, m.Table.IsIP6}
	if id.id == 0 {
		return
	}
	if !m.IsAdd {
		if w.uses(id) {
			w.deleted[id] = true
			return
		}
		delete(w.tables, id)
		for r := range w.routes {
			if r.table == id.id && r.dst.Addr().Is6() == id.six {
				delete(w.routes, r)
			}
		}
		return
	}
	delete(w.deleted, id)
	if _, found := w.tables[id]; !found {
		w.tables[id] = strings.TrimRight(m.Table.Name, "\x00")
	}
}

// uses reports whether an interface is in a table.
func (w *world) uses(id tableID) bool {
	for _, i := range w.ifaces {
		if i.table[family(id.six)] == id.id {
			return true
		}
	}
	return false
}

// collect removes the deleted tables that no interface uses any more.
func (w *world) collect() {
	for id := range w.deleted {
		if !w.uses(id) {
			delete(w.deleted, id)
			w.changeTable(&ip.IPTableAddDelV2{Table: ip.IPTable{TableID: id.id, IsIP6: id.six}})
		}
	}
}

func (w *world) bind(m *interfaces.SwInterfaceSetTable) api.VPPApiError {
	i := w.ifaces[uint32(m.SwIfIndex)]
	if i == nil {
		return api.INVALID_SW_IF_INDEX
	}
	if _, found := w.tables[tableID{m.VrfID, m.IsIPv6}]; !found {
		return api.NO_SUCH_FIB
	}
	if i.table[family(m.IsIPv6)] == m.VrfID {
		return 0
	}
	if i.lender != none {
		return api.ADDRESS_FOUND_FOR_INTERFACE
	}
	for p := range i.addresses {
		if p.Addr().Is6() == m.IsIPv6 {
			return api.ADDRESS_FOUND_FOR_INTERFACE
		}
	}
	i.table[family(m.IsIPv6)] = m.VrfID
	return 0
}

func (w *world) changeAddress(m *interfaces.SwInterfaceAddDelAddress) api.VPPApiError {
	i, p := w.ifaces[uint32(m.SwIfIndex)], prefixOf(ip_types.Prefix(m.Prefix))
	if i == nil {
		return api.INVALID_SW_IF_INDEX
	}
	if m.DelAll {
		clear(i.addresses)
		return 0
	}
	if !m.IsAdd {
		if !i.addresses[p] {
			return api.ADDRESS_NOT_FOUND_FOR_INTERFACE
		}
		delete(i.addresses, p)
		return 0
	}
	six := p.Addr().Is6()
	for _, o := range w.ifaces {
		if o.table[family(six)] != i.table[family(six)] {
			continue
		}
		for have := range o.addresses {
			sibling := o == i && have.Bits() == p.Bits() && have.Addr() != p.Addr()
			switch {
			case have.Addr().Is6() != six || !have.Overlaps(p) || sibling:
			case six:
				return api.DUPLICATE_IF_ADDRESS
			default:
				return api.ADDRESS_IN_USE
			}
		}
	}
	i.addresses[p] = true
	return 0
}

func (w *world) borrow(m *interfaces.SwInterfaceSetUnnumbered) api.VPPApiError {
	i, of := w.ifaces[uint32(m.UnnumberedSwIfIndex)], w.ifaces[uint32(m.SwIfIndex)]
	switch {
	case i == nil:
		return api.INVALID_SW_IF_INDEX
	case !m.IsAdd:
		i.lender = none
	case of == nil:
		return api.INVALID_SW_IF_INDEX_2
	case of.table != i.table:
		return api.UNEXPECTED_INTF_STATE
	default:
		i.lender = of.index
	}
	return 0
}

func (w *world) dumpRoutes(m *ip.IPRouteV2Dump) (all []api.Message) {
	for id, r := range w.routes {
		if id.table != m.Table.TableID || id.dst.Addr().Is6() != m.Table.IsIP6 || id.source != m.Src {
			continue
		}
		p := fib_types.FibPath{SwIfIndex: r.index, TableID: r.into, Weight: 1}
		switch {
		case r.drop:
			p.Type = fib_types.FIB_API_PATH_TYPE_DROP
		case r.unreachable:
			p.Type = fib_types.FIB_API_PATH_TYPE_ICMP_UNREACH
		}
		if r.via.IsValid() {
			p.Nh.Address = address(r.via).Un
		}
		all = append(all, &ip.IPRouteV2Details{Route: ip.IPRouteV2{
			TableID: id.table,
			Prefix:  prefix(id.dst),
			Src:     id.source,
			Paths:   []fib_types.FibPath{p},
		}})
	}
	return all
}

func (w *world) changeRoute(m *ip.IPRouteAddDelV2) api.VPPApiError {
	r := m.Route
	dst := prefixOf(r.Prefix).Masked()
	id := routeID{r.TableID, dst, r.Src}
	if _, found := w.tables[tableID{r.TableID, dst.Addr().Is6()}]; !found {
		return api.NO_SUCH_FIB
	}
	if !m.IsAdd {
		delete(w.routes, id)
		return 0
	}
	if len(r.Paths) == 0 {
		return api.VPPApiError(noPaths)
	}
	if int(r.Src) >= firstSource+len(w.sources) {
		panic(fmt.Sprintf("a route of source %d, which is not registered: VPP 25.10 can end by SIGSEGV", r.Src))
	}
	p := r.Paths[0]
	to := way{
		index:       p.SwIfIndex,
		drop:        p.Type == fib_types.FIB_API_PATH_TYPE_DROP,
		unreachable: p.Type == fib_types.FIB_API_PATH_TYPE_ICMP_UNREACH,
	}
	switch {
	case to.drop, to.unreachable:
	case p.SwIfIndex == none:
		if _, found := w.tables[tableID{p.TableID, dst.Addr().Is6()}]; !found {
			return api.NO_SUCH_FIB
		}
		to.into = p.TableID
	case w.ifaces[p.SwIfIndex] == nil:
		return api.NO_MATCHING_INTERFACE
	}
	via := netip.AddrFrom4(p.Nh.Address.GetIP4())
	if dst.Addr().Is6() {
		via = netip.AddrFrom16(p.Nh.Address.GetIP6())
	}
	if !via.IsUnspecified() {
		to.via = via
	}
	w.routes[id] = to
	return 0
}

func (w *world) dumpNeighbours(m *ip_neighbor.IPNeighborDump) (all []api.Message) {
	lists := maps.Clone(w.strays)
	for index, i := range w.ifaces {
		lists[index] = i.neighbours
	}
	for index, list := range lists {
		for a, n := range list {
			if a.Is6() != (m.Af == ip_types.ADDRESS_IP6) {
				continue
			}
			d := &ip_neighbor.IPNeighborDetails{Neighbor: ip_neighbor.IPNeighbor{
				SwIfIndex:  interface_types.InterfaceIndex(index),
				MacAddress: n.mac,
				IPAddress:  address(a),
			}}
			if n.static {
				d.Neighbor.Flags = ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC
			}
			all = append(all, d)
		}
	}
	return all
}

func (w *world) changeNeighbour(m *ip_neighbor.IPNeighborAddDel) api.VPPApiError {
	i, a := w.ifaces[uint32(m.Neighbor.SwIfIndex)], addrOf(m.Neighbor.IPAddress)
	if i == nil {
		return api.INVALID_SW_IF_INDEX
	}
	if m.IsAdd {
		static := m.Neighbor.Flags&ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC != 0
		i.neighbours[a] = neighbour{mac: m.Neighbor.MacAddress, static: static}
		return 0
	}
	if _, found := i.neighbours[a]; !found {
		return api.NO_SUCH_ENTRY
	}
	delete(i.neighbours, a)
	return 0
}

// addrOf and its like translate addresses from and to VPP's form.
func addrOf(a ip_types.Address) netip.Addr {
	if a.Af == ip_types.ADDRESS_IP6 {
		return netip.AddrFrom16(a.Un.GetIP6())
	}
	return netip.AddrFrom4(a.Un.GetIP4())
}

func prefixOf(p ip_types.Prefix) netip.Prefix { return netip.PrefixFrom(addrOf(p.Address), int(p.Len)) }

func address(a netip.Addr) (v ip_types.Address) {
	switch {
	case a.Is4():
		v.Un.SetIP4(a.As4())
	case a.Is6():
		v.Af = ip_types.ADDRESS_IP6
		v.Un.SetIP6(a.As16())
	}
	return v
}

func prefix(p netip.Prefix) ip_types.Prefix {
	return ip_types.Prefix{Address: address(p.Addr()), Len: uint8(p.Bits())}
}
