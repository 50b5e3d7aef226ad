// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Compare returns the differences between the agent's book and the world, by number and
// subject. Neither is changed. The order of leases, namespaces and links has no effect.
// A difference that a change in progress explains may be among them: a caller reports
// what two rounds agree on.
func Compare(book Book, world *witness.World) []Finding {
	c := newComparison(book, world)
	c.ledgerItself()
	c.leases()
	c.addresses()
	c.notTheirOwn()
	c.quarantines()
	c.witnesses()
	c.network()
	c.hostLinks()
	c.pools()
	c.subnets()
	c.cloud()
	slices.SortFunc(c.found, order)
	return slices.CompactFunc(c.found, func(a, b Finding) bool { return a.Signature == b.Signature })
}

func order(a, b Finding) int {
	return cmp.Or(
		strings.Compare(a.Number, b.Number),
		strings.Compare(a.Subject.Pool, b.Subject.Pool),
		a.Subject.Addr.Compare(b.Subject.Addr),
		a.Subject.Prefix.Addr().Compare(b.Subject.Prefix.Addr()),
		cmp.Compare(a.Subject.Prefix.Bits(), b.Subject.Prefix.Bits()),
		strings.Compare(a.Subject.Object, b.Subject.Object),
		strings.Compare(a.Signature, b.Signature),
	)
}

// comparison holds the indexes of one call of Compare.
type comparison struct {
	book  *Book
	world *witness.World
	found []Finding

	leased map[netip.Addr][]*ledger.Lease    // all leases, by address
	places map[netip.Addr][]witness.Sighting // that prove a use, sorted; empty without the kernel
	// strays has the addresses of blocks that a namespace has and that do not answer there.
	strays map[*witness.Namespace][]witness.Sighting
	host   *witness.Namespace // nil: not known
	// byName has the namespaces by their files.
	byName map[string]*witness.Namespace
	// known has the namespaces of leases and sandboxes.
	known map[*witness.Namespace]bool
	pods  map[netip.Addr]user // the pods that runtime and cluster show with an address
	used  map[netip.Addr]bool // that a witness shows in use
}

// user is a pod that a witness shows with an address.
type user struct {
	by          witness.Name
	text        string
	pod         string
	containerID string
}

func newComparison(book Book, world *witness.World) *comparison {
	c := newIndexes(book, world)
	c.indexWorld(func(netip.Addr) bool { return true })
	return c
}

// newIndexes returns a comparison that has not looked at the world yet.
func newIndexes(book Book, world *witness.World) *comparison {
	c := &comparison{
		book:   &book,
		world:  world,
		leased: map[netip.Addr][]*ledger.Lease{},
		places: map[netip.Addr][]witness.Sighting{},
		strays: map[*witness.Namespace][]witness.Sighting{},
		byName: map[string]*witness.Namespace{},
		known:  map[*witness.Namespace]bool{},
		pods:   map[netip.Addr]user{},
		used:   map[netip.Addr]bool{},
	}
	// Findings must not depend on the order of the views.
	book.Leases = slices.SortedFunc(slices.Values(book.Leases), func(a, b ledger.Lease) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), a.Addr.Compare(b.Addr))
	})
	for i := range book.Leases {
		l := &book.Leases[i]
		c.leased[l.Addr] = append(c.leased[l.Addr], l)
	}
	return c
}

// indexWorld looks at what the witnesses show, of the kernel at the addresses that wanted admits.
func (c *comparison) indexWorld(wanted func(netip.Addr) bool) {
	c.indexKernel(wanted)
	c.indexPods()
	c.indexUsed()
}

func (c *comparison) indexKernel(wanted func(netip.Addr) bool) {
	if c.world.Kernel == nil {
		return
	}
	for i := range c.world.Kernel.Namespaces {
		ns := &c.world.Kernel.Namespaces[i]
		if ns.Host {
			c.host = ns
		}
		for _, path := range ns.Paths {
			c.byName[path] = ns
		}
	}
	for _, s := range c.world.Sightings(wanted) {
		if s.Answers || c.blockOf(s.Addr) == nil || c.ofLease(s) {
			c.places[s.Addr] = append(c.places[s.Addr], s)
		} else {
			c.strays[s.Namespace] = append(c.strays[s.Namespace], s)
		}
	}
	for _, places := range c.places {
		slices.SortFunc(places, func(a, b witness.Sighting) int {
			return cmp.Or(
				strings.Compare(a.Place.String(), b.Place.String()),
				cmp.Compare(a.Namespace.ID.Inode, b.Namespace.ID.Inode),
			)
		})
	}
	for i := range c.book.Leases {
		if ns := c.byName[c.book.Leases[i].NetNS]; ns != nil && !ns.Host {
			c.known[ns] = true
		}
	}
	if c.world.Runtime == nil {
		return
	}
	for i := range c.world.Runtime.Sandboxes {
		s := &c.world.Runtime.Sandboxes[i]
		if ns := c.byName[s.NetNS]; ns != nil && !ns.Host && !s.HostNet {
			c.known[ns] = true
		}
	}
}

// ofLease reports whether a sighting is that of the holder of the address: in the namespace
// that its lease names, or in any that counts if it names none.
func (c *comparison) ofLease(s witness.Sighting) bool {
	return slices.ContainsFunc(c.leased[s.Addr], func(l *ledger.Lease) bool {
		switch {
		case !l.InUse() || l.Purpose == ledger.ForInfra: // those are the host's
			return false
		case l.NetNS == "":
			return s.Namespace.Counts && !s.Link.Loopback
		}
		return slices.Contains(s.Namespace.Paths, l.NetNS)
	})
}

// indexPods notes the addresses of pods: those that the runtime reports, those in the
// namespaces of its sandboxes, and those of the cluster.
func (c *comparison) indexPods() {
	if v := c.world.Cluster; v != nil {
		for i := range v.Pods {
			p := &v.Pods[i]
			if p.HostNet || p.Finished {
				continue
			}
			name := p.Namespace + "/" + p.Name
			for _, a := range p.Addrs {
				c.notePod(a, user{witness.Cluster, "pod " + name + " has " + a.String(), name, ""})
			}
		}
	}
	if c.world.Runtime == nil {
		return
	}
	for i := range c.world.Runtime.Sandboxes {
		s := &c.world.Runtime.Sandboxes[i]
		if s.HostNet || !s.Ready {
			continue
		}
		name := s.Namespace + "/" + s.Name
		addrs := slices.Clone(s.Addrs)
		if ns := c.byName[s.NetNS]; ns != nil && !ns.Host {
			addrs = append(addrs, c.inside(ns)...)
		}
		for _, a := range addrs {
			c.notePod(
				a,
				user{witness.Runtime, "sandbox " + s.ID + " of pod " + name + " has " + a.String(), name, s.ID},
			)
		}
	}
}

// inside returns the addresses that a namespace is a place of.
func (c *comparison) inside(ns *witness.Namespace) (all []netip.Addr) {
	for _, l := range ns.Links {
		for _, p := range l.Addrs {
			if c.has(ns, p.Addr()) {
				all = append(all, p.Addr())
			}
		}
	}
	return all
}

// has reports whether a namespace is a place of an address.
func (c *comparison) has(ns *witness.Namespace, a netip.Addr) bool {
	return slices.ContainsFunc(c.places[a], func(p witness.Sighting) bool { return p.Namespace == ns })
}

// notePod keeps the user of an address. The runtime counts more than the cluster; of two
// users of one witness the first one by name counts.
func (c *comparison) notePod(a netip.Addr, u user) {
	have, ok := c.pods[a]
	if !ok || u.by == witness.Runtime && have.by != u.by || u.by == have.by && u.text < have.text {
		c.pods[a] = u
	}
}

// complete reports whether the absence of an address from the kernel's view proves that
// no link has it.
func (c *comparison) complete() bool { return c.world.Kernel != nil && c.world.Kernel.Hidden == "" }

// blockOf returns the block that contains an address, nil for none.
func (c *comparison) blockOf(a netip.Addr) *ledger.BlockStat {
	for i := range c.book.Blocks {
		if c.book.Blocks[i].Block.Contains(a) {
			return &c.book.Blocks[i]
		}
	}
	return nil
}

// forPods reports whether a pool of the ledger is that of a pod network.
func (c *comparison) forPods(pool string) bool {
	return slices.ContainsFunc(c.book.Pools, func(p Pool) bool { return p.Network == pool }) ||
		slices.ContainsFunc(c.book.Subnets, func(s Subnet) bool { return s.Pool == pool })
}

// said is one statement of a source of evidence.
func said(by witness.Name, text string) []witness.Evidence {
	return []witness.Evidence{{Witness: by, Text: text}}
}

// add completes a finding and keeps it.
func (c *comparison) add(number string, subject Subject, text string, evidence []witness.Evidence, facts ...string) {
	k := kindOf(number)
	subject.Node = c.book.Node
	if evidence == nil {
		evidence = []witness.Evidence{}
	}
	fix := k.Fix
	if subject.Addr.IsValid() {
		fix = strings.ReplaceAll(fix, "ADDRESS", subject.Addr.String())
	}
	if subject.Object != "" {
		fix = strings.ReplaceAll(fix, " ID", " "+subject.Object)
	}
	f := Finding{
		Number:   k.Number,
		Name:     k.Name,
		Subject:  subject,
		Text:     text,
		Evidence: evidence,
		Repair:   k.Repair,
		Fix:      strings.ReplaceAll(fix, "`", ""),
	}
	if facts == nil {
		facts = []string{}
	}
	f.Sign(facts...)
	c.found = append(c.found, f)
}

func (c *comparison) ledgerItself() {
	for _, text := range c.book.Contradictions {
		c.add(numContradiction, Subject{Object: text}, text, said(Ledger, text))
	}
}
