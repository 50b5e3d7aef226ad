// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"net/netip"
	"slices"
)

// maxStack bounds the links that stand on each other, such as a macvlan on a bond of a VLAN.
const maxStack = 8

// routed says how the host sends packets for an address to a namespace: by its route, or by a
// permanent neighbour. Only root of the node makes either. Other neighbours prove nothing: a
// pod makes them on the host by asking for the gateway with any source address. direct leaves
// out what the host sends to a network that the namespace shares with others.
func (e *evidence) routed(ns *Namespace, a netip.Addr, direct bool) string {
	if e.host == nil {
		return ""
	}
	for _, r := range best(e.host, a) {
		link := e.host.link(r.Link)
		switch {
		case link == nil, !e.leads(link, ns), direct && !link.Away:
			continue
		case r.Gateway.IsValid() && !link.Away && !ns.owns(r.Gateway): // another one on the bridge
			continue
		}
		return fmt.Sprintf("the host's route %s leads to it over link %s", r.Dst, link.Name)
	}
	for _, n := range e.host.Neighbours {
		if n.Addr != a || n.State != "PERMANENT" {
			continue
		}
		if link := e.host.link(n.Link); link != nil && e.leads(link, ns) && (link.Away || ns.hasMAC(n.MAC)) {
			return "the host has a permanent neighbour for it on link " + link.Name
		}
	}
	return ""
}

// best returns the most specific routes of a host to an address: of each table, with all next
// hops. The default route of a further table is for the packets of some sources, whatever
// their destination: it tells nothing of an address.
func best(host *Namespace, a netip.Addr) (found []Route) {
	bits := map[uint32]int{}
	for _, routes := range [][]Route{host.Routes, host.OtherRoutes} {
		for _, r := range routes {
			have, known := bits[r.Table]
			switch {
			case !r.Dst.Contains(a), known && r.Dst.Bits() < have, r.Table != 0 && r.Dst.Bits() == 0:
				continue
			case known && r.Dst.Bits() > have:
				found = slices.DeleteFunc(found, func(x Route) bool { return x.Table == r.Table })
			}
			bits[r.Table] = r.Dst.Bits()
			found = append(found, r)
		}
	}
	return found
}

// leads reports whether what the host sends over a link can arrive in a namespace. It can if
// the other end of the link is there, or that of the link below or of one of its ports.
func (e *evidence) leads(link *Link, ns *Namespace) bool {
	all, ok := e.toward[link.Index]
	if !ok {
		all = map[*Namespace]bool{}
		e.collect(link, all, 0)
		e.toward[link.Index] = all
	}
	return all[ns]
}

func (e *evidence) collect(link *Link, all map[*Namespace]bool, depth int) {
	if link == nil || depth > maxStack {
		return
	}
	if link.Away {
		all[e.byNSID[link.NSID]] = true
		return
	}
	e.collect(e.host.link(link.Lower), all, depth+1)
	for i := range e.host.Links {
		if port := &e.host.Links[i]; port.Master == link.Index {
			e.collect(port, all, depth+1)
		}
	}
}

// shared says on which layer-2 network a link is whose subnet has an address. There the kernel
// answers for all of its addresses, whichever of its links has them.
func (e *evidence) shared(at Place, p netip.Prefix) string {
	if own := e.networkOf(at.Namespace, at.Link); own.name != "" && within(own.subnets, p) {
		return own.name
	}
	for i := range at.Namespace.Links {
		l := &at.Namespace.Links[i]
		if l == at.Link {
			continue
		}
		if n := e.networkOf(at.Namespace, l); n.name != "" && len(n.subnets) > 0 && within(n.subnets, p) {
			return fmt.Sprintf("%s answers for it: %s", l.Name, n.name)
		}
	}
	return ""
}

// layer2 is the layer-2 network that a link is on; without a name it is on none.
type layer2 struct {
	name    string
	subnets []netip.Prefix // without single addresses and link-local ones, each once
}

// networkOf returns the network of a link, which is looked for once: a link may have many addresses.
func (e *evidence) networkOf(ns *Namespace, link *Link) layer2 {
	n, known := e.networks[link]
	if known {
		return n
	}
	name, all := e.network(ns, link, 0)
	n.name = name
	for _, s := range all {
		if !s.IsSingleIP() && !s.Addr().IsLinkLocalUnicast() {
			n.subnets = append(n.subnets, s.Masked())
		}
	}
	slices.SortFunc(n.subnets, netip.Prefix.Compare)
	n.subnets = slices.Compact(n.subnets)
	e.networks[link] = n
	return n
}

// network returns a description of the layer-2 network that a link is on, "" for none, and the
// subnets that the kernel shows there. A pod itself can only make networks that lead nowhere:
// inside, or into namespaces that do not count.
func (e *evidence) network(ns *Namespace, link *Link, depth int) (name string, subnets []netip.Prefix) {
	if link.Loopback || depth > maxStack {
		return "", nil
	}
	subnets = slices.Clone(link.Addrs)
	add := func(below string, more []netip.Prefix) {
		if below != "" {
			name, subnets = below, append(subnets, more...)
		}
	}
	switch {
	case link.Away:
		add(e.beyond(link))
	case link.Kind == "" && link.MAC != "":
		name = fmt.Sprintf("link %s is a device of the machine", link.Name)
	case link.Lower != 0:
		if lower := ns.link(link.Lower); lower != nil {
			add(e.network(ns, lower, depth+1))
		}
	}
	for i := range ns.Links { // of a bridge or bond inside
		if port := &ns.Links[i]; port.Master == link.Index {
			add(e.network(ns, port, depth+1))
		}
	}
	return name, subnets
}

// beyond returns the layer-2 network behind a link whose other end is in another namespace. The
// end of a veth is on one if it is the port of a bridge: the host's, or that of Docker's
// overlay. Other kinds share the link below.
func (e *evidence) beyond(link *Link) (name string, subnets []netip.Prefix) {
	far := e.byNSID[link.NSID]
	if far == nil || !far.Counts {
		return "", nil
	}
	if link.Peer == 0 {
		lower := far.link(link.Lower)
		if lower == nil {
			return fmt.Sprintf("link %s is on a link of %s", link.Name, far.Label()), nil
		}
		name, subnets = fmt.Sprintf("link %s is on link %s of %s", link.Name, lower.Name, far.Label()), lower.Addrs
		if master := far.link(lower.Master); master != nil {
			subnets = append(slices.Clone(subnets), master.Addrs...)
		}
		return name, subnets
	}
	end := far.link(link.Peer)
	if end == nil {
		return "", nil
	}
	master := far.link(end.Master)
	if master == nil || master.Kind == "vrf" { // a VRF routes
		return "", nil
	}
	return fmt.Sprintf("link %s is on %s of %s", link.Name, master.Name, far.Label()), master.Addrs
}

// within reports whether an address is in one of the subnets of its family. Without any,
// nothing says that it is not.
func within(subnets []netip.Prefix, p netip.Prefix) bool {
	known := false
	for _, s := range subnets {
		if s.Addr().Is4() != p.Addr().Is4() {
			continue
		}
		if s.Contains(p.Addr()) {
			return true
		}
		known = true
	}
	return !known
}

// link returns the link with an index, nil for none.
func (n *Namespace) link(index int) *Link {
	if index == 0 {
		return nil
	}
	if i := slices.IndexFunc(n.Links, func(l Link) bool { return l.Index == index }); i >= 0 {
		return &n.Links[i]
	}
	return nil
}

// owns reports whether a link of the namespace has an address.
func (n *Namespace) owns(a netip.Addr) bool {
	return slices.ContainsFunc(n.Links, func(l Link) bool {
		return slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}

// hasMAC reports whether a link of the namespace has a MAC address.
func (n *Namespace) hasMAC(mac string) bool {
	return mac != "" && slices.ContainsFunc(n.Links, func(l Link) bool { return l.MAC == mac })
}
