// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

const (
	// aliasPrefix begins the ifalias of our links; the key of the value follows.
	aliasPrefix = "cadastre:"
	// wireGroup is the group of wires, which marks them until they have their alias.
	wireGroup = 0x0CAD0001
	// detachedGroup is the group of wires that have no value any more.
	detachedGroup = 0x0CAD0002
	// sweptGroup is the group that one request removes.
	sweptGroup = 0x0CAD0003
	// vethKind is the kind of both ends of a wire.
	vethKind = "veth"
	// vethPeer is the attribute that describes the other end (VETH_INFO_PEER).
	vethPeer = 1
	// inetConf is IFLA_INET_CONF; its attributes are numbered like the kernel's settings.
	inetConf       = 1
	inetConfFilter = 8         // IPV4_DEVCONF_RP_FILTER
	inet6Generate  = 8         // IFLA_INET6_ADDR_GEN_MODE
	generateNone   = 1         // IN6_ADDR_GEN_MODE_NONE
	everything     = 1<<32 - 1 // what has changed of a link that is new
)

// skipStatistics (RTEXT_FILTER_SKIP_STATS) leaves out the counters, two thirds of a message.
const skipStatistics = 1 << 3

// linkID identifies a link to the kernel: most requests need the index, rules the name.
type linkID struct {
	index uint32
	name  string
}

// hostLink holds the state of a link.
type hostLink struct {
	linkID
	alias    string
	group    uint32
	mtu      uint32
	mac      hardware
	up       bool
	turned   bool   // an announcement: the link went up or down, or is new or gone
	wentDown bool   // an announcement: the link was set down
	filter   uint32 // rp_filter
	routers  bool   // it obeys router advertisements
	accepts  bool   // its setting says so, which does not count on a router
	generate bool   // the kernel gives it a link-local address
	peer     uint32 // index of the other end
	master   uint32 // index of the bridge or bond that it is a port of
	peerNSID int32  // of the namespace of the other end, as the socket's namespace numbers it
	kind     string
	vxlan    vxlanForm // of a link of that kind
	takesAll bool      // packets to each MAC address
}

// key returns the key of the value that the link belongs to, "" if the link is not ours or
// has no alias yet.
func (l hostLink) key() string {
	key, ours := strings.CutPrefix(l.alias, aliasPrefix)
	if !ours || l.kind != vethKind {
		return ""
	}
	return key
}

// ours reports whether the link is a wire of ours, maybe one that is half made.
func (l hostLink) ours() bool {
	halfMade := l.alias == "" && l.kind == vethKind && l.group == wireGroup && strings.HasPrefix(l.name, wirePrefix)
	return halfMade || l.key() != ""
}

// detached reports whether the wire has no value any more.
func (l hostLink) detached() bool { return l.group == detachedGroup || l.group == sweptGroup }

// ifinfo returns the header of a message about a link; change has the flags to set.
func ifinfo(index, flags, change uint32) rtnl.Message {
	m := make(rtnl.Message, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(m[4:], index)
	binary.NativeEndian.PutUint32(m[8:], flags)
	binary.NativeEndian.PutUint32(m[12:], change)
	return m
}

// parseLink reads an ifinfomsg.
func parseLink(b []byte) (hostLink, bool) {
	l, err := rtnl.DecodeLink(b)
	turned := l.Change&unix.IFF_UP != 0
	link := hostLink{
		linkID:   linkID{l.Index, l.Name},
		alias:    l.Alias,
		group:    l.Group,
		mtu:      l.MTU,
		up:       l.Flags&unix.IFF_UP != 0,
		turned:   turned,
		wentDown: l.Flags&unix.IFF_UP == 0 && turned && l.Change != everything,
		peer:     l.Lower,
		master:   l.Master,
		peerNSID: l.LowerNSID,
		kind:     l.Kind,
		takesAll: l.Promiscuous,
	}
	copy(link.mac[:], l.MAC)
	if l.Kind == vxlanKind {
		link.vxlan = parseVXLAN(l.Info)
	}
	rtnl.Attributes(l.Spec, func(family uint16, v []byte) {
		rtnl.Attributes(v, func(kind uint16, v []byte) {
			switch {
			case family == unix.AF_INET && kind == inetConf && len(v) >= 4*inetConfFilter:
				link.filter = rtnl.Number(v[4*(inetConfFilter-1):]) // the first entry has number 1
			case family == unix.AF_INET6 && kind == inet6Conf && len(v) >= 4*(inet6GenMode+1):
				accept := rtnl.Number(v[4*inet6AcceptRA:])
				link.routers = obeysRouters(accept, rtnl.Number(v[4*inet6Forwarding:]))
				link.accepts = accept != 0
				link.generate = rtnl.Number(v[4*inet6GenMode:]) != generateNone
			}
		})
	})
	return link, err == nil
}

// makeLink makes a link, and returns its state.
func makeLink(s *rtnl.Socket, what, name string, body rtnl.Message) (link hostLink, err error) {
	r := &rtnl.Request{
		What:  what,
		Kind:  unix.RTM_NEWLINK,
		Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_ECHO,
		Body:  body,
		Each: func(kind uint16, b []byte) {
			if kind == unix.RTM_NEWLINK {
				link, _ = parseLink(b)
			}
		},
	}
	if err := s.Run([]*rtnl.Request{r}); err != nil {
		return hostLink{}, err
	}
	if link.name != name || link.kind == vethKind && link.peer == 0 { // kernels before 6.2 do not echo links
		var found bool
		link, found, err = getLink(s, name)
		if err == nil && !found {
			err = fmt.Errorf("%s: another program removed it at once", what)
		}
	}
	return link, err
}

// removeLink removes a link, and the other end of a pair. A missing one is not an error.
func removeLink(s *rtnl.Socket, link hostLink) error {
	return s.Run([]*rtnl.Request{{
		What:  "remove link " + link.name,
		Kind:  unix.RTM_DELLINK,
		Body:  ifinfo(link.index, 0, 0),
		Allow: []unix.Errno{unix.ENODEV},
	}})
}

// getLink returns the link of a name.
func getLink(s *rtnl.Socket, name string) (l hostLink, found bool, err error) {
	r := &rtnl.Request{
		What:  fmt.Sprintf("get link %q", name),
		Kind:  unix.RTM_GETLINK,
		Allow: []unix.Errno{unix.ENODEV},
		Body:  ifinfo(0, 0, 0).Text(unix.IFLA_IFNAME, name).U32(unix.IFLA_EXT_MASK, skipStatistics),
		Each: func(kind uint16, b []byte) {
			if kind == unix.RTM_NEWLINK {
				l, found = parseLink(b)
			}
		},
	}
	return l, found, s.Run([]*rtnl.Request{r})
}

// listLinks returns the links of a kind in the socket's namespace, "" for all kinds.
func listLinks(s *rtnl.Socket, kind string) (all []hostLink, err error) {
	body := ifinfo(0, 0, 0).U32(unix.IFLA_EXT_MASK, skipStatistics)
	if kind != "" {
		body = body.Nest(unix.IFLA_LINKINFO, rtnl.Message(nil).Text(unix.IFLA_INFO_KIND, kind))
	}
	err = s.Dump("links", unix.RTM_GETLINK, body, func() { all = nil }, func(b []byte) {
		if l, ok := parseLink(b); ok && (kind == "" || l.kind == kind) {
			all = append(all, l)
		}
	})
	return all, err
}

// changeLink returns a request that changes a link.
func changeLink(what string, index, flags, change uint32, attributes rtnl.Message) *rtnl.Request {
	return &rtnl.Request{
		What: what,
		Kind: unix.RTM_NEWLINK,
		Body: append(ifinfo(index, flags, change), attributes...),
	}
}
