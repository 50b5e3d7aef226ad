// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"errors"
	"fmt"
	"strings"
)

// wirePrefix begins the names of the kernel's ends of pods' links.
const wirePrefix = "cad"

// differences returns an error that names what VPP lacks of a plan, or has otherwise, nil if it
// has all of it. some reports whether it has a part of it.
func (st *state) differences(p *plan) (some bool, err error) {
	var errs []error
	check := func(found, right bool, format string, args ...any) {
		some = some || found
		if !found || !right {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, t := range p.tables {
		for _, six := range []bool{false, true} {
			name, found := st.tables[tableID{t.id, six}]
			check(found, name == t.name, "table %d is missing or has another name", t.id)
		}
	}
	for _, d := range p.domains {
		have, found := st.domains[d.id]
		check(found, have == actualDomain{tag: d.tag}, "bridge domain %d is missing or differs", d.id)
	}
	for _, l := range p.links {
		a := st.byTag[l.tag]
		check(a != nil, a != nil && st.dressed(l, a), "interface %s is missing or differs", l.tag)
	}
	for _, r := range p.routes {
		have, found := st.routes[r.place]
		want, err := st.pathTo(r)
		check(found, err == nil && have == want, "route to %s in table %d is missing or differs", r.dst, r.table)
	}
	if n := p.neighbours; n != nil {
		a := st.byTag[n.link]
		for ip, m := range n.all {
			check(a != nil && a.neighbours[ip] == m, true, "neighbour %s is missing or differs", ip)
		}
	}
	if p.nat != nil {
		a := st.byTag[p.nat.link]
		on := a != nil && (st.natOutput[a.index] || st.natAddress[a.index])
		right := on && st.natOutput[a.index] && st.natAddress[a.index] && st.natVXLAN[a.index] && st.natForward
		check(on, right, "translation of what leaves by %s is missing or differs", p.nat.link)
	}
	return some, errors.Join(errs...)
}

// dressed reports whether an interface is as it is wanted.
func (st *state) dressed(l *link, a *actual) bool {
	lender := none
	if l.lender != "" {
		of := st.byTag[l.lender]
		if of == nil {
			return false
		}
		lender = of.index
	}
	switch {
	case !l.same(a), !a.up, a.tables != [2]uint32{l.table, l.table}, a.lender != lender,
		l.mtu != 0 && a.mtu != l.mtu, a.domain != l.domain, a.bvi != l.bvi,
		len(a.addresses) != len(l.addresses), len(a.macs) != len(l.macs):
		return false
	}
	for _, p := range l.addresses {
		if !a.addresses[p] {
			return false
		}
	}
	for _, m := range l.macs {
		if !a.macs[m] {
			return false
		}
	}
	if l.bvi {
		return true
	}
	if len(a.neighbours) != len(l.neighbours) {
		return false
	}
	for ip, m := range l.neighbours {
		if a.neighbours[ip] != m {
			return false
		}
	}
	return true
}

// claims holds the objects of wanted values of one kind.
type claims struct {
	tags    map[string]bool
	places  map[place]bool
	domains map[uint32]bool
	tables  map[uint32]bool
	nat     bool
}

func newClaims() *claims {
	return &claims{
		tags:    map[string]bool{},
		places:  map[place]bool{},
		domains: map[uint32]bool{},
		tables:  map[uint32]bool{},
	}
}

func (c *claims) add(p *plan) {
	for _, l := range p.links {
		c.tags[l.tag] = true
	}
	for _, r := range p.routes {
		c.places[r.place] = true
	}
	for _, d := range p.domains {
		c.domains[d.id] = true
	}
	for _, t := range p.tables {
		c.tables[t.id] = true
	}
	c.nat = c.nat || p.nat != nil
}

// leftOver returns the own objects of a kind that no wanted value has, nil if there are none.
func (st *state) leftOver(k *kind, c *claims) *leftOver {
	rest := &leftOver{}
	for _, a := range st.links {
		role, claimed := roleOf(a.tag), c.tags[plainTag(a.tag)]
		if a.untagged() {
			role, claimed = st.lostRole(a), false
		}
		if k.roles[role] && !claimed {
			rest.links = append(rest.links, a.index)
		}
	}
	for at, p := range st.routes {
		if k.routes != nil && k.routes(at, p, st.roleAt(p)) && !c.places[at] {
			rest.routes = append(rest.routes, at)
		}
	}
	for id, d := range st.domains {
		if k.roles[roleOf(d.tag)] && !c.domains[id] {
			rest.domains = append(rest.domains, id)
		}
	}
	for t, name := range st.tables {
		if k.roles[roleOf(name)] && !c.tables[t.id] {
			rest.tables = append(rest.tables, t.id)
		}
	}
	if k.translates && !c.nat {
		for _, has := range []map[uint32]bool{st.natOutput, st.natAddress, st.natVXLAN} {
			for index := range has {
				if a := st.links[index]; a != nil && roleOf(a.tag) == roleMain {
					rest.nat = true
				}
			}
		}
	}
	if len(rest.links)+len(rest.routes)+len(rest.domains)+len(rest.tables) == 0 && !rest.nat {
		return nil
	}
	return rest
}

// roleAt returns the role of the interface that a route leads over, "" for none.
func (st *state) roleAt(p path) string {
	if a := st.links[p.index]; a != nil {
		return roleOf(a.tag)
	}
	return ""
}

// leftOver holds own objects of no wanted value.
type leftOver struct {
	links   []uint32
	routes  []place
	domains []uint32
	tables  []uint32
	nat     bool
}

// lostRole returns the role of an interface that a crash has left without a tag.
func (st *state) lostRole(a *actual) string {
	switch {
	case a.device == vxlanDevice:
		return roleTunnel
	case a.device == loopDevice:
		return roleGateway
	case a.device == packetDevice && a.name == "host-"+vppLinkName:
		return roleHost
	case a.device == packetDevice && !strings.HasPrefix(a.name, "host-"+wirePrefix):
		return roleMain
	}
	return rolePod
}

// removeRest removes what is left over. What is gone by now is not an error.
func (x *change) removeRest(rest *leftOver) error {
	if rest.nat {
		if err := x.removeNAT(nat{link: mainTag()}); err != nil {
			return err
		}
	}
	for _, at := range rest.routes {
		if err := x.removeRoute(at); err != nil {
			return err
		}
	}
	for _, index := range rest.links {
		a := x.st.links[index]
		if a == nil || !a.own() {
			continue
		}
		if err := x.removeBehind(a); err != nil {
			return err
		}
		if err := x.removeLink(a); err != nil {
			return err
		}
	}
	for _, id := range rest.domains {
		if err := x.removeDomain(id); err != nil {
			return err
		}
	}
	for _, id := range rest.tables {
		if err := x.removeTable(id); err != nil {
			return err
		}
	}
	return nil
}

// removeBehind removes the neighbours that are behind a tunnel.
func (x *change) removeBehind(a *actual) error {
	for _, b := range x.st.links {
		if !b.bvi || b.domain != a.domain || a.bvi {
			continue
		}
		for ip, m := range b.neighbours {
			if a.macs[m] {
				if err := x.changeNeighbour(b, ip, m, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
