// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// attachment is a leased address on a link of a pod.
type attachment struct {
	lease *ledger.Lease
	place witness.Place
	peer  *witness.Link // other end of the veth in the host; nil: another kind of link
}

// network compares the routes and gateways of pods with those of their neighbours and
// of the host.
func (c *comparison) network() {
	if c.world.Kernel == nil {
		return
	}
	all := c.attachments()
	c.defaultRoutes(all)
	c.gateways(all)
	c.routes(all)
}

// attachments returns the leases of pods with their links, if one namespace has the
// address.
func (c *comparison) attachments() (all []attachment) {
	for i := range c.book.Leases {
		l := &c.book.Leases[i]
		places := c.places[l.Addr]
		if !compared(l) || l.Purpose != ledger.ForPod || c.book.young(l) || len(places) != 1 {
			continue
		}
		if at := places[0].Place; !at.Namespace.Host {
			all = append(all, attachment{l, at, c.peerOf(at.Link)})
		}
	}
	return all
}

// peerOf returns the link of the host that is the other end of a veth, nil if there is
// none. Both ends must name each other: the index of a peer is valid in its namespace only.
func (c *comparison) peerOf(link *witness.Link) *witness.Link {
	if c.host == nil || link.Kind != "veth" || link.Peer == 0 {
		return nil
	}
	peer := c.hostLink(link.Peer)
	if peer == nil || peer.Kind != "veth" || peer.Peer != link.Index {
		return nil
	}
	return peer
}

// hostLink returns the link of the host with an index, nil if there is none.
func (c *comparison) hostLink(index int) *witness.Link {
	if c.host == nil {
		return nil
	}
	for i := range c.host.Links {
		if c.host.Links[i].Index == index {
			return &c.host.Links[i]
		}
	}
	return nil
}

// wide reports whether a prefix is a default route, or one of a few that replace it,
// such as 0.0.0.0/1 and 128.0.0.0/1 of a VPN.
func wide(p netip.Prefix) bool {
	const narrow4, narrow6 = 8, 7 // 10.0.0.0/8 and fc00::/7 are networks
	if p.Addr().Is4() {
		return p.Bits() < narrow4
	}
	return p.Bits() < narrow6
}

// hasDefault returns the gateway of the default route of a family; ok is false if the
// namespace has none.
func hasDefault(ns *witness.Namespace, is4 bool) (gateway netip.Addr, ok bool) {
	for _, r := range ns.Routes {
		if r.Dst.Addr().Is4() != is4 || !wide(r.Dst) {
			continue
		}
		if !ok || !gateway.IsValid() || r.Gateway.IsValid() && r.Gateway.Less(gateway) {
			gateway = r.Gateway
		}
		ok = true
	}
	return gateway, ok
}

// defaultRoutes reports pods without a default route if other pods of their network have
// one. A network may be configured without: then no pod of it has one.
func (c *comparison) defaultRoutes(all []attachment) {
	type group struct {
		network, pool, ifName string
		is4                   bool
	}
	of := func(a attachment) group {
		return group{a.lease.Key.Network, a.lease.Pool, a.lease.Key.IfName, a.lease.Addr.Is4()}
	}
	routed := map[group]string{}
	for _, a := range all {
		if _, ok := hasDefault(a.place.Namespace, a.lease.Addr.Is4()); ok && routed[of(a)] == "" {
			routed[of(a)] = holder(a.lease)
		}
	}
	for _, a := range all {
		other := routed[of(a)]
		ns := a.place.Namespace
		if _, ok := hasDefault(ns, a.lease.Addr.Is4()); ok || other == "" || ns.RoutesHidden {
			continue
		}
		c.add(numDefaultRoute, subjectOf(a.lease),
			fmt.Sprintf("%s has no default route of %s", holder(a.lease), ledger.FamilyOf(a.lease.Addr)),
			[]witness.Evidence{
				{Witness: witness.Kernel, Text: ns.String() + " has no default route"},
				{Witness: witness.Kernel, Text: other + " of the same network has one"},
			}, leaseFacts(a.lease)...)
	}
}

// gateways reports gateways of pods that the host should have and has not. It leaves out
// bridges with another link than veth: the gateway may be beyond that.
func (c *comparison) gateways(all []attachment) {
	done := map[netip.Addr]bool{}
	for _, a := range all {
		gateway, ok := hasDefault(a.place.Namespace, a.lease.Addr.Is4())
		if !ok || a.peer == nil || done[gateway] || !a.lease.Block.Contains(gateway) || len(c.places[gateway]) > 0 {
			continue
		}
		on := a.peer
		if bridge := c.hostLink(a.peer.Master); bridge != nil {
			on = bridge
			if c.uplink(bridge.Index) != nil {
				continue
			}
		}
		done[gateway] = true
		c.add(numGateway, Subject{Pool: a.lease.Pool, Addr: gateway, Object: on.Name},
			fmt.Sprintf("no link of the host has %s, the gateway of the pods on %s", gateway, on.Name),
			said(witness.Kernel, fmt.Sprintf("the default route of %s leads to %s", a.place.Namespace, gateway)))
	}
}

// uplink returns a link of a bridge that is not a veth, nil if there is none.
func (c *comparison) uplink(bridge int) *witness.Link {
	for i := range c.host.Links {
		if l := &c.host.Links[i]; l.Master == bridge && l.Kind != "veth" {
			return l
		}
	}
	return nil
}

// routes reports routes of the host that lead the addresses of blocks away from the pods.
func (c *comparison) routes(all []attachment) {
	if c.host == nil {
		return
	}
	ours := c.ownLinks(all)
	for i := range c.book.Blocks {
		b := &c.book.Blocks[i]
		if !c.forPods(b.Pool) || b.State != ledger.Active {
			continue
		}
		local := slices.ContainsFunc(
			all,
			func(a attachment) bool { return a.peer != nil && b.Block.Contains(a.lease.Addr) },
		)
		inside, direct := false, false // a foreign route within the block; one to the pods
		for _, r := range c.host.Routes {
			if !b.Block.Contains(r.Dst.Addr()) || r.Dst.Bits() < b.Block.Bits() {
				continue
			}
			if ours[r.Link] || c.toPod(r) {
				direct = true
				continue
			}
			inside = true
			c.inTheWay(numRouteInside, b, r, "of the host leads addresses of the block away from its pods")
		}
		for _, r := range c.host.Routes {
			if !r.Dst.Contains(b.Block.Addr()) || r.Dst.Bits() >= b.Block.Bits() || wide(r.Dst) || ours[r.Link] {
				continue
			}
			link := c.hostLink(r.Link)
			switch {
			case link == nil || c.connected(r, link): // the prefix of a link: see hostLinks
			case tunnel(link.Kind) && (c.book.Routed || !c.withinPool(r.Dst)):
				c.inTheWay(numRouteAround, b, r,
					"of the host contains the block: a network behind a tunnel has the same addresses")
			case local && !direct && !inside:
				c.inTheWay(numRouteAround, b, r, "of the host is the one that packets to the block's pods take")
			}
		}
	}
}

func (c *comparison) inTheWay(number string, b *ledger.BlockStat, r witness.Route, text string) {
	name := fmt.Sprintf("route %s", r.Dst)
	if r.Gateway.IsValid() {
		name += " via " + r.Gateway.String()
	}
	if link := c.hostLink(r.Link); link != nil {
		name += " dev " + link.Name
	}
	c.add(number, Subject{Pool: b.Pool, Prefix: b.Block, Object: name},
		fmt.Sprintf("%s %s (%s)", name, text, b.Block),
		said(witness.Kernel, "the host has "+name))
}

// ownLinks returns the indexes of the host's links that lead to pods: those with a leased
// address, bridges of pods, and the other ends of their veths.
func (c *comparison) ownLinks(all []attachment) map[int]bool {
	ours := map[int]bool{}
	for _, l := range c.host.Links {
		for _, p := range l.Addrs {
			if b := c.blockOf(p.Addr()); b != nil && len(c.leased[p.Addr()]) > 0 {
				ours[l.Index] = true
			}
		}
	}
	for _, a := range all {
		if a.peer != nil {
			ours[a.peer.Index] = true
			if a.peer.Master != 0 {
				ours[a.peer.Master] = true
			}
		}
	}
	return ours
}

// toPod reports whether a route leads to one leased address over a veth, as the ptp
// plugin makes it. The pod may be of another moment than the routes.
func (c *comparison) toPod(r witness.Route) bool {
	link := c.hostLink(r.Link)
	return r.Dst.IsSingleIP() && link != nil && link.Kind == "veth" &&
		(c.book.Changing[r.Dst.Addr()] || len(c.leased[r.Dst.Addr()]) > 0)
}

// withinPool reports whether a prefix is a part of the pod network.
func (c *comparison) withinPool(p netip.Prefix) bool {
	for _, pool := range c.book.Pools {
		for _, r := range pool.Ranges {
			if r.Contains(p.Addr()) && p.Bits() >= r.Bits() {
				return true
			}
		}
	}
	return false
}

// connected reports whether a route is the one of an address of its link.
func (c *comparison) connected(r witness.Route, link *witness.Link) bool {
	return !r.Gateway.IsValid() &&
		slices.ContainsFunc(link.Addrs, func(p netip.Prefix) bool { return p.Masked() == r.Dst })
}

// tunnel reports whether links of a kind lead to remote networks.
func tunnel(kind string) bool {
	const remote = "tun tuntap wireguard ppp gre gretap ip6gre ipip ip6tnl sit vti vti6 xfrm ovpn"
	return slices.Contains(strings.Fields(remote), kind)
}

// hostLinks reports links of the host with a network that contains a block of pods. Blocks
// that the network outside of the cluster assigns may be parts of it.
func (c *comparison) hostLinks() {
	if c.host == nil || !c.book.Private {
		return
	}
	ours := c.ownLinks(c.attachments())
	for i := range c.book.Blocks {
		b := &c.book.Blocks[i]
		if !c.forPods(b.Pool) || b.State != ledger.Active || c.shared(b.Block) {
			continue
		}
		for j := range c.host.Links {
			l := &c.host.Links[j]
			if ours[l.Index] || l.Kind == "bridge" && c.uplink(l.Index) == nil {
				continue
			}
			for _, p := range l.Addrs {
				if !p.Contains(b.Block.Addr()) || p.Bits() >= b.Block.Bits() || wide(p) {
					continue
				}
				shown := fmt.Sprintf("link %s of the host has %s", l.Name, p)
				c.add(numLinkAround, Subject{Pool: b.Pool, Prefix: b.Block, Object: l.Name},
					fmt.Sprintf("%s, whose network contains block %s of pool %q", shown, b.Block, b.Pool),
					said(witness.Kernel, shown), p.String())
			}
		}
	}
}

// shared reports whether pods of a block are on links that share a network with a link of
// the host, such as macvlan.
func (c *comparison) shared(block netip.Prefix) bool {
	for _, a := range c.attachments() {
		kind := cmp.Or(a.place.Link.Kind, "device")
		if block.Contains(a.lease.Addr) && kind != "veth" && !strings.HasPrefix(kind, "tun") {
			return true
		}
	}
	return false
}
