// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
)

// ownProtocol marks routes, rules, neighbours and, since Linux 5.18, addresses of ours.
const ownProtocol = 0xCA

// Attributes and flags that golang.org/x/sys/unix lacks.
const (
	ifaProtocol     = 11    // IFA_PROTO
	ifaNoPrefix     = 0x200 // IFA_F_NOPREFIXROUTE
	ndaProtocol     = 12    // NDA_PROTOCOL
	routeMetric6    = 1024  // the kernel sets it for IPv6 routes without a metric
	sizeofNeighbour = 12
)

// objectKind distinguishes the objects of a link.
type objectKind uint8

const (
	addressObject    objectKind = iota + 1
	neighbourObject             // permanent
	routeObject                 // through the link
	closedObject                // a blackhole route of the last metric, of no link
	rejectObject                // an unreachable route of the last metric, of no link
	ruleObject                  // of packets that arrive through the link
	sourceObject                // a rule of packets from an address, of no link
	podsObject                  // the rule of packets to pods of this node, of no link
	replyObject                 // the rule of replies to connections to the node, of no link
	localObject                 // the rule of packets to a network of another program on the node, of no link
	proxyObject                 // a neighbour that the node answers for on the link
	forwardingObject            // a permanent entry of a VXLAN link: the node that has a MAC address
)

// hardware is an Ethernet address.
type hardware [6]byte

func (h hardware) String() string { return net.HardwareAddr(h[:]).String() }

// object holds one object of the kernel that belongs to a link. Its fields are those that
// identify it, so two objects are equal if they are the same object in the same state.
type object struct {
	kind    objectKind
	prefix  netip.Prefix // address, destination, source, node; other rules have the default route of their family
	gateway netip.Addr   // of a route; zero: the destination is on the link
	mac     hardware     // of a neighbour, or forwarded
	table   uint32       // of a route or rule; 0: the rule rejects the packet
	routed  bool         // of an address: the kernel has a route to its prefix
	odd     bool         // in a form that no descriptor of this package makes, so no wanted object is
}

// last reports whether the object is a route for packets that no other route takes.
func (o object) last() bool { return o.kind == closedObject || o.kind == rejectObject }

// objects is a set.
type objects map[object]bool

func (o object) String() string {
	switch o.kind {
	case addressObject:
		return "address " + o.prefix.String()
	case neighbourObject:
		return fmt.Sprintf("neighbour %s at %s", o.prefix.Addr(), o.mac)
	case forwardingObject:
		return fmt.Sprintf("forwarding of %s to %s", o.mac, o.prefix.Addr())
	case ruleObject, sourceObject, podsObject, replyObject, localObject:
		return o.ruleText()
	case proxyObject:
		return "proxy neighbour " + o.prefix.Addr().String()
	}
	text := "route " + o.prefix.String()
	switch o.kind {
	case closedObject:
		text = "blackhole " + text
	case rejectObject:
		text = "unreachable " + text
	}
	if o.gateway.IsValid() {
		text += " via " + o.gateway.String()
	}
	if o.table != unix.RT_TABLE_MAIN {
		text += fmt.Sprintf(" table %d", o.table)
	}
	return text
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// add returns the request that makes the object. It succeeds if the object is there.
func (o object) add(link linkID) *rtnl.Request {
	r := &rtnl.Request{
		What:  "add " + o.String(),
		Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL,
		Allow: []unix.Errno{unix.EEXIST},
		Body:  o.body(link),
	}
	switch o.kind {
	case addressObject:
		r.Kind = unix.RTM_NEWADDR
	case neighbourObject, forwardingObject:
		r.Kind, r.Flags = unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE
	case routeObject, closedObject, rejectObject:
		r.Kind, r.Allow = unix.RTM_NEWROUTE, nil // the route that is there may be a foreign one
	case ruleObject, sourceObject, podsObject, replyObject, localObject:
		r.Kind = unix.RTM_NEWRULE
	case proxyObject:
		r.Kind, r.Flags = unix.RTM_NEWNEIGH, unix.NLM_F_CREATE
	}
	return r
}

// remove returns the request that removes the object. It succeeds if there is none.
func (o object) remove(link linkID) *rtnl.Request {
	r := &rtnl.Request{
		What:  "remove " + o.String(),
		Allow: []unix.Errno{unix.ESRCH, unix.ENOENT, unix.EADDRNOTAVAIL, unix.ENODEV},
		Body:  o.body(link),
	}
	switch o.kind {
	case addressObject:
		r.Kind = unix.RTM_DELADDR
	case neighbourObject, proxyObject, forwardingObject:
		r.Kind = unix.RTM_DELNEIGH
	case routeObject, closedObject, rejectObject:
		r.Kind = unix.RTM_DELROUTE
	case ruleObject, sourceObject, podsObject, replyObject, localObject:
		r.Kind = unix.RTM_DELRULE
	}
	return r
}

func (o object) body(link linkID) rtnl.Message {
	address := o.prefix.Addr().AsSlice()
	family := familyOf(o.prefix.Addr())
	switch o.kind {
	case addressObject:
		m := make(rtnl.Message, unix.SizeofIfAddrmsg)
		m[0], m[1] = family, byte(o.prefix.Bits())
		binary.NativeEndian.PutUint32(m[4:], link.index)
		m = m.Attr(unix.IFA_LOCAL, address).Attr(unix.IFA_ADDRESS, address)
		flags := uint32(unix.IFA_F_NODAD | unix.IFA_F_PERMANENT)
		if !o.routed {
			flags |= ifaNoPrefix
		}
		return m.U32(unix.IFA_FLAGS, flags).U8(ifaProtocol, ownProtocol)
	case neighbourObject:
		m := make(rtnl.Message, sizeofNeighbour)
		m[0] = family
		binary.NativeEndian.PutUint32(m[4:], link.index)
		binary.NativeEndian.PutUint16(m[8:], unix.NUD_PERMANENT)
		return m.Attr(unix.NDA_DST, address).Attr(unix.NDA_LLADDR, o.mac[:]).U8(ndaProtocol, ownProtocol)
	case forwardingObject:
		m := make(rtnl.Message, sizeofNeighbour)
		m[0], m[10] = unix.AF_BRIDGE, unix.NTF_SELF
		binary.NativeEndian.PutUint32(m[4:], link.index)
		binary.NativeEndian.PutUint16(m[8:], unix.NUD_PERMANENT|unix.NUD_NOARP)
		return m.Attr(unix.NDA_DST, address).Attr(unix.NDA_LLADDR, o.mac[:])
	case ruleObject, sourceObject, podsObject, replyObject, localObject:
		return o.ruleBody(link)
	case proxyObject:
		return o.proxyBody(link)
	}
	return o.route(link)
}

func (o object) route(link linkID) rtnl.Message {
	m := make(rtnl.Message, unix.SizeofRtMsg)
	m[0], m[1] = familyOf(o.prefix.Addr()), byte(o.prefix.Bits())
	m[5], m[6], m[7] = ownProtocol, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	switch o.kind {
	case closedObject:
		m[7] = unix.RTN_BLACKHOLE
	case rejectObject:
		m[7] = unix.RTN_UNREACHABLE
	default:
		m = m.U32(unix.RTA_OIF, link.index)
		if !o.gateway.IsValid() {
			m[6] = unix.RT_SCOPE_LINK
		}
	}
	m = m.U32(unix.RTA_TABLE, o.table)
	if o.prefix.Bits() > 0 {
		m = m.Attr(unix.RTA_DST, o.prefix.Addr().AsSlice())
	}
	if o.gateway.IsValid() {
		// In IPv6 the flag makes the kernel look for the gateway in the main table, where its
		// subnet may be on another link. Without it the kernel looks in the route's table.
		if o.prefix.Addr().Is4() || !kv.IsUplinkTable(o.table) {
			binary.NativeEndian.PutUint32(m[8:], unix.RTNH_F_ONLINK)
		}
		m = m.Attr(unix.RTA_GATEWAY, o.gateway.AsSlice())
	}
	switch {
	case o.last():
		m = m.U32(unix.RTA_PRIORITY, lastMetric)
	case o.prefix.Addr().Is6():
		m = m.U32(unix.RTA_PRIORITY, routeMetric6)
	}
	return m
}

// parsed is an object of a dump.
type parsed struct {
	object
	index uint32 // of its link
	name  string // of the link of a rule
	ours  bool   // it has our mark

	protocol byte   // of a route
	form     byte   // of a route: unicast, unreachable, ...
	position uint32 // of a rule: its priority
}

// parseAddress reads an ifaddrmsg.
func parseAddress(b []byte) (p parsed, ok bool) {
	a, err := rtnl.DecodeAddress(b)
	p.kind, p.index, p.prefix, p.ours = addressObject, a.Link, a.Prefix, a.Protocol == ownProtocol
	p.routed = a.Flags&ifaNoPrefix == 0
	p.odd = a.Flags&unix.IFA_F_PERMANENT == 0 || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	return p, err == nil && a.Scope != unix.RT_SCOPE_LINK
}

// parseNeighbour reads an ndmsg.
func parseNeighbour(b []byte) (p parsed, ok bool) {
	n, err := rtnl.DecodeNeighbour(b)
	p.kind, p.index, p.ours = neighbourObject, n.Link, n.Protocol == ownProtocol
	if n.Addr.IsValid() {
		p.prefix = netip.PrefixFrom(n.Addr, n.Addr.BitLen())
	}
	if n.Family == unix.AF_BRIDGE {
		p.kind = forwardingObject
	}
	if n.Flags&proxyFlag != 0 {
		p.kind = proxyObject
	} else {
		copy(p.mac[:], n.MAC)
	}
	return p, err == nil && n.State&unix.NUD_PERMANENT != 0 && n.Addr.IsValid()
}

// parseRoute reads an rtmsg.
func parseRoute(b []byte) (p parsed, ok bool) {
	r, err := rtnl.DecodeRoute(b)
	p = parsed{index: r.Link, ours: r.Protocol == ownProtocol, protocol: r.Protocol, form: r.Type}
	p.object = object{kind: routeObject, prefix: r.Dst, gateway: r.Gateway, table: r.Table}
	crossed := r.Gateway.IsValid() && r.Gateway.Is4() != r.Dst.Addr().Is4()
	ordinary := r.Metric == 0 || r.Metric == routeMetric6 && r.Dst.Addr().Is6()
	switch {
	case r.Type == unix.RTN_BLACKHOLE && r.Metric == lastMetric:
		p.kind, p.index = closedObject, 0
	case r.Type == unix.RTN_UNREACHABLE && r.Metric == lastMetric:
		p.kind, p.index = rejectObject, 0
	default:
		p.odd = r.Type != unix.RTN_UNICAST || r.More || len(r.Hops) > 0 || crossed || !ordinary
	}
	return p, err == nil && (r.Family == unix.AF_INET || r.Family == unix.AF_INET6)
}

// defaultRoute returns the destination of all addresses of a family.
func defaultRoute(family byte) netip.Prefix {
	if family == unix.AF_INET6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
