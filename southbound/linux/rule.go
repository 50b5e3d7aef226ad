// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// Priorities of our rules: behind the rule of the table local, before that of the table
// main. The rules of links are the first ones, so that packets of a custom network never
// reach the routes of other pods.
const (
	rulePriority   = 1000 // of packets that arrive through a link
	podsPriority   = 1100 // to pods of this node
	replyPriority  = 1150 // of replies to connections to the node
	localPriority  = 1180 // to networks of other programs on the node
	sourcePriority = 1200 // from addresses of uplinks
)

// Attributes and actions that golang.org/x/sys/unix lacks.
const (
	sizeofFibRule     = 12
	actionToTable     = 1 // FR_ACT_TO_TBL
	actionUnreachable = 7 // FR_ACT_UNREACHABLE
	ordinaryGroup     = 0 // of links that have no group of their own
)

// ruleBody returns the message of a rule.
func (o object) ruleBody(link linkID) rtnl.Message {
	m := make(rtnl.Message, sizeofFibRule)
	m[0], m[7] = familyOf(o.prefix.Addr()), actionToTable
	priority := uint32(rulePriority)
	switch o.kind {
	case ruleObject:
		m = m.Text(unix.FRA_IIFNAME, link.name)
	case podsObject:
		// A route counts if it leads to one address through a link with a group of its own,
		// as wires are. So one rule serves all pods, their routes stay in the main table, and
		// other routes to single addresses, such as those of DHCP, do not count.
		priority = podsPriority
		m = m.U32(unix.FRA_SUPPRESS_PREFIXLEN, uint32(o.prefix.Addr().BitLen()-1))
		m = m.U32(unix.FRA_SUPPRESS_IFGROUP, ordinaryGroup)
	case replyObject:
		priority = replyPriority
		m = m.U32(unix.FRA_FWMARK, replyMark).U32(unix.FRA_FWMASK, replyMark)
	case localObject:
		// The default route of the main table does not count, so a rule whose network has just
		// gone sends no packet of a pod out of the node's own link.
		priority = localPriority
		m[1] = byte(o.prefix.Bits())
		m = m.Attr(unix.FRA_DST, o.prefix.Addr().AsSlice()).U32(unix.FRA_SUPPRESS_PREFIXLEN, 0)
	case sourceObject:
		priority = sourcePriority
		m[2] = byte(o.prefix.Bits())
		m = m.Attr(unix.FRA_SRC, o.prefix.Addr().AsSlice())
		if o.table == 0 {
			m[7] = actionUnreachable
		}
	}
	if o.table != 0 {
		m = m.U32(unix.FRA_TABLE, o.table)
	}
	return m.U32(unix.FRA_PRIORITY, priority).U8(unix.FRA_PROTOCOL, ownProtocol)
}

// parseRule reads a fib_rule_hdr.
func parseRule(b []byte) (p parsed, ok bool) {
	r, err := rtnl.DecodeRule(b)
	p = parsed{name: r.In, ours: r.Protocol == ownProtocol, position: r.Priority}
	p.kind, p.table, p.prefix = ruleObject, r.Table, defaultRoute(r.Family)
	want := uint32(rulePriority)
	switch {
	case r.Src.Bits() > 0:
		p.prefix = r.Src
	case r.Dst.Bits() > 0:
		p.prefix = r.Dst
	}
	switch {
	case r.In != "":
	case r.Src.Bits() > 0:
		p.kind, want = sourceObject, sourcePriority
		if r.Action == actionUnreachable {
			p.table, r.Action = 0, actionToTable
		}
	case r.Dst.Bits() > 0:
		p.kind, want = localObject, localPriority
		if r.Suppress != 0 {
			want = 0
		}
	case r.Mark == replyMark && r.Mask == replyMark:
		p.kind, want = replyObject, replyPriority
	case r.Suppress == uint32(p.prefix.Addr().BitLen()-1) && r.SuppressGroup == ordinaryGroup:
		p.kind, want = podsObject, podsPriority
	}
	p.odd = r.Priority != want || r.Action != actionToTable
	return p, err == nil && p.ours
}

// removal returns the request that removes a rule of a dump, of whichever form.
func (p parsed) removal() *rtnl.Request {
	r := p.remove(linkID{name: p.name})
	if !p.odd {
		return r
	}
	m := make(rtnl.Message, sizeofFibRule)
	m[0] = familyOf(p.prefix.Addr())
	if p.name != "" {
		m = m.Text(unix.FRA_IIFNAME, p.name)
	}
	if p.kind == sourceObject {
		m[2] = byte(p.prefix.Bits())
		m = m.Attr(unix.FRA_SRC, p.prefix.Addr().AsSlice())
	}
	if p.kind == localObject {
		m[1] = byte(p.prefix.Bits())
		m = m.Attr(unix.FRA_DST, p.prefix.Addr().AsSlice())
	}
	r.Body = m.U32(unix.FRA_PRIORITY, p.position).U8(unix.FRA_PROTOCOL, ownProtocol)
	return r
}

// ruleText describes a rule.
func (o object) ruleText() string {
	family := ""
	if o.prefix.Addr().Is6() {
		family = "IPv6 "
	}
	switch {
	case o.kind == podsObject:
		return family + "rule to the routes of pods"
	case o.kind == localObject:
		return fmt.Sprintf("%srule to network %s of this node", family, o.prefix)
	case o.kind == replyObject:
		return family + "rule of replies to connections to the node"
	case o.kind == ruleObject:
		return fmt.Sprintf("%srule to table %d", family, o.table)
	case o.table == 0:
		return fmt.Sprintf("%srule from %s to nowhere", family, o.prefix.Addr())
	}
	return fmt.Sprintf("%srule from %s to table %d", family, o.prefix.Addr(), o.table)
}

// Proxy neighbours: the node answers for an address on a link.
const proxyFlag = 0x08 // NTF_PROXY

// proxyBody returns the message of a proxy neighbour.
func (o object) proxyBody(link linkID) rtnl.Message {
	m := make(rtnl.Message, sizeofNeighbour)
	m[0], m[10] = familyOf(o.prefix.Addr()), proxyFlag
	binary.NativeEndian.PutUint32(m[4:], link.index)
	binary.NativeEndian.PutUint16(m[8:], unix.NUD_PERMANENT) // it stays while the link has no carrier
	return m.Attr(unix.NDA_DST, o.prefix.Addr().AsSlice()).U8(ndaProtocol, ownProtocol)
}

// listProxies returns the proxy neighbours of families on all links.
func listProxies(s *rtnl.Socket, families ...byte) (all []parsed, err error) {
	for _, family := range families {
		body := make(rtnl.Message, sizeofNeighbour)
		body[0], body[10] = family, proxyFlag
		var found []parsed
		err := s.Dump("proxy neighbours", unix.RTM_GETNEIGH, body, func() { found = nil }, func(b []byte) {
			if p, _ := parseNeighbour(b); p.kind == proxyObject && p.prefix.IsValid() {
				found = append(found, p)
			}
		})
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
