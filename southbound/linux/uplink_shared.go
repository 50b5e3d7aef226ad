// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// shared reports whether a rule is one that all uplinks share.
func (p parsed) shared() bool {
	return p.kind == podsObject || p.kind == replyObject || p.kind == localObject
}

// sharedRules returns the rules that all uplinks share.
func (u *uplinks) sharedRules(links []hostLink) ([]object, error) {
	routes, err := tableRoutes(u.host, unix.RT_TABLE_MAIN)
	if err != nil {
		return nil, err
	}
	all := append(podsRules(u.families), replyRules(u.families)...)
	for _, p := range localNetworks(routes, links, u.known) {
		all = append(all, object{kind: localObject, prefix: p, table: unix.RT_TABLE_MAIN})
	}
	return all, nil
}

// localNetworks returns the networks of other programs that are on the node itself, such as
// those of a container engine's bridges. They are the ranges on a link that leads out of the
// node by no interface. The cloud would drop what a pod sends to another range through the
// link of that range. Routes to single addresses do not count: there may be one for each
// container.
func localNetworks(routes []parsed, links []hostLink, known *uplinkLinks) (all []netip.Prefix) {
	outer := outerLinks(routes, links, known)
	cloud := known.cloud()
	for _, p := range routes {
		if !p.connected() || outer[p.index] || slices.Contains(all, p.prefix) {
			continue
		}
		if !slices.ContainsFunc(cloud, p.prefix.Overlaps) {
			all = append(all, p.prefix)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// connected reports whether a route of the main table leads to a range on a link, and is one
// of another program.
func (p parsed) connected() bool {
	a := p.prefix.Addr()
	return p.kind == routeObject && p.table == unix.RT_TABLE_MAIN && !p.ours && p.index != 0 && !p.gateway.IsValid() &&
		p.prefix.Bits() > 0 && !p.prefix.IsSingleIP() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// stacked reports whether a link sends packets through another link as they are.
func (l hostLink) stacked() bool {
	switch l.kind {
	case "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap":
		return true
	}
	return false
}

// outerLinks returns the indexes of the links that are not of a network on the node. They
// are hardware, the links of uplinks and default routes, what is stacked on these, the ends of
// other namespaces, and links of ours.
func outerLinks(routes []parsed, links []hostLink, known *uplinkLinks) map[uint32]bool {
	outer := map[uint32]bool{}
	beyond := func(index uint32) bool { return index != 0 && outer[index] }
	for _, p := range routes {
		if p.prefix.Bits() == 0 {
			outer[p.index] = true
		}
	}
	for again := true; again; {
		again = false
		for _, l := range links {
			stacked := l.stacked() && (l.peerNSID != rtnl.Here || beyond(l.peer))
			below := func(port hostLink) bool { return port.master == l.index && port.kind != vethKind && outer[port.index] }
			is := l.kind == "" || l.kind == vethKind || stacked || strings.HasPrefix(l.alias, aliasPrefix) ||
				known.has(l.index) || slices.ContainsFunc(links, below)
			if is && !outer[l.index] {
				outer[l.index], again = true, true
			}
		}
	}
	return outer
}

// has reports whether a link is that of an uplink.
func (k *uplinkLinks) has(index uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.byInterface {
		if l.index == index {
			return true
		}
	}
	return false
}

// cloud returns the ranges of the wanted uplinks and of their cloud networks.
func (k *uplinkLinks) cloud() (all []netip.Prefix) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.byInterface {
		all = append(all, l.cloud...)
	}
	return all
}

// shareRules makes the rules that all uplinks share, and removes those to networks that are
// gone.
func (u *uplinks) shareRules() error {
	rules, err := listRules(u.host)
	if err != nil {
		return err
	}
	links, err := listLinks(u.host, "")
	if err != nil {
		return err
	}
	want, err := u.sharedRules(links)
	if err != nil {
		return err
	}
	var all []*rtnl.Request
	for _, o := range want {
		if !hasObject(rules, o) {
			all = append(all, o.add(linkID{}))
		}
	}
	for _, p := range rules {
		if p.kind == localObject && !slices.Contains(want, p.object) {
			all = append(all, p.removal())
		}
	}
	return errors.Join(u.host.Run(all), u.replies.change(true))
}

// sharedComplete reports whether what all uplinks share is as it has to be.
func (u *uplinks) sharedComplete(rules []parsed, links []hostLink) (bool, error) {
	want, err := u.sharedRules(links)
	if err != nil {
		return false, err
	}
	have := 0
	for _, p := range rules {
		if p.shared() {
			have++
		}
	}
	missing := func(o object) bool { return !hasObject(rules, o) }
	if have != len(want) || slices.ContainsFunc(want, missing) {
		return false, nil
	}
	return u.replies.complete()
}

// hasObject reports whether an object is among those of a dump.
func hasObject(all []parsed, o object) bool {
	for _, p := range all {
		if p.object == o {
			return true
		}
	}
	return false
}
