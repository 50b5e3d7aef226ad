// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

// linkObjects holds the objects of a link.
type linkObjects struct {
	all  objects
	ours objects // those with our mark
}

// hasAddress reports whether a link has an address, which may still be unusable.
func (l *linkObjects) hasAddress(p netip.Prefix) bool {
	if l == nil {
		return false
	}
	for o := range l.all {
		if o.kind == addressObject && o.prefix == p {
			return true
		}
	}
	return false
}

// hasAddressIn reports whether a link has an address in a range.
func (l *linkObjects) hasAddressIn(p netip.Prefix) bool {
	if l == nil {
		return false
	}
	for o := range l.all {
		if o.kind == addressObject && p.Contains(o.prefix.Addr()) {
			return true
		}
	}
	return false
}

// difference holds the changes that make the objects of a link those of a plan.
type difference struct{ remove, add, replace []object }

// differences compares wanted objects with those of a link. nil has none. A route or
// neighbour with another gateway or MAC is replaced, not removed.
func (want objects) differences(have *linkObjects) (d difference) {
	if have == nil {
		have = &linkObjects{}
	}
	type place struct {
		kind   objectKind
		prefix netip.Prefix
		table  uint32
	}
	wanted, replaced := map[place]bool{}, map[place]bool{}
	for o := range want {
		wanted[place{o.kind, o.prefix, o.table}] = true
	}
	for o := range have.ours {
		at := place{o.kind, o.prefix, o.table}
		switch {
		case want[o]:
		case wanted[at] && (o.kind == routeObject || o.kind == neighbourObject):
			replaced[at] = true
		default:
			d.remove = append(d.remove, o)
		}
	}
	for o := range want {
		switch {
		case have.all[o]:
		case replaced[place{o.kind, o.prefix, o.table}]:
			d.replace = append(d.replace, o)
		default:
			d.add = append(d.add, o)
		}
	}
	slices.SortFunc(d.remove, compareObjects)
	slices.SortFunc(d.add, compareObjects)
	return d
}

func compareObjects(x, y object) int {
	return cmp.Or(cmp.Compare(x.kind, y.kind), x.prefix.Compare(y.prefix), cmp.Compare(x.table, y.table))
}

// requests returns the requests that make the changes. The removals are last: with the last
// IPv4 address of a link, the kernel removes its routes and neighbours.
func (d difference) requests(link linkID) (all []*rtnl.Request) {
	for _, o := range d.add {
		all = append(all, o.add(link))
	}
	for _, o := range d.replace {
		r := o.add(link)
		r.Flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		all = append(all, r)
	}
	for _, o := range d.remove {
		all = append(all, o.remove(link))
	}
	return all
}

// readObjects returns the objects of a link, or with index 0 those of all links, by index.
// Of routes it has only those of ours.
func readObjects(s *rtnl.Socket, index uint32) (map[uint32]*linkObjects, error) {
	var all map[uint32]*linkObjects
	reset := func() { all = map[uint32]*linkObjects{} }
	reset()
	note := func(p parsed) {
		have := all[p.index]
		if have == nil {
			have = &linkObjects{all: objects{}, ours: objects{}}
			all[p.index] = have
		}
		have.all[p.object] = true
		if p.ours {
			have.ours[p.object] = true
		}
	}
	found, err := listAddresses(s, index)
	if err != nil {
		return nil, err
	}
	for _, p := range found {
		note(p)
	}
	type list struct {
		what  string
		kind  uint16
		body  rtnl.Message
		parse func([]byte) (parsed, bool)
	}
	var lists []list
	neighbour := make(rtnl.Message, sizeofNeighbour)
	if index != 0 {
		neighbour = neighbour.U32(unix.NDA_IFINDEX, index)
	}
	lists = append(lists, list{"neighbours", unix.RTM_GETNEIGH, neighbour, parseNeighbour})
	route := make(rtnl.Message, unix.SizeofRtMsg)
	route[5] = ownProtocol
	if index != 0 {
		route = route.U32(unix.RTA_OIF, index)
	}
	lists = append(lists, list{"routes", unix.RTM_GETROUTE, route, parseRoute})
	for _, l := range lists {
		if found, err = listObjects(s, l.what, l.kind, l.body, l.parse); err != nil {
			return nil, err
		}
		for _, p := range found {
			note(p)
		}
	}
	return all, nil
}

// listAddresses returns the addresses of a link, or with index 0 those of all links.
func listAddresses(s *rtnl.Socket, index uint32) ([]parsed, error) {
	body := make(rtnl.Message, unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(body[4:], index)
	return listObjects(s, "addresses", unix.RTM_GETADDR, body, parseAddress)
}

// listObjects returns the objects of a dump that parse accepts.
func listObjects(
	s *rtnl.Socket,
	what string,
	kind uint16,
	body rtnl.Message,
	parse func([]byte) (parsed, bool),
) (all []parsed, err error) {
	err = s.Dump(what, kind, body, func() { all = nil }, func(b []byte) {
		if p, ok := parse(b); ok {
			all = append(all, p)
		}
	})
	return all, err
}

// findRoutes returns the routes to a destination in a table.
func findRoutes(s *rtnl.Socket, dst netip.Prefix, table uint32) (all []parsed, err error) {
	body := make(rtnl.Message, unix.SizeofRtMsg)
	body[0] = familyOf(dst.Addr())
	body = body.U32(unix.RTA_TABLE, table)
	return listObjects(s, "routes", unix.RTM_GETROUTE, body, func(b []byte) (parsed, bool) {
		p, ok := parseRoute(b)
		return p, ok && p.prefix == dst
	})
}

// listRules returns the rules of ours.
func listRules(s *rtnl.Socket) (all []parsed, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body := make(rtnl.Message, sizeofFibRule)
		body[0] = family
		found, err := listObjects(s, "rules", unix.RTM_GETRULE, body, parseRule)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// hostObjects returns the objects of a host end. The link is ours, so all its addresses and
// permanent neighbours are.
func hostObjects(link linkID, have *linkObjects, rules []parsed) *linkObjects {
	all := &linkObjects{all: objects{}, ours: objects{}}
	if have != nil {
		for o := range have.all {
			all.all[o] = true
			all.ours[o] = o.kind != routeObject || have.ours[o]
		}
	}
	for _, r := range rules {
		if r.name == link.name {
			all.all[r.object], all.ours[r.object] = true, true
		}
	}
	for o, ours := range all.ours {
		if !ours {
			delete(all.ours, o)
		}
	}
	return all
}

// namespaceID returns the number that the socket's namespace has for an open one, negative
// if it has none: then no link leads there.
func namespaceID(s *rtnl.Socket, fd int) (int32, error) {
	const sizeofGeneral = 4 // rtgenmsg, with its padding
	id := rtnl.Here
	r := &rtnl.Request{
		What: "get the number of a network namespace",
		Kind: unix.RTM_GETNSID,
		Body: make(rtnl.Message, sizeofGeneral).U32(unix.NETNSA_FD, uint32(fd)),
		Each: func(_ uint16, b []byte) {
			if len(b) < sizeofGeneral {
				return
			}
			rtnl.Attributes(b[sizeofGeneral:], func(kind uint16, v []byte) {
				if kind == unix.NETNSA_NSID {
					id = int32(rtnl.Number(v))
				}
			})
		},
	}
	return id, s.Run([]*rtnl.Request{r})
}

// find returns the host end of the wire of a plan, which may be incomplete. If there is
// none, find removes links of ours that are in the way and returns no link.
func (w *wires) find(p *wirePlan, ns *rtnl.Namespace) (hostLink, error) {
	nsid, err := namespaceID(w.host, ns.Fd())
	if err != nil {
		return hostLink{}, err
	}
	pod, podFound, err := w.podEnd(p, ns)
	if err != nil {
		return hostLink{}, err
	}
	joined := func(l hostLink) bool { return podFound && l.joins(nsid, pod) }
	link, found, err := getLink(w.host, p.hostName)
	switch {
	case err != nil:
		return hostLink{}, err
	case found && (!link.ours() || link.key() != "" && link.key() != p.key):
		return hostLink{}, fmt.Errorf("%w: link %s (alias %q)", southbound.ErrForeign, p.hostName, link.alias)
	case found && joined(link) && link.group != sweptGroup:
		return link, nil
	case found:
		return hostLink{}, removeLink(w.host, link)
	case !podFound:
		return hostLink{}, nil
	}
	all, err := listLinks(w.host, vethKind)
	if err != nil {
		return hostLink{}, err
	}
	for _, l := range all {
		if joined(l) && (l.detached() || l.key() == p.key) {
			return hostLink{}, removeLink(w.host, l)
		}
	}
	return hostLink{}, fmt.Errorf("%w: interface %s is in %s already", southbound.ErrForeign, p.podName, p.netns)
}

// podEnd returns the link in the pod's namespace that has the name of the plan.
func (w *wires) podEnd(p *wirePlan, ns *rtnl.Namespace) (link hostLink, found bool, err error) {
	s, err := ns.Dial()
	if err != nil {
		return hostLink{}, false, err
	}
	link, found, err = getLink(s, p.podName)
	return link, found, errors.Join(err, s.Close())
}

// repair makes a wire that is there like its plan. The attributes of a link come first: a
// change of its MAC removes its neighbours, and one that is set up has no IPv6 addresses.
func (w *wires) repair(p *wirePlan, ns *rtnl.Namespace, link hostLink) error {
	w.remember(link.linkID, p)
	if err := p.hostPlan().writeSettings(link, w.ns.Do); err != nil {
		return err
	}
	if err := w.host.Run(p.hostPlan().requests(link)); err != nil {
		return err
	}
	have, err := readObjects(w.host, link.index)
	if err != nil {
		return err
	}
	rules, err := listRules(w.host)
	if err != nil {
		return err
	}
	host := p.host.differences(hostObjects(link.linkID, have[link.index], rules))
	if err := w.changeHost(link, host.requests(link.linkID)); err != nil {
		return err
	}
	s, err := ns.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	pod, _, err := getLink(s, p.podName)
	if err == nil {
		err = s.Run(p.podPlan().requests(pod))
	}
	if err == nil {
		have, err = readObjects(s, pod.index)
	}
	if err != nil {
		return fmt.Errorf("in %s: %w", p.netns, err)
	}
	if err := w.changePod(p, ns, s, p.pod.differences(have[pod.index]).requests(pod.linkID)); err != nil {
		return err
	}
	if _, _, err := getLink(w.host, p.hostName); err != nil {
		return err
	}
	return w.synchronize(s, p, link)
}
