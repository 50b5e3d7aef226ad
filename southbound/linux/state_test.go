// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelState returns the links, addresses, routes, neighbours, forwarding entries, rules
// and nftables rules of the current network namespace, sorted. It leaves out what the
// kernel gives to each link: link-local addresses, and the routes of table local.
func kernelState() (all []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	names := map[int]string{0: "-"}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		mac := a.HardwareAddr.String()
		if a.Name == "uplink" || a.Name == "router" {
			mac = ""
		}
		line := fmt.Sprintf("link %s %s mtu %d %s group %d alias %q up %v", a.Name, l.Type(), a.MTU, mac, a.Group, a.Alias, a.Flags&unix.IFF_UP != 0)
		if v, ok := l.(*netlink.Vxlan); ok {
			line += fmt.Sprintf(" vni %d local %s port %d learning %v", v.VxlanId, v.SrcAddr, v.Port, v.Learning)
		}
		all = append(all, line)
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			addresses, err := netlink.AddrList(l, family)
			if err != nil {
				return nil, err
			}
			for _, x := range addresses {
				if !x.IP.IsLinkLocalUnicast() {
					all = append(all, fmt.Sprintf("address %s %s", a.Name, x.IPNet))
				}
			}
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
			neighbours, err := netlink.NeighList(a.Index, family)
			if err != nil {
				return nil, err
			}
			for _, n := range neighbours {
				if n.State&netlink.NUD_PERMANENT != 0 && !n.IP.IsMulticast() && (len(n.HardwareAddr) == 0 || n.HardwareAddr[0]&1 == 0) {
					all = append(all, fmt.Sprintf("neighbour %s family %d %s %s flags %d", a.Name, family, n.IP, n.HardwareAddr, n.Flags))
				}
			}
		}
	}
	more, err := routeState(names)
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	if more, err = nftState(); err != nil {
		return nil, err
	}
	all = append(all, more...)
	slices.Sort(all)
	return all, nil
}

func routeState(names map[int]string) (all []string, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			if r.Table == unix.RT_TABLE_LOCAL || r.Dst == nil || r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast() {
				continue
			}
			link := names[r.LinkIndex]
			r.LinkIndex = 0
			all = append(all, fmt.Sprintf("route %s dev %s scope %s src %s onlink %v", describeRoute(r), link, r.Scope, r.Src, r.Flags&unix.RTNH_F_ONLINK != 0))
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			all = append(all, fmt.Sprintf("rule family %d priority %d iif %q from %v table %d type %d suppress %d group %d proto %d",
				family, r.Priority, r.IifName, r.Src, r.Table, r.Type, r.SuppressPrefixlen, r.SuppressIfgroup, r.Protocol))
		}
		proxies, err := netlink.NeighProxyList(0, family)
		if err != nil {
			return nil, err
		}
		for _, n := range proxies {
			all = append(all, fmt.Sprintf("proxy neighbour %s dev %s", n.IP, names[n.LinkIndex]))
		}
	}
	return all, nil
}

func nftState() (all []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		if err != nil {
			return nil, err
		}
		for i, r := range rules {
			all = append(all, fmt.Sprintf("nft %s %s %d %q %d expressions", chain.Table.Name, chain.Name, i, strings.TrimSpace(string(r.UserData)), len(r.Exprs)))
		}
		all = append(all, fmt.Sprintf("nft %s %s", chain.Table.Name, chain.Name))
	}
	return all, nil
}

// differences returns the lines that only one of two states has.
func differences(x, y []string) (all []string) {
	for _, line := range x {
		if !slices.Contains(y, line) {
			all = append(all, "- "+line)
		}
	}
	for _, line := range y {
		if !slices.Contains(x, line) {
			all = append(all, "+ "+line)
		}
	}
	return all
}
