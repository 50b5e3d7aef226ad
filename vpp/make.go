// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	"go.fd.io/govpp/binapi/fib"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_neighbor"
	"go.fd.io/govpp/binapi/ip_types"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/memif"
	"go.fd.io/govpp/binapi/vxlan"

	"github.com/cadastre/cadastre/southbound"
)

// splitHorizon is the group of tunnels: what arrives through one does not leave through
// another.
const splitHorizon = 1

// change makes and removes objects over one connection, and keeps the state in step.
type change struct {
	ctx    context.Context
	client *client
	on     *session
	st     *state
}

// call sends a request. allowed numbers of a refusal are not errors.
func (x *change) call(what string, request api.Message, allowed ...api.VPPApiError) (api.Message, error) {
	reply, err := x.client.call(x.ctx, x.on, what, request)
	if len(allowed) > 0 && refused(err, allowed...) {
		err = nil
	}
	return reply, err
}

func (x *change) do(what string, request api.Message, allowed ...api.VPPApiError) error {
	_, err := x.call(what, request, allowed...)
	return err
}

// make makes all objects of a plan, or repairs those that differ.
func (x *change) make(p *plan) error {
	for _, t := range p.tables {
		if err := x.makeTable(t); err != nil {
			return err
		}
	}
	for _, d := range p.domains {
		if err := x.makeDomain(d); err != nil {
			return err
		}
	}
	for _, l := range p.links {
		if err := x.makeLink(l); err != nil {
			return fmt.Errorf("interface %s: %w", l.tag, err)
		}
	}
	if err := x.makeNeighbours(p.neighbours); err != nil {
		return err
	}
	for _, r := range p.routes {
		if err := x.makeRoute(r); err != nil {
			return err
		}
	}
	if p.nat != nil {
		return x.makeNAT(*p.nat)
	}
	return nil
}

// remove removes the objects of a plan, apart from those that kept has too. What is missing is
// not an error.
func (x *change) remove(p, kept *plan) error {
	if kept == nil {
		kept = &plan{}
	}
	if p.nat != nil && kept.nat == nil {
		if err := x.removeNAT(*p.nat); err != nil {
			return err
		}
	}
	places, tags, domains, tables := map[place]bool{}, map[string]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, r := range kept.routes {
		places[r.place] = true
	}
	for _, l := range kept.links {
		tags[l.tag] = true
	}
	for _, d := range kept.domains {
		domains[d.id] = true
	}
	for _, t := range kept.tables {
		tables[t.id] = true
	}
	for _, r := range p.routes {
		if !places[r.place] && !x.st.takenOver(r) {
			if err := x.removeRoute(r.place); err != nil {
				return err
			}
		}
	}
	if err := x.removeNeighbours(p.neighbours, kept.neighbours); err != nil {
		return err
	}
	for i := len(p.links) - 1; i >= 0; i-- {
		if a := x.st.byTag[p.links[i].tag]; a != nil && !tags[p.links[i].tag] {
			if err := x.removeLink(a); err != nil {
				return err
			}
		}
	}
	for _, d := range p.domains {
		if !domains[d.id] {
			if err := x.removeDomain(d.id); err != nil {
				return err
			}
		}
	}
	for _, t := range p.tables {
		if !tables[t.id] {
			if err := x.removeTable(t.id); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *change) makeTable(t table) error {
	for _, six := range []bool{false, true} {
		id := tableID{t.id, six}
		name, found := x.st.tables[id]
		switch {
		case found && name == t.name:
			continue
		case found:
			return fmt.Errorf("%w: table %d has name %q, not %q", southbound.ErrForeign, t.id, name, t.name)
		}
		err := x.do(fmt.Sprintf("make table %d", t.id), &ip.IPTableAddDelV2{
			Table:      ip.IPTable{TableID: t.id, IsIP6: six, Name: t.name},
			CreateMfib: true,
			IsAdd:      true,
		})
		if err != nil {
			return err
		}
		x.st.tables[id] = t.name
	}
	return nil
}

func (x *change) removeTable(id uint32) error {
	for _, six := range []bool{false, true} {
		if roleOf(x.st.tables[tableID{id, six}]) == "" {
			continue
		}
		err := x.do(fmt.Sprintf("remove table %d", id), &ip.IPTableAddDelV2{
			Table:      ip.IPTable{TableID: id, IsIP6: six},
			CreateMfib: true,
		})
		if err != nil {
			return err
		}
		delete(x.st.tables, tableID{id, six})
	}
	return nil
}

func (x *change) makeDomain(d domain) error {
	have, found := x.st.domains[d.id]
	if found && have.tag == d.tag && !have.learn {
		return nil
	}
	if found && roleOf(have.tag) == "" {
		return fmt.Errorf("%w: bridge domain %d has tag %q, not %q", southbound.ErrForeign, d.id, have.tag, d.tag)
	}
	if found {
		if err := x.removeDomain(d.id); err != nil {
			return err
		}
	}
	err := x.do(fmt.Sprintf("make bridge domain %d", d.id), &l2.BridgeDomainAddDelV2{
		BdID:    d.id,
		Flood:   true,
		UuFlood: true,
		Forward: true,
		BdTag:   d.tag,
		IsAdd:   true,
	})
	if err == nil {
		x.st.domains[d.id] = actualDomain{tag: d.tag}
	}
	return err
}

// removeDomain removes a bridge domain after its ports, which VPP requires.
func (x *change) removeDomain(id uint32) error {
	have, found := x.st.domains[id]
	if !found || roleOf(have.tag) == "" {
		return nil
	}
	for _, a := range x.st.links {
		if a.domain == id {
			if err := x.leaveDomain(a); err != nil {
				return err
			}
		}
	}
	err := x.do(fmt.Sprintf("remove bridge domain %d", id), &l2.BridgeDomainAddDelV2{BdID: id}, api.NO_SUCH_ENTRY)
	if err == nil {
		delete(x.st.domains, id)
	}
	return err
}

// leaveDomain takes an interface out of its bridge domain.
func (x *change) leaveDomain(a *actual) error {
	for m := range a.macs {
		if err := x.changeMAC(a, m, false); err != nil {
			return err
		}
	}
	kind := l2.L2_API_PORT_TYPE_NORMAL
	if a.bvi {
		kind = l2.L2_API_PORT_TYPE_BVI
	}
	err := x.do("leave bridge domain", &l2.SwInterfaceSetL2Bridge{
		RxSwIfIndex: interface_types.InterfaceIndex(a.index),
		BdID:        a.domain,
		PortType:    kind,
	})
	if err == nil {
		a.domain, a.bvi = 0, false
	}
	return err
}

// makeLink makes an interface, or changes it. One that cannot be changed is made anew.
func (x *change) makeLink(l *link) error {
	a := x.st.byTag[l.tag]
	if a == nil {
		if a = x.st.byName[l.name()]; a != nil && !a.untagged() {
			return fmt.Errorf("%w: interface %s has tag %q, not %q", southbound.ErrForeign, a.name, a.tag, l.tag)
		}
	}
	if a == nil && l.kind == loopLink {
		a = x.st.lostLoop(l.mac)
	}
	if a != nil && !l.same(a) {
		if err := x.removeLink(a); err != nil {
			return err
		}
		a = nil
	}
	if a == nil {
		var err error
		if a, err = x.create(l); err != nil {
			return err
		}
	}
	return x.dress(l, a)
}

// lostLoop returns a loopback that a crash has left without a tag, nil for none.
func (st *state) lostLoop(m mac) *actual {
	for _, a := range st.links {
		if a.untagged() && a.device == loopDevice && a.mac == m {
			return a
		}
	}
	return nil
}

// same reports whether an interface is the one that is wanted, apart from what can be changed.
func (l *link) same(a *actual) bool {
	if l.kind == vxlanLink {
		return a.tag == l.fullTag() && a.tunnel == l.ends()
	}
	return a.tag == l.fullTag() && a.mac == l.mac
}

// create makes a new interface with its tag.
func (x *change) create(l *link) (*actual, error) {
	index, name, device, err := x.createKind(l)
	if err != nil {
		return nil, err
	}
	a := &actual{
		index:      index,
		name:       name,
		device:     device,
		mac:        l.mac,
		addresses:  map[netip.Prefix]bool{},
		lender:     none,
		neighbours: x.st.neighboursOf(index),
		macs:       map[mac]bool{},
	}
	if l.kind == vxlanLink {
		a.tunnel = l.ends()
	}
	if old := x.st.links[index]; old != nil {
		x.st.forget(old) // another program has removed it
	}
	delete(x.st.strays, index)
	err = x.do("set tag", &interfaces.SwInterfaceTagAddDel{
		IsAdd:     true,
		SwIfIndex: interface_types.InterfaceIndex(index),
		Tag:       l.fullTag(),
	})
	if err != nil {
		return nil, err
	}
	a.tag = l.fullTag()
	x.st.note(a)
	return a, x.removeStrays(a)
}

// removeStrays removes the neighbours that a new interface has from one that had its index:
// VPP keeps those of an interface that another program removes.
func (x *change) removeStrays(a *actual) error {
	for ip, m := range a.neighbours {
		if err := x.changeNeighbour(a, ip, m, false); err != nil {
			return err
		}
	}
	return nil
}

const (
	loopDevice   = "Loopback"
	packetDevice = "af-packet"
	vxlanDevice  = "VXLAN"
	memifDevice  = "memif"
)

func (x *change) createKind(l *link) (index uint32, name, device string, err error) {
	var reply api.Message
	switch l.kind {
	case packetLink:
		reply, err = x.call("read link "+l.hostName, l.request())
		if err == nil {
			index = uint32(reply.(*af_packet.AfPacketCreateV3Reply).SwIfIndex)
		}
		return index, l.name(), packetDevice, err
	case loopLink:
		reply, err = x.call("make a loopback", &interfaces.CreateLoopbackInstance{MacAddress: l.mac})
		if err == nil {
			index = uint32(reply.(*interfaces.CreateLoopbackInstanceReply).SwIfIndex)
		}
		return index, fmt.Sprintf("loop#%d", index), loopDevice, err
	case vxlanLink:
		reply, err = x.call(fmt.Sprintf("make a tunnel to %s", l.dst), l.tunnel(true))
		if err == nil {
			index = uint32(reply.(*vxlan.VxlanAddDelTunnelV3Reply).SwIfIndex)
		}
		return index, l.name(), vxlanDevice, err
	}
	return x.createMemif(l)
}

// createMemif makes an interface of shared memory, and its socket.
func (x *change) createMemif(l *link) (index uint32, name, device string, err error) {
	socket, err := x.call("make socket "+l.path, &memif.MemifSocketFilenameAddDelV2{
		IsAdd:          true,
		SocketID:       none,
		SocketFilename: l.path,
	})
	if err != nil {
		return 0, "", "", err
	}
	id := socket.(*memif.MemifSocketFilenameAddDelV2Reply).SocketID
	reply, err := x.call("make a memif interface", &memif.MemifCreateV2{
		Role:     memif.MEMIF_ROLE_API_MASTER,
		Mode:     memif.MEMIF_MODE_API_ETHERNET,
		SocketID: id,
		HwAddr:   l.mac,
	})
	if err != nil {
		return 0, "", "", errors.Join(err, x.removeSocket(id))
	}
	return uint32(reply.(*memif.MemifCreateV2Reply).SwIfIndex), fmt.Sprintf("memif%d/0", id), memifDevice, nil
}

// ends returns the wanted ends of a VXLAN tunnel.
func (l *link) ends() tunnelEnds { return tunnelEnds{l.src, l.dst, l.vni} }

// removeMemif removes an interface of shared memory, and its socket.
func (x *change) removeMemif(a *actual) error {
	request := &memif.MemifDelete{SwIfIndex: interface_types.InterfaceIndex(a.index)}
	if err := x.do("remove "+a.name, request, api.INVALID_SW_IF_INDEX); err != nil {
		return err
	}
	var id, number uint32
	if _, err := fmt.Sscanf(a.name, "memif%d/%d", &id, &number); err != nil {
		return fmt.Errorf("remove the socket of %s: its name has no number: %w", a.name, err)
	}
	return x.removeSocket(id)
}

// removeSocket removes a socket of memif, which nothing else does.
func (x *change) removeSocket(id uint32) error {
	request := &memif.MemifSocketFilenameAddDelV2{SocketID: id}
	return x.do(fmt.Sprintf("remove socket %d of memif", id), request, api.INVALID_ARGUMENT)
}

// tunnel returns the request that makes or removes a VXLAN tunnel.
func (l *link) tunnel(add bool) *vxlan.VxlanAddDelTunnelV3 {
	return &vxlan.VxlanAddDelTunnelV3{
		IsAdd:          add,
		Instance:       l.instance,
		SrcAddress:     vppAddr(l.src),
		DstAddress:     vppAddr(l.dst),
		McastSwIfIndex: interface_types.InterfaceIndex(none),
		DecapNextIndex: none,
		Vni:            l.vni,
	}
}

// dress gives an interface all that it lacks, and takes from it what it should not have.
func (x *change) dress(l *link, a *actual) error {
	index := interface_types.InterfaceIndex(a.index)
	if err := x.bind(l, a); err != nil {
		return err
	}
	if l.mtu != 0 && a.mtu != l.mtu {
		mtu := []uint32{l.mtu, l.mtu, l.mtu, l.mtu} // of layer 3 and its protocols
		err := x.do("set MTU", &interfaces.SwInterfaceSetMtu{SwIfIndex: index, Mtu: mtu})
		if err != nil {
			return err
		}
		a.mtu = l.mtu
	}
	if err := x.setAddresses(l, a); err != nil {
		return err
	}
	if err := x.setDomain(l, a); err != nil {
		return err
	}
	if !l.bvi { // the tunnels have their neighbours there
		if err := x.setNeighbours(l, a); err != nil {
			return err
		}
	}
	if a.up {
		return nil
	}
	err := x.do("set up", &interfaces.SwInterfaceSetFlags{
		SwIfIndex: index,
		Flags:     interface_types.IF_STATUS_API_FLAG_ADMIN_UP,
	})
	if err == nil {
		a.up = true
		err = x.setReceiveMode(l, a)
	}
	return err
}

// setReceiveMode sets how VPP takes packets of an interface, when that is set up.
func (x *change) setReceiveMode(l *link, a *actual) error {
	modes := map[string]interface_types.RxMode{
		"polling":   interface_types.RX_MODE_API_POLLING,
		"interrupt": interface_types.RX_MODE_API_INTERRUPT,
		"adaptive":  interface_types.RX_MODE_API_ADAPTIVE,
	}
	mode, wanted := modes[x.client.opt.RxMode]
	if !wanted || l.kind != packetLink && l.kind != memifLink {
		return nil
	}
	return x.do("set the receive mode", &interfaces.SwInterfaceSetRxMode{
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		Mode:      mode,
	})
}

// bind puts an interface into its table. VPP refuses that while it has addresses.
func (x *change) bind(l *link, a *actual) error {
	if a.tables == [2]uint32{l.table, l.table} {
		return nil
	}
	if err := x.setAddresses(&link{}, a); err != nil {
		return err
	}
	for i, six := range []bool{false, true} {
		if a.tables[i] == l.table {
			continue
		}
		err := x.do(fmt.Sprintf("bind to table %d", l.table), &interfaces.SwInterfaceSetTable{
			SwIfIndex: interface_types.InterfaceIndex(a.index),
			IsIPv6:    six,
			VrfID:     l.table,
		})
		if err != nil {
			return err
		}
		a.tables[i] = l.table
	}
	return nil
}

// setAddresses makes the addresses of an interface the wanted ones, or those of its lender.
func (x *change) setAddresses(l *link, a *actual) error {
	lender := none
	if l.lender != "" {
		of := x.st.byTag[l.lender]
		if of == nil {
			return fmt.Errorf("interface %s, which has the addresses, is missing", l.lender)
		}
		lender = of.index
	}
	if a.lender != none && a.lender != lender {
		if err := x.borrow(a, a.lender, false); err != nil {
			return err
		}
	}
	wanted := map[netip.Prefix]bool{}
	for _, p := range l.addresses {
		wanted[p] = true
	}
	for p := range a.addresses {
		if !wanted[p] {
			if err := x.changeAddress(a, p, false); err != nil {
				return err
			}
		}
	}
	for _, p := range l.addresses {
		if !a.addresses[p] {
			if err := x.changeAddress(a, p, true); err != nil {
				return err
			}
		}
	}
	if lender == none || a.lender == lender {
		return nil
	}
	return x.borrow(a, lender, true)
}

func (x *change) borrow(a *actual, lender uint32, add bool) error {
	// The names of the fields are the wrong way round in VPP.
	err := x.do("use the addresses of another interface", &interfaces.SwInterfaceSetUnnumbered{
		SwIfIndex:           interface_types.InterfaceIndex(lender),
		UnnumberedSwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:               add,
	})
	if err != nil {
		return err
	}
	a.lender = none
	if add {
		a.lender = lender
	}
	return nil
}

func (x *change) changeAddress(a *actual, p netip.Prefix, add bool) error {
	what, allowed := "add address "+p.String(), []api.VPPApiError(nil)
	if !add {
		what, allowed = "remove address "+p.String(), []api.VPPApiError{api.ADDRESS_NOT_FOUND_FOR_INTERFACE}
	}
	err := x.do(what, &interfaces.SwInterfaceAddDelAddress{
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:     add,
		Prefix:    ip_types.AddressWithPrefix(vppPrefix(p)),
	}, allowed...)
	if err != nil {
		return err
	}
	if add {
		a.addresses[p] = true
	} else {
		delete(a.addresses, p)
	}
	return nil
}

// setDomain puts an interface into its bridge domain, with the addresses behind it.
func (x *change) setDomain(l *link, a *actual) error {
	if a.domain != 0 && (a.domain != l.domain || a.bvi != l.bvi) {
		if err := x.leaveDomain(a); err != nil {
			return err
		}
	}
	if l.domain == 0 {
		return nil
	}
	if a.domain == 0 {
		request := &l2.SwInterfaceSetL2Bridge{
			RxSwIfIndex: interface_types.InterfaceIndex(a.index),
			BdID:        l.domain,
			PortType:    l2.L2_API_PORT_TYPE_NORMAL,
			Shg:         splitHorizon,
			Enable:      true,
		}
		if l.bvi {
			request.PortType, request.Shg = l2.L2_API_PORT_TYPE_BVI, 0
		}
		if err := x.do(fmt.Sprintf("join bridge domain %d", l.domain), request); err != nil {
			return err
		}
		a.domain, a.bvi = l.domain, l.bvi
	}
	wanted := map[mac]bool{}
	for _, m := range l.macs {
		wanted[m] = true
	}
	for m := range a.macs {
		if !wanted[m] {
			if err := x.changeMAC(a, m, false); err != nil {
				return err
			}
		}
	}
	for _, m := range l.macs {
		if !a.macs[m] {
			if err := x.changeMAC(a, m, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *change) changeMAC(a *actual, m mac, add bool) error {
	err := x.do("forward "+m.String(), &l2.L2fibAddDel{
		Mac:       m,
		BdID:      a.domain,
		SwIfIndex: interface_types.InterfaceIndex(a.index),
		IsAdd:     add,
		StaticMac: add,
	}, removals(add)...)
	if err != nil {
		return err
	}
	if add {
		a.macs[m] = true
	} else {
		delete(a.macs, m)
	}
	return nil
}

// removals returns the refusals that are not errors of a removal.
func removals(add bool) []api.VPPApiError {
	if add {
		return nil
	}
	return []api.VPPApiError{api.NO_SUCH_ENTRY}
}

// setNeighbours makes the neighbours of an interface the wanted ones.
func (x *change) setNeighbours(l *link, a *actual) error {
	for ip := range a.neighbours {
		if _, wanted := l.neighbours[ip]; !wanted {
			if err := x.changeNeighbour(a, ip, a.neighbours[ip], false); err != nil {
				return err
			}
		}
	}
	for ip, m := range l.neighbours {
		if have, found := a.neighbours[ip]; !found || have != m {
			if err := x.changeNeighbour(a, ip, m, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *change) changeNeighbour(a *actual, address netip.Addr, m mac, add bool) error {
	err := x.do("neighbour "+address.String(), &ip_neighbor.IPNeighborAddDel{
		IsAdd: add,
		Neighbor: ip_neighbor.IPNeighbor{
			SwIfIndex:  interface_types.InterfaceIndex(a.index),
			Flags:      ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC,
			MacAddress: m,
			IPAddress:  vppAddr(address),
		},
	}, removals(add)...)
	if err != nil {
		return err
	}
	if add {
		a.neighbours[address] = m
	} else {
		delete(a.neighbours, address)
	}
	return nil
}

// removeLink removes an interface with all that is on it. The routes over it must be gone.
func (x *change) removeLink(a *actual) error {
	if a.domain != 0 {
		if err := x.leaveDomain(a); err != nil {
			return err
		}
	}
	if err := x.setAddresses(&link{}, a); err != nil {
		return err
	}
	if err := x.setNeighbours(&link{}, a); err != nil {
		return err
	}
	index := interface_types.InterfaceIndex(a.index)
	var err error
	switch a.device {
	case loopDevice:
		err = x.do("remove loopback "+a.name, &interfaces.DeleteLoopback{SwIfIndex: index}, api.INVALID_SW_IF_INDEX)
	case memifDevice:
		err = x.removeMemif(a)
	case vxlanDevice:
		err = x.removeTunnel(a)
	case packetDevice:
		err = x.do("remove "+a.name, &af_packet.AfPacketDelete{HostIfName: a.name[len("host-"):]}, api.SYSCALL_ERROR_1)
	default:
		err = fmt.Errorf("remove %s: its kind %q is unknown", a.name, a.device)
	}
	if err == nil {
		x.st.forget(a)
	}
	return err
}

// removeTunnel removes a VXLAN tunnel, which VPP finds by its addresses alone.
func (x *change) removeTunnel(a *actual) error {
	var found *vxlan.VxlanTunnelV2Details
	request := &vxlan.VxlanTunnelV2Dump{SwIfIndex: interface_types.InterfaceIndex(a.index)}
	err := x.client.dump(x.ctx, x.on, []api.Message{request}, func(m api.Message) {
		if d, ok := m.(*vxlan.VxlanTunnelV2Details); ok {
			found = d
		}
	})
	if err != nil || found == nil {
		return err
	}
	l := &link{src: addrOf(found.SrcAddress), dst: addrOf(found.DstAddress), vni: found.Vni, instance: found.Instance}
	return x.do("remove "+a.name, l.tunnel(false), api.NO_SUCH_ENTRY)
}

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

// register makes the source of own routes known to VPP, once: each registration is another
// source.
func (x *change) register() error {
	if x.st.source != 0 {
		return nil
	}
	reply, err := x.call("register the source of routes", &fib.FibSourceAdd{
		Src: fib.FibSource{Priority: sourcePriority, Name: sourceName},
	})
	if err == nil {
		x.st.source = reply.(*fib.FibSourceAddReply).ID
	}
	return err
}

// makeNeighbours adds neighbours to an interface of another value.
func (x *change) makeNeighbours(n *neighbours) error {
	if n == nil {
		return nil
	}
	a := x.st.byTag[n.link]
	if a == nil {
		return fmt.Errorf("interface %s is missing", n.link)
	}
	for ip, m := range n.all {
		if have, found := a.neighbours[ip]; !found || have != m {
			if err := x.changeNeighbour(a, ip, m, true); err != nil {
				return err
			}
		}
	}
	return nil
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

// removeNeighbours removes those that kept does not have.
func (x *change) removeNeighbours(n, kept *neighbours) error {
	if n == nil {
		return nil
	}
	a := x.st.byTag[n.link]
	if a == nil {
		return nil
	}
	for ip, m := range n.all {
		if kept != nil && kept.link == n.link && kept.all[ip] == m {
			continue
		}
		if a.neighbours[ip] == m {
			if err := x.changeNeighbour(a, ip, m, false); err != nil {
				return err
			}
		}
	}
	return nil
}
