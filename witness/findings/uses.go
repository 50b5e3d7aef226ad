// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Use says that an address is in use now.
type Use struct {
	Addr     netip.Addr
	Pool     string // the pool of the ledger that has it in a block, "" if none has
	Pod      string // namespace/name of the pod that uses it, "" if that is not known
	Text     string // such as "10.1.5.7 is on eth0 of pod shop/web-5 (/run/netns/web-5)"
	Evidence []witness.Evidence
}

// UsesOf returns the uses of leased addresses, one an address at most. They are what ends
// if the leases end.
func UsesOf(book Book, world *witness.World, leases []ledger.Lease) (all []Use) {
	c := newComparison(book, world)
	for i := range leases {
		l := &leases[i]
		u := c.use(l.Addr)
		if s := c.sandboxOf(l); s != nil {
			text := fmt.Sprintf("%s has sandbox %s of pod %s/%s, which is ready",
				world.Runtime.Name, s.ID, s.Namespace, s.Name)
			u.add("is leased to a sandbox that runs", witness.Runtime, text)
			u.Pod = s.Namespace + "/" + s.Name
		}
		if len(u.Evidence) > 0 {
			u.Pool = l.Pool
			all = append(all, u)
		}
	}
	return all
}

// UsesOfPool returns the uses of the leases of a pool of Docker's driver. If there are none,
// it returns the networks of the engine that have the subnet of the pool: a container that is
// started there gets no address without the pool.
func UsesOfPool(book Book, world *witness.World, subnet netip.Prefix, leases []ledger.Lease) []Use {
	if all := UsesOf(book, world, leases); len(all) > 0 {
		return all
	}
	var all []Use
	for _, n := range newComparison(book, world).engineNetworks() {
		if slices.ContainsFunc(n.Pools, func(p witness.EnginePool) bool { return p.Subnet == subnet }) {
			text := fmt.Sprintf("network %s of the engine has subnet %s", n.Name, subnet)
			all = append(all, Use{Text: text, Evidence: said(witness.Engine, text)})
		}
	}
	return all
}

// UsesWithoutLease returns the uses of addresses of this node's networks that the book does
// not explain. In such a use the address has no lease, it is quarantined, or the pod that
// uses it is not the one that holds it.
func UsesWithoutLease(book Book, world *witness.World) (all []Use) {
	c := newComparison(book, world)
	for _, a := range c.usedAddresses() {
		u, l, free := c.use(a), c.held(a), c.ownerless(a)
		switch {
		case l != nil && (l.Purpose == ledger.ForInfra || !c.usedByAnother(l, a)):
			continue
		case l != nil:
			u.Pool, u.Text = l.Pool, u.Text+", and is leased to "+holder(l)
		case len(free) > 0:
			u.Pool = free[0].Pool
		case c.blockOf(a) != nil || !c.ofNetworks(a):
			continue
		}
		all = append(all, u)
	}
	return all
}

// use returns what the witnesses show of an address, without its pool.
func (c *comparison) use(a netip.Addr) Use {
	u := Use{Addr: a, Text: a.String()}
	for _, p := range c.places[a] {
		pod := c.podOf(p.Namespace)
		if pod == "" && !p.Namespace.Host {
			pod = c.pods[a].pod
		}
		where := p.Namespace.String()
		if pod != "" {
			where = fmt.Sprintf("pod %s (%s)", pod, p.Namespace.Label())
			u.Pod = pod
		}
		u.add("is on "+p.Link.Name+" of "+where, witness.Kernel, p.String())
	}
	if x, ok := c.pods[a]; ok && x.by == witness.Runtime {
		u.add("is the address of pod "+x.pod, x.by, x.text)
		u.Pod = x.pod
	}
	for _, text := range c.uses(a) {
		u.add("is in use: "+text, witness.Engine, text)
	}
	return u
}

// add adds a statement of a witness. The text tells the first one of each witness's kind:
// the kernel's counts more than that of the runtime.
func (u *Use) add(text string, by witness.Name, evidence string) {
	switch {
	case len(u.Evidence) == 0:
		u.Text += " " + text
	case by == witness.Kernel:
		u.Text += " and " + strings.TrimPrefix(text, "is ")
	}
	u.Evidence = append(u.Evidence, witness.Evidence{Witness: by, Text: evidence})
}

// sandboxOf returns the sandbox of a pod's lease if it is ready, otherwise nil.
func (c *comparison) sandboxOf(l *ledger.Lease) *witness.Sandbox {
	if c.world.Runtime == nil || l.Purpose != ledger.ForPod || l.Key.ContainerID == "" {
		return nil
	}
	if s := c.world.Runtime.Find(l.Key.ContainerID); s != nil && s.Ready {
		return s
	}
	return nil
}

// held returns the lease that explains the use of an address, nil for none.
func (c *comparison) held(a netip.Addr) *ledger.Lease {
	for _, l := range c.leased[a] {
		if held(l) {
			return l
		}
	}
	return nil
}

// usedByAnother reports whether witnesses show an address in use, and not by its holder.
func (c *comparison) usedByAnother(l *ledger.Lease, a netip.Addr) bool {
	if x, ok := c.pods[a]; ok && x.containerID != "" && l.Purpose == ledger.ForPod && !l.Key.OfAPI() {
		return x.containerID != l.Key.ContainerID
	}
	places := c.places[a]
	if l.NetNS == "" || len(places) == 0 {
		return false
	}
	own := func(p witness.Sighting) bool { return slices.Contains(p.Namespace.Paths, l.NetNS) }
	return !slices.ContainsFunc(places, own)
}

// ofNetworks reports whether an address is in a range of a pod network, or one that the
// engine uses in a network of our driver.
func (c *comparison) ofNetworks(a netip.Addr) bool {
	for _, p := range c.book.Pools {
		if slices.ContainsFunc(p.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
			inside := func(p witness.Sighting) bool { return !p.Namespace.Host }
			return len(c.places[a]) == 0 || slices.ContainsFunc(c.places[a], inside)
		}
	}
	return len(c.uses(a)) > 0
}
