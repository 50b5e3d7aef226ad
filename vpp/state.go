// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"context"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"go.fd.io/govpp/api"
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

// none is VPP's index of no object.
const none = ^uint32(0)

// actual is an interface that VPP has.
type actual struct {
	index  uint32
	name   string
	device string
	tag    string
	mac    mac
	up     bool
	mtu    uint32

	tables     [2]uint32 // IPv4, IPv6
	addresses  map[netip.Prefix]bool
	lender     uint32 // none: it is numbered
	neighbours map[netip.Addr]mac
	domain     uint32
	bvi        bool
	macs       map[mac]bool

	tunnel tunnelEnds // of a VXLAN tunnel
}

// tunnelEnds identify a VXLAN tunnel.
type tunnelEnds struct {
	src, dst netip.Addr
	vni      uint32
}

// own reports whether an interface has a tag of ours, or is one that a crash left without.
func (a *actual) own() bool { return roleOf(a.tag) != "" || a.untagged() }

// wireName is the form of the names of pods' interfaces: no other program has links with such
// names in the kernel.
var wireName = regexp.MustCompile(`^host-` + wirePrefix + `[0-9a-f]{12}$`)

// untagged reports whether an interface was made by this package and has no tag yet.
func (a *actual) untagged() bool {
	switch {
	case a.tag != "":
		return false
	case strings.HasPrefix(a.name, "vxlan_tunnel"):
		n, err := strconv.ParseUint(strings.TrimPrefix(a.name, "vxlan_tunnel"), 10, 32)
		return err == nil && n&^(1<<28-1) == firstInstance
	case wireName.MatchString(a.name):
		return true // the kernel's link is ours
	}
	return ownMAC(a.mac)
}

// tableID identifies a routing table of one family.
type tableID struct {
	id  uint32
	six bool
}

// actualDomain is a bridge domain that VPP has.
type actualDomain struct {
	tag   string
	learn bool
}

// path is the way of a route that VPP has.
type path struct {
	via   netip.Addr
	index uint32 // none: no interface
	into  uint32
	drop  bool
	// unreachable makes VPP answer "destination unreachable".
	unreachable bool
	other       bool // a form that this package does not make
}

// state is what VPP has of own objects.
type state struct {
	source  uint8 // of own routes; 0: it is not registered
	links   map[uint32]*actual
	byTag   map[string]*actual // own ones, by tag without the kernel's index
	byName  map[string]*actual
	tables  map[tableID]string // all, with their names
	domains map[uint32]actualDomain
	// strays holds the neighbours of interfaces that are gone, by index: VPP gives them to the
	// next interface with that index.
	strays map[uint32]map[netip.Addr]mac
	routes map[place]path // own ones

	natPlugin  bool // the plugin is loaded
	natEnabled bool
	natForward bool
	natOutput  map[uint32]bool
	natAddress map[uint32]bool
	natVXLAN   map[uint32]bool // identity mappings of VXLAN's port
}

// note adds an interface to the indexes, or changes its tag.
func (st *state) note(a *actual) {
	st.links[a.index], st.byName[a.name] = a, a
	if roleOf(a.tag) != "" {
		st.byTag[plainTag(a.tag)] = a
	}
}

// forget removes an interface from the indexes.
func (st *state) forget(a *actual) {
	delete(st.links, a.index)
	delete(st.byName, a.name)
	if st.byTag[plainTag(a.tag)] == a {
		delete(st.byTag, plainTag(a.tag))
	}
	delete(st.natOutput, a.index)
	delete(st.natAddress, a.index)
	delete(st.natVXLAN, a.index)
}

// read returns the state of VPP.
func (c *client) read(ctx context.Context, s *session) (*state, error) {
	st := &state{
		links:      map[uint32]*actual{},
		byTag:      map[string]*actual{},
		byName:     map[string]*actual{},
		tables:     map[tableID]string{},
		domains:    map[uint32]actualDomain{},
		strays:     map[uint32]map[netip.Addr]mac{},
		routes:     map[place]path{},
		natOutput:  map[uint32]bool{},
		natAddress: map[uint32]bool{},
		natVXLAN:   map[uint32]bool{},
	}
	requests := []api.Message{
		&interfaces.SwInterfaceDump{SwIfIndex: interface_types.InterfaceIndex(none)},
		&vxlan.VxlanTunnelV2Dump{SwIfIndex: interface_types.InterfaceIndex(none)},
		&fib.FibSourceDump{},
		&ip.IPTableDump{},
		&l2.BridgeDomainDump{BdID: none, SwIfIndex: interface_types.InterfaceIndex(none)},
		&ip.IPUnnumberedDump{SwIfIndex: interface_types.InterfaceIndex(none)},
		&ip_neighbor.IPNeighborDump{SwIfIndex: interface_types.InterfaceIndex(none), Af: ip_types.ADDRESS_IP4},
		&ip_neighbor.IPNeighborDump{SwIfIndex: interface_types.InterfaceIndex(none), Af: ip_types.ADDRESS_IP6},
	}
	if st.natPlugin = s.knows(&nat44_ed.Nat44ShowRunningConfig{}); st.natPlugin {
		requests = append(requests,
			&nat44_ed.Nat44ShowRunningConfig{},
			&nat44_ed.Nat44EdOutputInterfaceGet{},
			&nat44_ed.Nat44InterfaceAddrDump{},
			&nat44_ed.Nat44IdentityMappingDump{},
		)
	}
	if err := c.dump(ctx, s, requests, st.add); err != nil {
		return nil, err
	}
	return st, c.readDetails(ctx, s, st)
}

// readDetails adds what VPP tells of one interface, domain or table at a time.
func (c *client) readDetails(ctx context.Context, s *session, st *state) error {
	var requests []api.Message
	var asked []*actual
	for _, a := range st.links {
		if !a.own() {
			continue
		}
		index := interface_types.InterfaceIndex(a.index)
		asked = append(asked, a)
		requests = append(requests,
			&interfaces.SwInterfaceGetTable{SwIfIndex: index},
			&interfaces.SwInterfaceGetTable{SwIfIndex: index, IsIPv6: true},
			&ip.IPAddressDump{SwIfIndex: index},
			&ip.IPAddressDump{SwIfIndex: index, IsIPv6: true},
		)
	}
	for id, d := range st.domains {
		if roleOf(d.tag) != "" {
			requests = append(requests, &l2.L2FibTableDump{BdID: id})
		}
	}
	if st.source != 0 {
		for t := range st.tables {
			requests = append(requests, &ip.IPRouteV2Dump{
				Src:   st.source,
				Table: ip.IPTable{TableID: t.id, IsIP6: t.six},
			})
		}
	}
	answers := 0
	return c.dump(ctx, s, requests, func(m api.Message) {
		if t, ok := m.(*interfaces.SwInterfaceGetTableReply); ok {
			if answers/2 < len(asked) {
				asked[answers/2].tables[answers%2] = t.VrfID
			}
			answers++
			return
		}
		st.add(m)
	})
}

// add adds an object of a dump.
func (st *state) add(m api.Message) {
	switch m := m.(type) {
	case *interfaces.SwInterfaceDetails:
		st.note(&actual{
			index:      uint32(m.SwIfIndex),
			name:       m.InterfaceName,
			device:     m.InterfaceDevType,
			tag:        m.Tag,
			mac:        m.L2Address,
			up:         m.Flags&interface_types.IF_STATUS_API_FLAG_ADMIN_UP != 0,
			mtu:        firstOf(m.Mtu),
			addresses:  map[netip.Prefix]bool{},
			lender:     none,
			neighbours: map[netip.Addr]mac{},
			macs:       map[mac]bool{},
		})
	case *vxlan.VxlanTunnelV2Details:
		if a := st.links[uint32(m.SwIfIndex)]; a != nil {
			a.tunnel = tunnelEnds{addrOf(m.SrcAddress), addrOf(m.DstAddress), m.Vni}
		}
	case *fib.FibSourceDetails:
		if strings.TrimRight(m.Src.Name, "\x00") == sourceName {
			st.source = m.Src.ID
		}
	case *ip.IPTableDetails:
		st.tables[tableID{m.Table.TableID, m.Table.IsIP6}] = m.Table.Name
	case *l2.BridgeDomainDetails:
		st.domains[m.BdID] = actualDomain{tag: m.BdTag, learn: m.Learn}
		for _, port := range m.SwIfDetails {
			if a := st.links[uint32(port.SwIfIndex)]; a != nil {
				a.domain, a.bvi = m.BdID, port.SwIfIndex == m.BviSwIfIndex
			}
		}
	case *ip.IPUnnumberedDetails:
		if a := st.links[uint32(m.SwIfIndex)]; a != nil {
			a.lender = uint32(m.IPSwIfIndex)
		}
	case *ip.IPAddressDetails:
		a := st.links[uint32(m.SwIfIndex)]
		if p := prefixOf(m.Prefix); a != nil && (p.Addr().Is4() || !p.Addr().IsLinkLocalUnicast()) {
			a.addresses[p] = true
		}
	case *ip_neighbor.IPNeighborDetails:
		if m.Neighbor.Flags&ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC != 0 {
			st.neighboursOf(uint32(m.Neighbor.SwIfIndex))[addrOf(m.Neighbor.IPAddress)] = m.Neighbor.MacAddress
		}
	case *l2.L2FibTableDetails:
		if a := st.links[uint32(m.SwIfIndex)]; a != nil && m.StaticMac && !m.BviMac {
			a.macs[m.Mac] = true
		}
	case *ip.IPRouteV2Details:
		st.routes[place{m.Route.TableID, prefixOf(ip_types.AddressWithPrefix(m.Route.Prefix))}] = pathOf(m.Route)
	default:
		st.addNAT(m)
	}
}

// neighboursOf returns the neighbours of an interface, also of one that is gone.
func (st *state) neighboursOf(index uint32) map[netip.Addr]mac {
	if a := st.links[index]; a != nil {
		return a.neighbours
	}
	if st.strays[index] == nil {
		st.strays[index] = map[netip.Addr]mac{}
	}
	return st.strays[index]
}

// addNAT adds an object of the dumps of the NAT plugin.
func (st *state) addNAT(m api.Message) {
	switch m := m.(type) {
	case *nat44_ed.Nat44ShowRunningConfigReply:
		// The number of sessions is 0 while the plugin is disabled.
		st.natEnabled, st.natForward = m.Sessions != 0, m.ForwardingEnabled
	case *nat44_ed.Nat44EdOutputInterfaceDetails:
		st.natOutput[uint32(m.SwIfIndex)] = true
	case *nat44_ed.Nat44InterfaceAddrDetails:
		st.natAddress[uint32(m.SwIfIndex)] = true
	case *nat44_ed.Nat44IdentityMappingDetails:
		if m.Protocol == protocolUDP && m.Port == vxlanPort {
			st.natVXLAN[uint32(m.SwIfIndex)] = true
		}
	}
}

// pathOf returns the way of a route.
func pathOf(r ip.IPRouteV2) path {
	if len(r.Paths) != 1 {
		return path{other: true}
	}
	p := r.Paths[0]
	way := path{index: p.SwIfIndex}
	if p.SwIfIndex == none {
		way.into = p.TableID
	}
	switch p.Type {
	case fib_types.FIB_API_PATH_TYPE_DROP:
		return path{index: none, drop: true}
	case fib_types.FIB_API_PATH_TYPE_ICMP_UNREACH:
		return path{index: none, unreachable: true}
	case fib_types.FIB_API_PATH_TYPE_NORMAL:
		if r.Prefix.Address.Af == ip_types.ADDRESS_IP6 {
			way.via = netip.AddrFrom16(p.Nh.Address.GetIP6())
		} else {
			way.via = netip.AddrFrom4(p.Nh.Address.GetIP4())
		}
		if way.via.IsUnspecified() {
			way.via = netip.Addr{}
		}
		return way
	}
	return path{other: true}
}

func firstOf(mtu []uint32) uint32 {
	if len(mtu) == 0 {
		return 0
	}
	return mtu[0]
}

// addrOf and its like translate addresses from and to VPP's form.
func addrOf(a ip_types.Address) netip.Addr {
	if a.Af == ip_types.ADDRESS_IP6 {
		return netip.AddrFrom16(a.Un.GetIP6())
	}
	return netip.AddrFrom4(a.Un.GetIP4())
}

func prefixOf(p ip_types.AddressWithPrefix) netip.Prefix {
	return netip.PrefixFrom(addrOf(p.Address), int(p.Len))
}

func vppAddr(a netip.Addr) (v ip_types.Address) {
	if a.Is4() {
		v.Af = ip_types.ADDRESS_IP4
		v.Un.SetIP4(a.As4())
		return v
	}
	v.Af = ip_types.ADDRESS_IP6
	v.Un.SetIP6(a.As16())
	return v
}

func vppPrefix(p netip.Prefix) ip_types.Prefix {
	return ip_types.Prefix{Address: vppAddr(p.Addr()), Len: uint8(p.Bits())}
}
