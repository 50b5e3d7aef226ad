// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// Thresholds of a NetResourceSet that sets none.
const (
	defaultAllocationThreshold = 8
	defaultReleaseThreshold    = 16
)

// cidrState is the state of a CIDR in a cidrList.
type cidrState uint8

const (
	cidrActive   cidrState = iota
	cidrUnlisted           // in use, but no longer in the NetResourceSet
	cidrReleased           // reported as released: not allocated from until it was off the list
)

// cidrList holds the CIDRs of one family in a cluster pool. It is a value.
type cidrList struct {
	order []netip.Prefix // in which they are used up; an unlisted one keeps its place
	state map[netip.Prefix]cidrState
}

// usage counts the addresses of a block: leased or cooling ones, and free ones.
type usage struct{ held, free uint64 }

// listing holds what a NetResourceSet says of one family.
type listing struct {
	cidrs    []netip.Prefix
	released map[netip.Prefix]bool // reported as released, by an earlier process
	first    bool                  // this process has seen no listing before
}

// update returns the list after a NetResourceSet was received.
func (c cidrList) update(l listing, used map[netip.Prefix]usage) cidrList {
	next := cidrList{state: map[netip.Prefix]cidrState{}}
	if l.first { // the order of an earlier process is not known
		next.order = append(next.order, l.cidrs...)
	}
	for _, p := range c.order {
		listed := slices.Contains(l.cidrs, p)
		switch {
		case listed && !l.first:
			next.order = append(next.order, p)
			if c.state[p] == cidrReleased {
				next.state[p] = cidrReleased
			}
		case !listed && c.state[p] != cidrReleased && used[p].held > 0:
			next.order = append(next.order, p)
			next.state[p] = cidrUnlisted
		}
	}
	for _, p := range l.cidrs {
		if !slices.Contains(next.order, p) {
			next.order = append(next.order, p)
		}
		if !hasPodAddress(p) || l.first && l.released[p] && used[p].held == 0 {
			next.state[p] = cidrReleased
		}
	}
	return next
}

// active returns the CIDRs that addresses are allocated from, in order.
func (c cidrList) active() (all []netip.Prefix) {
	for _, p := range c.order {
		if c.state[p] == cidrActive {
			all = append(all, p)
		}
	}
	return all
}

// active returns the CIDRs of both families that addresses are allocated from.
func active(lists [2]cidrList) []netip.Prefix {
	return slices.Concat(lists[ledger.IPv4].active(), lists[ledger.IPv6].active())
}

// release returns the list with released released.
func (c cidrList) release(released []netip.Prefix) cidrList {
	next := cidrList{order: c.order, state: maps.Clone(c.state)}
	for _, p := range released {
		next.state[p] = cidrReleased
	}
	return next
}

// thresholds are the numbers of free addresses below which a node needs a CIDR,
// and from which it can do without one.
type thresholds struct{ allocate, release uint64 }

func (set *NetResourceSet) thresholds() thresholds {
	t := thresholds{uint64(defaultAllocationThreshold), uint64(defaultReleaseThreshold)}
	if set.AllocationThreshold > 0 {
		t.allocate = uint64(set.AllocationThreshold)
	}
	if set.ReleaseThreshold > 0 {
		t.release = uint64(set.ReleaseThreshold)
	}
	return t
}

// review returns the state of each CIDR to report, and the CIDRs that can be
// released. It changes nothing.
func (c cidrList) review(
	t thresholds,
	used map[netip.Prefix]usage,
) (states map[netip.Prefix]string, unneeded []netip.Prefix) {
	states = map[netip.Prefix]string{}
	free := uint64(0)
	for _, p := range c.active() {
		free = add(free, used[p].free)
	}
	short := free < t.allocate
	for _, p := range slices.Backward(c.order) {
		u, state := used[p], c.state[p]
		switch {
		case state == cidrReleased, state == cidrUnlisted && u.held == 0:
			states[p] = Released
		case state == cidrUnlisted, short, u.held > 0 && u.free == 0:
			states[p] = Depleted
		case u.held == 0 && free-min(free, u.free) >= t.release && free != math.MaxUint64:
			states[p] = Released
			unneeded = append(unneeded, p)
			free -= u.free
		default:
			states[p] = InUse
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

// updateCIDRs grants the CIDRs of a NetResourceSet.
func (m *IPAM) updateCIDRs(ctx context.Context, next *resources) error {
	used := m.usage()
	for f := range next.cidrs {
		next.cidrs[f] = next.cidrs[f].update(m.readCIDRs(ledger.Family(f), next.set), used)
	}
	return m.deps.Grants.Grant(ctx, m.pool, active(next.cidrs))
}

// readCIDRs reads the CIDRs of a family. It drops texts that are not a CIDR,
// repetitions and CIDRs that overlap an earlier one.
func (m *IPAM) readCIDRs(f ledger.Family, set *NetResourceSet) listing {
	l := listing{released: map[netip.Prefix]bool{}, first: m.resources.set == nil}
	for text, state := range set.Status.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && state == Released {
			l.released[p.Masked()] = true
		}
	}
	if m.allocatorOf(f) == nil {
		return l
	}
	for _, text := range set.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		p = p.Masked()
		switch {
		case err != nil:
			m.log.Error("a pod CIDR of the NetResourceSet cannot be parsed",
				"name", set.Name, "cidr", text, "error", err)
		case ledger.FamilyOf(p.Addr()) != f:
		case slices.ContainsFunc(l.cidrs, p.Overlaps):
			m.log.Error("a pod CIDR of the NetResourceSet overlaps an earlier one", "name", set.Name, "cidr", text)
		default:
			l.cidrs = append(l.cidrs, p)
		}
	}
	return l
}

// usage returns the counts of each block of the pool.
func (m *IPAM) usage() map[netip.Prefix]usage {
	used := map[netip.Prefix]usage{}
	for _, s := range m.stats() {
		used[s.Block] = usage{uint64(s.Held + s.Quarantined + s.Cooling + s.Infra), s.Free}
	}
	return used
}

// reviewCIDRs returns the state of all CIDRs. A CIDR that can be released drains,
// durably, before it is reported as released.
func (m *IPAM) reviewCIDRs(ctx context.Context) (map[string]string, error) {
	if m.resources.set == nil {
		return nil, nil
	}
	t := m.resources.set.thresholds()
	next, used, all := m.resources.cidrs, m.usage(), map[string]string{}
	var unneeded []netip.Prefix
	for f := range next {
		states, more := next[f].review(t, used)
		for p, s := range states {
			all[p.String()] = s
		}
		next[f] = next[f].release(more)
		unneeded = append(unneeded, more...)
	}
	if len(unneeded) == 0 {
		return all, nil
	}
	if err := m.deps.Grants.Grant(ctx, m.pool, active(next)); err != nil {
		return nil, err
	}
	used = m.usage() // an address may have been allocated before the grant
	if i := slices.IndexFunc(unneeded, func(p netip.Prefix) bool { return used[p].held > 0 }); i >= 0 {
		if err := m.deps.Grants.Grant(ctx, m.pool, active(m.resources.cidrs)); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s was to be released and is in use again", unneeded[i])
	}
	m.resources.cidrs = next
	m.publish()
	return all, nil
}
