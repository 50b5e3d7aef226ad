// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// addresses reports addresses in use that no lease explains, and those that several
// namespaces have.
func (c *comparison) addresses() {
	for _, a := range c.usedAddresses() {
		places := c.places[a]
		b := c.blockOf(a)
		if b == nil {
			c.outside(a, places)
			continue
		}
		c.duplicate(a, b, places)
		inside := slices.DeleteFunc(slices.Clone(places), func(p witness.Sighting) bool { return p.Namespace.Host })
		for _, b := range c.ownerless(a) {
			switch {
			case c.changing(a) && !c.leaseIn(b.Pool, a, quarantined):
			case len(inside) > 0 || len(places) == 0:
				c.unknown(a, b, inside)
			case c.forPods(b.Pool) && b.State == ledger.Active:
				p := places[0]
				c.add(numHostAddress, Subject{Pool: b.Pool, Addr: a, Object: p.Link.Name},
					fmt.Sprintf("%s of pool %q is on %s and has no lease", a, b.Pool, p.Place),
					said(witness.Kernel, fmt.Sprintf("%s has %s", p.Place, p.Prefix)))
			}
		}
	}
}

// engineNetworks returns the engine's networks of our driver.
func (c *comparison) engineNetworks() (all []*witness.EngineNetwork) {
	if c.world.Engine == nil {
		return nil
	}
	for i := range c.world.Engine.Networks {
		if n := &c.world.Engine.Networks[i]; n.IPAMDriver == c.world.Driver {
			all = append(all, n)
		}
	}
	return all
}

// unknown reports an address of a block that is in use and has no lease.
func (c *comparison) unknown(a netip.Addr, b *ledger.BlockStat, places []witness.Sighting) {
	var evidence []witness.Evidence
	var facts []string
	for _, p := range places {
		evidence = append(evidence, onLink(p))
		facts = append(facts, p.Place.String())
	}
	uses := c.uses(a)
	for _, text := range uses {
		evidence = append(evidence, witness.Evidence{Witness: witness.Engine, Text: text})
	}
	u, isPod := c.pods[a]
	if isPod && (u.by == witness.Runtime || len(places) > 0) && !c.podHasLease(u) {
		evidence = append(evidence, witness.Evidence{Witness: u.by, Text: u.text})
		c.unleased(numPodWithoutLease, Subject{Pool: b.Pool, Addr: a, Pod: u.pod, ContainerID: u.containerID},
			fmt.Sprintf("pod %s uses %s of pool %q without a lease", u.pod, a, b.Pool), evidence, append(facts, u.text))
		return
	}
	if isPod && u.by == witness.Runtime {
		evidence = append(evidence, witness.Evidence{Witness: u.by, Text: u.text})
		uses = append(uses, u.text)
	}
	if len(evidence) == 0 {
		return
	}
	user := ""
	if len(places) > 0 {
		user = places[0].Place.String()
	} else {
		user = uses[0]
	}
	text := fmt.Sprintf("%s of pool %q is in use without a lease: %s", a, b.Pool, user)
	c.unleased(numUnknown, Subject{Pool: b.Pool, Addr: a}, text, evidence, append(facts, uses...))
}

// onLink is the statement of the kernel that a link has an address.
func onLink(s witness.Sighting) witness.Evidence {
	return witness.Evidence{Witness: witness.Kernel, Text: fmt.Sprintf("%s has %s", s.Place, s.Addr)}
}

// podHasLease reports whether a pod has a lease of another address.
func (c *comparison) podHasLease(u user) bool {
	return slices.ContainsFunc(c.book.Leases, func(l ledger.Lease) bool {
		if l.State != ledger.Held {
			return false
		}
		if u.containerID != "" {
			return l.Key.ContainerID == u.containerID
		}
		return l.Pod.String() == u.pod
	})
}

// unleased adds a finding about an address in use without a lease. A quarantined address
// needs no repair.
func (c *comparison) unleased(
	number string,
	subject Subject,
	text string,
	evidence []witness.Evidence,
	facts []string,
) {
	if !c.leaseIn(subject.Pool, subject.Addr, quarantined) {
		c.add(number, subject, text, evidence, facts...)
		return
	}
	c.add(number, subject, text+" (it is quarantined: no pod gets it)", evidence, append(facts, "quarantined")...)
	c.found[len(c.found)-1].Repair = ""
}

// duplicate reports an address that several namespaces have.
func (c *comparison) duplicate(a netip.Addr, b *ledger.BlockStat, places []witness.Sighting) {
	names := map[string]bool{}
	var evidence []witness.Evidence
	var seen []*witness.Namespace
	for _, p := range places {
		if slices.Contains(seen, p.Namespace) {
			continue
		}
		seen = append(seen, p.Namespace)
		names[p.Place.String()] = true
		evidence = append(evidence, onLink(p))
	}
	if len(seen) < 2 || c.book.Changing[a] {
		return
	}
	subject, leased := Subject{Pool: b.Pool, Addr: a}, "has no lease"
	facts := slices.Sorted(maps.Keys(names))
	for _, l := range c.leased[a] {
		if l.State != ledger.Cooling {
			if c.book.young(l) {
				return
			}
			subject, leased = subjectOf(l), "is leased to "+holder(l)
			facts = append(facts, leaseFacts(l)...)
			break
		}
	}
	if subject.ContainerID == "" && len(c.leased[a]) > 0 && c.leased[a][0].Purpose == ledger.ForInfra {
		leased = "belongs to this node"
	}
	c.add(numDuplicate, subject,
		fmt.Sprintf("%d network namespaces have %s, which %s", len(seen), a, leased), evidence, facts...)
}

// outside reports an address of the pod network that a pod of this node has, and that is
// in no block of this node.
func (c *comparison) outside(a netip.Addr, places []witness.Sighting) {
	pool := ""
	for _, p := range c.book.Pools {
		if slices.ContainsFunc(p.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			pool = cmp.Or(pool, p.Name)
		}
	}
	if pool == "" {
		return
	}
	var evidence []witness.Evidence
	var facts []string
	for _, p := range places {
		if c.known[p.Namespace] {
			evidence = append(evidence, onLink(p))
			facts = append(facts, p.Place.String())
		}
	}
	if len(facts) == 0 || c.changing(a) || c.held(a) != nil {
		return
	}
	c.add(numOutside, Subject{Pool: pool, Addr: a, Pod: c.pods[a].pod},
		fmt.Sprintf("%s of pool %q is in no block of this node, and is on %s", a, pool, strings.Join(facts, " and ")),
		evidence, facts...)
}
