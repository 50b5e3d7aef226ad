// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"maps"
	"math"
	"net/netip"
	"slices"
)

// States of a CIDR in the report.
const (
	InUse    = "in-use"
	Depleted = "depleted" // the node needs another CIDR
	Released = "released" // the node does not use it, and allocates nothing from it
)

// Thresholds holds the numbers of free addresses below which a node needs a CIDR, and
// from which it can do without one.
type Thresholds struct{ Allocate, Release uint64 }

// Thresholds of a set that has none. NeverRelease is the threshold of a node that keeps its
// CIDRs.
const (
	DefaultAllocate = 8
	DefaultRelease  = 16
	NeverRelease    = math.MaxUint64
)

// cidrState is the state of a CIDR in CIDRs.
type cidrState uint8

const (
	cidrActive   cidrState = iota
	cidrUnlisted           // in use, but no longer in the NetResourceSet
	cidrReleased           // reported as released: not allocated from until it was off the list
)

// CIDRs holds the CIDRs of one family in a cluster pool. It is a value.
type CIDRs struct {
	order []netip.Prefix // in which they are used up; an unlisted one keeps its place
	state map[netip.Prefix]cidrState
}

// NewCIDRs returns the list of active CIDRs, in the order in which they are used up.
func NewCIDRs(cidrs []netip.Prefix) CIDRs { return CIDRs{order: slices.Clone(cidrs)} }

// Listing holds what a NetResourceSet says of one family.
type Listing struct {
	CIDRs    []netip.Prefix
	Released map[netip.Prefix]bool // reported as released, by an earlier process
	First    bool                  // this process has seen no listing before
}

// hasPodAddress reports whether a CIDR has more than its first and last address.
func hasPodAddress(p netip.Prefix) bool { return p.Addr().BitLen()-p.Bits() >= 2 }

// Update returns the list after a NetResourceSet was received.
func (c CIDRs) Update(l Listing, used map[netip.Prefix]BlockUse) CIDRs {
	next := CIDRs{state: map[netip.Prefix]cidrState{}}
	if l.First { // the order of an earlier process is not known
		next.order = append(next.order, l.CIDRs...)
	}
	for _, p := range c.order {
		listed := slices.Contains(l.CIDRs, p)
		switch {
		case listed && !l.First:
			next.order = append(next.order, p)
			if c.state[p] == cidrReleased {
				next.state[p] = cidrReleased
			}
		case !listed && c.state[p] != cidrReleased && used[p].Held > 0:
			next.order = append(next.order, p)
			next.state[p] = cidrUnlisted
		}
	}
	for _, p := range l.CIDRs {
		if !slices.Contains(next.order, p) {
			next.order = append(next.order, p)
		}
		if !hasPodAddress(p) || l.First && l.Released[p] && used[p].Held == 0 {
			next.state[p] = cidrReleased
		}
	}
	return next
}

// All returns the CIDRs of all states, in order.
func (c CIDRs) All() []netip.Prefix { return c.order }

// Active returns the CIDRs that addresses are allocated from, in order.
func (c CIDRs) Active() (all []netip.Prefix) {
	for _, p := range c.order {
		if c.state[p] == cidrActive {
			all = append(all, p)
		}
	}
	return all
}

// Release returns the list with released released.
func (c CIDRs) Release(released []netip.Prefix) CIDRs {
	next := CIDRs{order: c.order, state: maps.Clone(c.state)}
	if next.state == nil {
		next.state = map[netip.Prefix]cidrState{}
	}
	for _, p := range released {
		next.state[p] = cidrReleased
	}
	return next
}

// Review returns the state of each CIDR to report, and the CIDRs that can be released. It
// changes nothing.
func (c CIDRs) Review(
	t Thresholds,
	used map[netip.Prefix]BlockUse,
) (states map[string]string, unneeded []netip.Prefix) {
	states = map[string]string{}
	free := uint64(0)
	for _, p := range c.Active() {
		free = add(free, used[p].Free)
	}
	short := free < t.Allocate
	for _, p := range slices.Backward(c.order) {
		u, state := used[p], c.state[p]
		switch {
		case state == cidrReleased, state == cidrUnlisted && u.Held == 0:
			states[p.String()] = Released
		case state == cidrUnlisted, short, u.Held > 0 && u.Free == 0:
			states[p.String()] = Depleted
		case u.Held == 0 && free-min(free, u.Free) >= t.Release && free != math.MaxUint64:
			states[p.String()] = Released
			unneeded = append(unneeded, p)
			free -= u.Free
		default:
			states[p.String()] = InUse
		}
	}
	return states, unneeded
}

// add returns a + b, or the largest number.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
