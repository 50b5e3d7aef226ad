// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math"
	"net/netip"
	"slices"
)

// Thresholds of CIDRs where a NetResourceSet says none.
const (
	defaultAllocationThreshold = 8
	defaultReleaseThreshold    = 16
)

// cidrList is the CIDRs of one family in a cluster pool, as a value.
type cidrList struct {
	// order is the order in which they are used up. Those that are no longer
	// listed, but in use, keep their place.
	order []netip.Prefix
	gone  map[netip.Prefix]bool // no longer listed
	// released are those that were reported as released: nothing is lent of them
	// any more, until the list has been without them.
	released map[netip.Prefix]bool
}

// usage is the addresses of a block: those that a lease or a cool-down keeps,
// and those that can be lent.
type usage struct{ held, free uint64 }

// listing is what a NetResourceSet says of one family.
type listing struct {
	cidrs    []netip.Prefix
	reported map[netip.Prefix]bool // as released, by an earlier process
	first    bool                  // nothing was listed to this process before
}

// update is the list after a NetResourceSet has come.
func (c cidrList) update(l listing, used map[netip.Prefix]usage) cidrList {
	next := cidrList{gone: map[netip.Prefix]bool{}, released: map[netip.Prefix]bool{}}
	if l.first { // the order of an earlier process is not known: the list's comes first
		next.order = append(next.order, l.cidrs...)
	}
	for _, p := range c.order {
		listed := slices.Contains(l.cidrs, p)
		switch {
		case listed && !l.first:
			next.order = append(next.order, p)
			next.released[p] = c.released[p]
		case !listed && !c.released[p] && used[p].held > 0:
			next.order = append(next.order, p)
			next.gone[p] = true
		}
	}
	for _, p := range l.cidrs {
		if !slices.Contains(next.order, p) {
			next.order = append(next.order, p)
		}
		if !lendable(p) || l.first && l.reported[p] && used[p].held == 0 {
			next.released[p] = true
		}
	}
	return next
}

// lends are the CIDRs that addresses are lent of, in order.
func (c cidrList) lends() (all []netip.Prefix) {
	for _, p := range c.order {
		if !c.gone[p] && !c.released[p] {
			all = append(all, p)
		}
	}
	return all
}

// release is the list when ps are released.
func (c cidrList) release(ps []netip.Prefix) cidrList {
	next := cidrList{order: c.order, gone: c.gone, released: map[netip.Prefix]bool{}}
	for _, p := range c.order {
		next.released[p] = c.released[p] || slices.Contains(ps, p)
	}
	return next
}

// thresholds say when CIDRs are too few and when they are too many.
type thresholds struct{ allocate, release uint64 }

// review is the state of each CIDR, and those that can be given back. It
// changes nothing.
func (c cidrList) review(t thresholds, used map[netip.Prefix]usage) (states map[netip.Prefix]string, spare []netip.Prefix) {
	states = map[netip.Prefix]string{}
	free := uint64(0)
	for _, p := range c.lends() {
		free = add(free, used[p].free)
	}
	short := free < t.allocate
	for _, p := range slices.Backward(c.order) {
		u := used[p]
		switch {
		case c.released[p], c.gone[p] && u.held == 0:
			states[p] = Released
		case c.gone[p], short, u.held > 0 && u.free == 0:
			states[p] = Depleted
		case u.held == 0 && free-min(free, u.free) >= t.release && free != math.MaxUint64:
			states[p] = Released
			spare = append(spare, p)
			free -= u.free
		default:
			states[p] = InUse
		}
	}
	return states, spare
}

// add is a + b, or the largest number.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
