// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	"go.fd.io/govpp/binapi/fib"
	"go.fd.io/govpp/binapi/fib_types"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_neighbor"
	"go.fd.io/govpp/binapi/ip_types"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/nat44_ed"
	"go.fd.io/govpp/binapi/vxlan"
)

const none = ^uint32(0)

// Names of sources of routes. VPP cannot forget one: tests of refusals have one of their own.
const (
	apiSource     = "API"
	agentSource   = "cadastre"
	refusalSource = "cadastre test"
)

// inventory holds the objects of a VPP, each with a line of text that has names instead of
// numbers of interfaces. The text is that of the model.
type inventory struct {
	text    []string
	names   map[uint32]string // of interfaces, as VPP has them
	shown   map[uint32]string // and as the text has them
	ifaces  map[string]*interfaces.SwInterfaceDetails
	tunnels map[uint32]*vxlan.VxlanTunnelV2Details
	sources map[uint8]string
	tables  map[ip.IPTable]bool
	routes  map[string]ip.IPRouteV2 // by line
	bridges map[uint32]bool
	nat     nat44_ed.Nat44ShowRunningConfigReply
}

func (v *inventory) line(format string, args ...any) string {
	line := fmt.Sprintf(format, args...)
	v.text = append(v.text, line)
	return line
}

// lines returns the text without what stays for good.
func (v *inventory) lines() []string {
	return slices.DeleteFunc(slices.Sorted(slices.Values(v.text)), func(line string) bool {
		return strings.HasPrefix(line, "source ")
	})
}

// Dump returns all objects as text, in order.
func (r *Running) Dump() string {
	return strings.Join(slices.Sorted(slices.Values(r.read().text)), "\n") + "\n"
}

// read reads the objects of VPP.
func (r *Running) read() *inventory {
	v := &inventory{
		names:   map[uint32]string{},
		shown:   map[uint32]string{none: "-"},
		ifaces:  map[string]*interfaces.SwInterfaceDetails{},
		tunnels: map[uint32]*vxlan.VxlanTunnelV2Details{},
		sources: map[uint8]string{},
		tables:  map[ip.IPTable]bool{},
		routes:  map[string]ip.IPRouteV2{},
		bridges: map[uint32]bool{},
	}
	every := interface_types.InterfaceIndex(none)
	for _, m := range all[*interfaces.SwInterfaceDetails](r, &interfaces.SwInterfaceDump{SwIfIndex: every}) {
		index := uint32(m.SwIfIndex)
		v.names[index], v.shown[index], v.ifaces[m.InterfaceName] = m.InterfaceName, m.InterfaceName, m
		if m.InterfaceDevType == "Loopback" {
			v.shown[index] = fmt.Sprintf("loop[%s %x]", m.Tag, m.L2Address[:])
		}
	}
	for _, m := range all[*vxlan.VxlanTunnelV2Details](r, &vxlan.VxlanTunnelV2Dump{SwIfIndex: every}) {
		v.tunnels[uint32(m.SwIfIndex)] = m
	}
	r.readInterfaces(v)
	r.readRoutes(v)
	r.readNAT(v)
	return v
}

// port holds the place of an interface in a bridge domain.
type port struct {
	domain uint32
	bvi    bool
	group  uint8
}

// readInterfaces reads interfaces, with what they have and the bridge domains they are in.
func (r *Running) readInterfaces(v *inventory) {
	every := interface_types.InterfaceIndex(none)
	ports := map[uint32]port{}
	for _, m := range all[*l2.BridgeDomainDetails](r, &l2.BridgeDomainDump{BdID: none, SwIfIndex: every}) {
		v.bridges[m.BdID] = true
		v.line("bridge %d %q learn=%t", m.BdID, m.BdTag, m.Learn)
		for _, p := range m.SwIfDetails {
			ports[uint32(p.SwIfIndex)] = port{m.BdID, p.SwIfIndex == m.BviSwIfIndex, p.Shg}
		}
		for _, e := range all[*l2.L2FibTableDetails](r, &l2.L2FibTableDump{BdID: m.BdID}) {
			if e.StaticMac && !e.BviMac {
				v.line("mac %d %x %s static=%t", e.BdID, e.Mac[:], v.nameOf(uint32(e.SwIfIndex)), e.StaticMac)
			}
		}
	}
	lenders := map[uint32]uint32{}
	for _, m := range all[*ip.IPUnnumberedDetails](r, &ip.IPUnnumberedDump{SwIfIndex: every}) {
		lenders[uint32(m.SwIfIndex)] = uint32(m.IPSwIfIndex)
	}
	for index := range v.names {
		r.readInterface(v, index, ports[index], lenders)
	}
	for _, family := range []ip_types.AddressFamily{ip_types.ADDRESS_IP4, ip_types.ADDRESS_IP6} {
		request := &ip_neighbor.IPNeighborDump{SwIfIndex: every, Af: family}
		for _, m := range all[*ip_neighbor.IPNeighborDetails](r, request) {
			n := m.Neighbor
			if n.Flags&ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC != 0 { // others come and go
				v.line("neighbour %s %s %x static=true", v.nameOf(uint32(n.SwIfIndex)), n.IPAddress, n.MacAddress[:])
			}
		}
	}
}

func (r *Running) readInterface(v *inventory, index uint32, at port, lenders map[uint32]uint32) {
	i, name := v.ifaces[v.names[index]], v.nameOf(index)
	var tables [2]uint32
	for n := range tables {
		request := &interfaces.SwInterfaceGetTable{SwIfIndex: i.SwIfIndex, IsIPv6: n == 1}
		if m, ok := r.do(request).(*interfaces.SwInterfaceGetTableReply); ok {
			tables[n] = m.VrfID
		}
		for _, m := range all[*ip.IPAddressDetails](r, &ip.IPAddressDump{SwIfIndex: i.SwIfIndex, IsIPv6: n == 1}) {
			v.line("address %s %s", name, m.Prefix)
		}
	}
	lender, found := lenders[index]
	if !found {
		lender = none
	}
	mac := i.L2Address[:]
	var src, dst netip.Addr
	var vni uint32
	if t := v.tunnels[index]; t != nil {
		mac, src, dst, vni = nil, addrOf(t.SrcAddress), addrOf(t.DstAddress), t.Vni // the MAC is random
	}
	v.line("interface %s tag=%q mac=%x up=%t mtu=%d table=%v lender=%s bridge=%d bvi=%t group=%d %s-%s vni=%d",
		name, i.Tag, mac, i.Flags&interface_types.IF_STATUS_API_FLAG_ADMIN_UP != 0, i.Mtu[0], tables,
		v.nameOf(lender), at.domain, at.bvi, at.group, src, dst, vni)
}

// readRoutes reads tables and the routes that programs have made.
func (r *Running) readRoutes(v *inventory) {
	for _, m := range all[*fib.FibSourceDetails](r, &fib.FibSourceDump{}) {
		name := strings.TrimRight(m.Src.Name, "\x00")
		if v.sources[m.Src.ID] = name; name == agentSource || name == refusalSource {
			v.line("source %s", name)
		}
	}
	for _, m := range all[*ip.IPTableDetails](r, &ip.IPTableDump{}) {
		v.tables[m.Table] = true
		v.line("table %d six=%t %q", m.Table.TableID, m.Table.IsIP6, m.Table.Name)
		for _, m := range all[*ip.IPRouteV2Details](r, &ip.IPRouteV2Dump{Table: m.Table}) {
			source, registered := v.sources[m.Route.Src]
			if !registered {
				source = fmt.Sprint(m.Route.Src)
			} else if source != apiSource && source != agentSource && source != refusalSource {
				continue // VPP's own
			}
			v.routes[v.routeLine(source, m.Route)] = m.Route
		}
	}
}

func (v *inventory) routeLine(source string, m ip.IPRouteV2) string {
	var via netip.Addr
	index, into, drop, unreachable := none, uint32(0), false, false
	if len(m.Paths) > 0 {
		p := m.Paths[0]
		switch p.Type {
		case fib_types.FIB_API_PATH_TYPE_DROP:
			drop = true
		case fib_types.FIB_API_PATH_TYPE_ICMP_UNREACH:
			unreachable = true
		default:
			if index = p.SwIfIndex; index == none {
				into = p.TableID
			}
			via = addrOf(ip_types.Address{Af: m.Prefix.Address.Af, Un: p.Nh.Address})
			if via.IsUnspecified() {
				via = netip.Addr{}
			}
		}
	}
	line := v.line("route %d %s source=%s via=%s %s into=%d drop=%t unreachable=%t",
		m.TableID, m.Prefix, source, via, v.nameOf(index), into, drop, unreachable)
	if len(m.Paths) != 1 {
		v.line("%d paths of %s", len(m.Paths), line)
	}
	return line
}

func (r *Running) readNAT(v *inventory) {
	for _, m := range all[*nat44_ed.Nat44ShowRunningConfigReply](r, &nat44_ed.Nat44ShowRunningConfig{}) {
		v.nat = *m
	}
	for _, m := range all[*nat44_ed.Nat44EdOutputInterfaceDetails](r, &nat44_ed.Nat44EdOutputInterfaceGet{}) {
		v.line("nat output %s", v.nameOf(uint32(m.SwIfIndex)))
	}
	for _, m := range all[*nat44_ed.Nat44InterfaceAddrDetails](r, &nat44_ed.Nat44InterfaceAddrDump{}) {
		v.line("nat address %s", v.nameOf(uint32(m.SwIfIndex)))
	}
	for _, m := range all[*nat44_ed.Nat44IdentityMappingDetails](r, &nat44_ed.Nat44IdentityMappingDump{}) {
		if uint32(m.SwIfIndex) != none { // the others follow from these
			v.line("nat vxlan %s", v.nameOf(uint32(m.SwIfIndex)))
		}
	}
	// The number of sessions is 0 while NAT is disabled.
	v.line("nat enabled=%t forward=%t", v.nat.Sessions != 0, v.nat.ForwardingEnabled)
}

// nameOf returns the name of an interface in the text.
func (v *inventory) nameOf(index uint32) string {
	if name, found := v.shown[index]; found {
		return name
	}
	return "DELETED"
}

// remove removes the objects of v that VPP did not have before.
func (r *Running) remove(v *inventory) {
	if v.nat.Sessions != 0 && r.before.nat.Sessions == 0 {
		r.do(&nat44_ed.Nat44EdPluginEnableDisable{})
	}
	if forward := r.before.nat.ForwardingEnabled; v.nat.ForwardingEnabled != forward {
		r.do(&nat44_ed.Nat44ForwardingEnableDisable{Enable: forward})
	}
	for line, m := range v.routes {
		if _, found := r.before.routes[line]; !found {
			r.do(&ip.IPRouteAddDelV2{Route: ip.IPRouteV2{TableID: m.TableID, Prefix: m.Prefix, Src: m.Src}})
		}
	}
	for name := range v.ifaces {
		r.RemoveInterface(name)
	}
	for id := range v.bridges {
		if !r.before.bridges[id] {
			r.do(&l2.BridgeDomainAddDelV2{BdID: id})
		}
	}
	for t := range v.tables {
		if !r.before.tables[t] {
			r.do(&ip.IPTableAddDelV2{Table: t})
		}
	}
}

// RemoveInterface removes an interface that VPP did not have before the test.
func (r *Running) RemoveInterface(name string) bool {
	r.t.Helper()
	v := r.read()
	i := v.ifaces[name]
	if i == nil || r.before.ifaces[name] != nil {
		return false
	}
	var request api.Message
	switch i.InterfaceDevType {
	case "Loopback":
		request = &interfaces.DeleteLoopback{SwIfIndex: i.SwIfIndex}
	case "af-packet":
		request = &af_packet.AfPacketDelete{HostIfName: strings.TrimPrefix(name, "host-")}
	case "VXLAN":
		t := v.tunnels[uint32(i.SwIfIndex)]
		request = &vxlan.VxlanAddDelTunnelV3{
			SrcAddress: t.SrcAddress, DstAddress: t.DstAddress, Vni: t.Vni, Instance: t.Instance,
			McastSwIfIndex: interface_types.InterfaceIndex(none), DecapNextIndex: none,
		}
	default:
		r.t.Fatalf("remove interface %s: no request for interfaces of kind %q is known", name, i.InterfaceDevType)
	}
	r.do(request)
	return true
}

func addrOf(a ip_types.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.ToIP())
	return addr.Unmap()
}
