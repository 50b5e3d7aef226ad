// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// One rule says which addresses are in use without a lease. Check reports them, reclaim
// quarantines them, and accept does both. Where the rule can err, it gives away less:
//   - One witness suffices. The kernel shows no link of a data plane in user space.
//   - Only a lease in the pool of the block explains a use. Pools may overlap, and a lease of
//     the other pool may be that of another pod.
//   - A lease that cools explains nothing. The link of a pod whose removal hangs is still there.
//   - A quarantine ends only if every witness was read completely, and none shows a use. Here
//     the cluster counts too, which keeps the address of a pod that has ended.
//   - A stopped container uses nothing. A quarantine would keep it from its own fixed address.
//
// Check leaves out what a change in progress explains, and addresses of the host outside of
// pod networks: a pool of Docker may be the host's own network. It reports a quarantine that
// the witnesses it could ask do not need, since a repair asks all of them.

// Quarantines returns the addresses that need a quarantine, and the quarantines that none need,
// each with the evidence as its reason. A caller changes what two observations show.
func Quarantines(book Book, world *witness.World) (wanted, unused []ledger.Unleased) {
	c := newIndexes(book, world)
	c.indexWorld(func(a netip.Addr) bool { // most addresses have an owner: a round is cheap
		return len(c.ownerless(a)) > 0 || slices.ContainsFunc(c.leased[a], quarantined)
	})
	for _, a := range c.usedAddresses() {
		for _, b := range c.ownerless(a) {
			if b.State == ledger.Active && !c.leaseIn(b.Pool, a, quarantined) {
				wanted = append(wanted, ledger.Unleased{
					Pool: b.Pool, Addr: a, Key: witness.QuarantineKey(a), Reason: c.use(a).Evidence[0].String(),
				})
			}
		}
	}
	if len(world.Incomplete()) > 0 {
		return wanted, nil
	}
	for i := range c.book.Leases {
		if l := &c.book.Leases[i]; quarantined(l) && c.unused(l.Addr) {
			reason := c.answersNowhere(l.Addr).String()
			unused = append(unused, ledger.Unleased{Pool: l.Pool, Addr: l.Addr, Key: l.Key, Reason: reason})
		}
	}
	return wanted, unused
}

// usedAddresses returns the addresses that a witness shows in use, sorted.
func (c *comparison) usedAddresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(c.used), netip.Addr.Compare)
}

// indexUsed notes the addresses that a witness shows in use.
func (c *comparison) indexUsed() {
	for a := range c.places {
		c.used[a] = true
	}
	for a, u := range c.pods {
		if u.by == witness.Runtime { // the cluster keeps the address of a pod that ends
			c.used[a] = true
		}
	}
	for _, n := range c.engineNetworks() {
		for _, e := range n.Endpoints {
			for _, a := range e.Addrs {
				c.used[a] = true
			}
		}
		for _, p := range n.Pools {
			c.used[p.Gateway] = true
			for _, a := range p.Aux {
				c.used[a] = true
			}
		}
	}
	delete(c.used, netip.Addr{})
}

// ownerless returns the blocks with an address that nobody has leased in the pool of the
// block. Without a quarantine it may be allocated, at once or when it has cooled. An excluded
// address may have a user without a lease.
func (c *comparison) ownerless(a netip.Addr) (all []*ledger.BlockStat) {
	for i := range c.book.Blocks {
		b := &c.book.Blocks[i]
		excluded := func(e ledger.Exclusion) bool { return e.Pool == b.Pool && e.Addr == a }
		if b.Block.Contains(a) && !c.leaseIn(b.Pool, a, held) && !slices.ContainsFunc(c.book.Exclusions, excluded) {
			all = append(all, b)
		}
	}
	return all
}

// leaseIn reports whether an address has a lease of a kind in a pool.
func (c *comparison) leaseIn(pool string, a netip.Addr, kind func(*ledger.Lease) bool) bool {
	return slices.ContainsFunc(c.leased[a], func(l *ledger.Lease) bool { return l.Pool == pool && kind(l) })
}

// held reports whether a lease has an owner.
func held(l *ledger.Lease) bool { return l.State == ledger.Held || l.State == ledger.Pending }

// quarantined reports whether a lease is a quarantine.
func quarantined(l *ledger.Lease) bool { return l.State == ledger.Quarantined }

// changing reports whether an address had a lease until a moment ago, so that its link may
// still be there, or gets one.
func (c *comparison) changing(a netip.Addr) bool {
	return c.book.Changing[a] || slices.ContainsFunc(c.leased[a], func(l *ledger.Lease) bool {
		return l.State == ledger.Cooling && c.book.young(l)
	})
}

// unused reports whether the kernel and all witnesses that can be asked show no use of an address.
func (c *comparison) unused(a netip.Addr) bool {
	_, ofPod := c.pods[a]
	return c.complete() && !c.used[a] && !ofPod
}

// answersNowhere is the statement of the kernel about an address that is not in use.
func (c *comparison) answersNowhere(a netip.Addr) witness.Evidence {
	text := fmt.Sprintf("%s answers in none of %d network namespaces", a, len(c.world.Kernel.Namespaces))
	return witness.Evidence{Witness: witness.Kernel, Text: text}
}
