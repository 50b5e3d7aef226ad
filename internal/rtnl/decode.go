// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Here as the ID of a namespace stands for the one that the socket belongs to.
const Here int32 = -1

// Attributes that golang.org/x/sys/unix lacks.
const (
	ifaProtocol = 11 // IFA_PROTO
	ndaProtocol = 12 // NDA_PROTOCOL
)

// Link is a link as the kernel shows it. Its slices are parts of the message.
type Link struct {
	Index, Flags, Change uint32 // Flags has IFF_UP and others, Change those that an announcement is about
	Name, Alias, Kind    string
	MAC                  []byte
	Group, MTU, Master   uint32
	Lower                uint32 // index of the other end of a pair, or of the link below
	Away                 bool   // that link is in another namespace
	LowerNSID            int32  // of that namespace, as the socket's namespace numbers it; Here if it has no number
	Target               int32  // the namespace that the link is in, if the request named one; Here
	Promiscuous          bool
	Info, Spec           []byte // attributes of IFLA_INFO_DATA and of IFLA_AF_SPEC
}

// DecodeLink reads an ifinfomsg.
func DecodeLink(b []byte) (l Link, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, short("link", b, unix.SizeofIfInfomsg)
	}
	l = Link{
		Index:     binary.NativeEndian.Uint32(b[4:]),
		Flags:     binary.NativeEndian.Uint32(b[8:]),
		Change:    binary.NativeEndian.Uint32(b[12:]),
		LowerNSID: Here,
		Target:    Here,
	}
	Attributes(b[unix.SizeofIfInfomsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = Text(v)
		case unix.IFLA_IFALIAS:
			l.Alias = Text(v)
		case unix.IFLA_ADDRESS:
			l.MAC = v
		case unix.IFLA_GROUP:
			l.Group = Number(v)
		case unix.IFLA_MTU:
			l.MTU = Number(v)
		case unix.IFLA_MASTER:
			l.Master = Number(v)
		case unix.IFLA_LINK:
			l.Lower = Number(v)
		case unix.IFLA_LINK_NETNSID:
			l.Away, l.LowerNSID = true, int32(Number(v))
		case unix.IFLA_TARGET_NETNSID:
			l.Target = int32(Number(v))
		case unix.IFLA_PROMISCUITY:
			l.Promiscuous = Number(v) > 0
		case unix.IFLA_AF_SPEC:
			l.Spec = v
		case unix.IFLA_LINKINFO:
			Attributes(v, func(kind uint16, v []byte) {
				switch kind {
				case unix.IFLA_INFO_KIND:
					l.Kind = Text(v)
				case unix.IFLA_INFO_DATA:
					l.Info = v
				}
			})
		}
	})
	return l, nil
}

// Address is an address of a link.
type Address struct {
	Link     uint32
	Prefix   netip.Prefix // of a link with two ends, of this one
	Flags    uint32       // IFA_F_PERMANENT and others
	Scope    byte
	Protocol byte  // who has added it, since Linux 5.18
	Target   int32 // the namespace that the link is in, if the request named one; Here
}

// DecodeAddress reads an ifaddrmsg.
func DecodeAddress(b []byte) (a Address, err error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return a, short("address", b, unix.SizeofIfAddrmsg)
	}
	a = Address{Link: binary.NativeEndian.Uint32(b[4:]), Flags: uint32(b[2]), Scope: b[3], Target: Here}
	var local, address netip.Addr
	Attributes(b[unix.SizeofIfAddrmsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS: // of a link with two ends: the other end, beside IFA_LOCAL
			address, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS:
			a.Flags = Number(v)
		case ifaProtocol:
			a.Protocol = first(v)
		case unix.IFA_TARGET_NETNSID:
			a.Target = int32(Number(v))
		}
	})
	if !local.IsValid() {
		local = address
	}
	if a.Prefix = netip.PrefixFrom(local, int(b[1])); !a.Prefix.IsValid() {
		return a, fmt.Errorf("link %d has an address that cannot be decoded: %x", a.Link, b)
	}
	return a, nil
}

// Neighbour is an entry of the ARP or ND cache, or with the family AF_BRIDGE one of forwarding.
type Neighbour struct {
	Family   byte
	Link     uint32
	State    uint16 // NUD_PERMANENT and others
	Flags    byte   // NTF_PROXY and others
	Addr     netip.Addr
	MAC      []byte // a part of the message
	Protocol byte   // who has added it
}

// DecodeNeighbour reads an ndmsg.
func DecodeNeighbour(b []byte) (n Neighbour, err error) {
	if len(b) < unix.SizeofNdMsg {
		return n, short("neighbour", b, unix.SizeofNdMsg)
	}
	n = Neighbour{
		Family: b[0],
		Link:   binary.NativeEndian.Uint32(b[4:]),
		State:  binary.NativeEndian.Uint16(b[8:]),
		Flags:  b[10],
	}
	Attributes(b[unix.SizeofNdMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			n.MAC = v
		case ndaProtocol:
			n.Protocol = first(v)
		}
	})
	return n, nil
}

// Route is a route, with all next hops that the kernel shows as one.
type Route struct {
	Family, TOS, Protocol, Scope, Type byte
	Dst                                netip.Prefix // a default route has no bits
	Table                              uint32
	Flags                              uint32 // RTM_F_CLONED, RTNH_F_ONLINK and others
	Metric                             uint32
	Source                             netip.Addr // preferred; zero: none
	Hop                                           // the only one
	Hops                               []Hop      // of several
	// More means that the route has attributes beside these, such as an MTU.
	More bool
}

// Hop is a next hop.
type Hop struct {
	Link    uint32     // 0: none
	Gateway netip.Addr // zero: the destination is on the link
	Onlink  bool       // the gateway is on the link, whatever the routes say
}

// DecodeRoute reads an rtmsg.
func DecodeRoute(b []byte) (r Route, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, short("route", b, unix.SizeofRtMsg)
	}
	r = Route{
		Family:   b[0],
		TOS:      b[3],
		Table:    uint32(b[4]),
		Protocol: b[5],
		Scope:    b[6],
		Type:     b[7],
		Flags:    binary.NativeEndian.Uint32(b[8:]),
	}
	var dst []byte
	r.Onlink = r.Flags&unix.RTNH_F_ONLINK != 0
	Attributes(b[unix.SizeofRtMsg:], func(kind uint16, v []byte) {
		switch kind {
		case unix.RTA_DST:
			dst = v
		case unix.RTA_TABLE:
			r.Table = Number(v)
		case unix.RTA_PRIORITY:
			r.Metric = Number(v)
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(v)
		case unix.RTA_MULTIPATH:
			r.Hops = decodeHops(v)
		case unix.RTA_CACHEINFO: // state
		case unix.RTA_PREF:
			r.More = r.More || first(v) != 0
		default:
			r.More = !r.attribute(kind, v) || r.More
		}
	})
	if r.Dst = prefix(r.Family, b[1], dst); !r.Dst.IsValid() {
		return r, fmt.Errorf("a route has a destination that cannot be decoded: %x", b)
	}
	return r, nil
}

// attribute reads an attribute of a next hop, and reports whether it is one.
func (h *Hop) attribute(kind uint16, v []byte) bool {
	switch kind {
	case unix.RTA_GATEWAY:
		h.Gateway, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA: // a gateway of the other family, after two bytes with the family
		if len(v) > 2 {
			h.Gateway, _ = netip.AddrFromSlice(v[2:])
		}
	case unix.RTA_OIF:
		h.Link = Number(v)
	default:
		return false
	}
	return true
}

// decodeHops reads the next hops of a route with several ones.
func decodeHops(b []byte) (all []Hop) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			break
		}
		h := Hop{Link: binary.NativeEndian.Uint32(b[4:]), Onlink: b[2]&unix.RTNH_F_ONLINK != 0}
		Attributes(b[unix.SizeofRtNexthop:size], func(kind uint16, v []byte) { h.attribute(kind, v) })
		all = append(all, h)
		b = b[min(aligned(size), len(b)):]
	}
	return all
}

// Rule is a rule that selects a routing table.
type Rule struct {
	Family           byte
	Src, Dst         netip.Prefix // without bits: all
	Table            uint32
	Action, Protocol byte
	Priority         uint32
	In               string // the link that the packet arrives through; "": any
	Mark, Mask       uint32
	// Suppress is the longest prefix whose routes do not count, AllRoutes if all do.
	// SuppressGroup is the group of the links whose routes do not count, AllRoutes if all do.
	Suppress, SuppressGroup uint32
}

// AllRoutes as a limit of a Rule means that each route of the table counts.
const AllRoutes = 1<<32 - 1

const sizeofFibRule = 12 // struct fib_rule_hdr

// DecodeRule reads a fib_rule_hdr.
func DecodeRule(b []byte) (r Rule, err error) {
	if len(b) < sizeofFibRule {
		return r, short("rule", b, sizeofFibRule)
	}
	r = Rule{Family: b[0], Table: uint32(b[4]), Action: b[7], Suppress: AllRoutes, SuppressGroup: AllRoutes}
	var src, dst []byte
	Attributes(b[sizeofFibRule:], func(kind uint16, v []byte) {
		switch kind {
		case unix.FRA_SRC:
			src = v
		case unix.FRA_DST:
			dst = v
		case unix.FRA_IIFNAME:
			r.In = Text(v)
		case unix.FRA_TABLE:
			r.Table = Number(v)
		case unix.FRA_PROTOCOL:
			r.Protocol = first(v)
		case unix.FRA_PRIORITY:
			r.Priority = Number(v)
		case unix.FRA_FWMARK:
			r.Mark = Number(v)
		case unix.FRA_FWMASK:
			r.Mask = Number(v)
		case unix.FRA_SUPPRESS_PREFIXLEN:
			r.Suppress = Number(v)
		case unix.FRA_SUPPRESS_IFGROUP:
			r.SuppressGroup = Number(v)
		}
	})
	r.Src, r.Dst = prefix(r.Family, b[2], src), prefix(r.Family, b[1], dst)
	if !r.Src.IsValid() || !r.Dst.IsValid() {
		return r, fmt.Errorf("a rule has a prefix that cannot be decoded: %x", b)
	}
	return r, nil
}

// prefix returns a prefix of a family. The kernel leaves out the address of a prefix without
// bits. If the address does not fit the family, or is missing, the prefix is not valid.
func prefix(family, bits byte, address []byte) netip.Prefix {
	a, _ := netip.AddrFromSlice(address)
	switch {
	case address == nil && bits == 0 && family == unix.AF_INET6:
		a = netip.IPv6Unspecified()
	case address == nil && bits == 0:
		a = netip.IPv4Unspecified()
	case family == unix.AF_INET6 && !a.Is6(), family == unix.AF_INET && !a.Is4():
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, int(bits))
}

// short returns the error of a message that is shorter than its header.
func short(what string, b []byte, want int) error {
	return fmt.Errorf("a message about a %s has %d bytes, less than %d", what, len(b), want)
}

// first returns the value of an attribute of one byte, 0 if it is empty.
func first(v []byte) byte {
	if len(v) == 0 {
		return 0
	}
	return v[0]
}
