// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// cooling is a block that has no owner and is not free yet.
type cooling struct {
	prefix netip.Prefix
	in     *rangeState
	since  time.Time
	shared bool // it overlaps another block, or did
}

// coolingIn yields the cooling blocks that overlap p.
func (s *Set) coolingIn(p netip.Prefix) iter.Seq[*cooling] {
	return func(yield func(*cooling) bool) {
		for i := range s.cooling {
			if c := &s.cooling[i]; c.prefix.Overlaps(p) && !yield(c) {
				return
			}
		}
	}
}

// expire frees the blocks whose cool-down is over. It takes longer after the clock was
// set back.
func (s *Set) expire(now time.Time) {
	for len(s.cooling) > 0 && now.Sub(s.cooling[0].since) >= s.policy.CoolDown {
		c := s.cooling[0]
		s.cooling[0] = cooling{}
		s.cooling = s.cooling[1:]
		c.in.Cooling--
		if !c.shared {
			c.in.release(c.prefix)
			continue
		}
		for p := range without(c.prefix, s.claimed(c.prefix, true)) {
			c.in.release(p)
		}
	}
}

// reuse makes the cooling block b one of an owner again, if it cools as a whole.
func (s *Set) reuse(b block) bool {
	i := slices.IndexFunc(s.cooling, func(c cooling) bool { return c.prefix == b.prefix && c.in == b.in })
	if i < 0 {
		return false
	}
	s.cooling = slices.Delete(s.cooling, i, i+1)
	b.in.Cooling--
	b.in.Allocated += b.in.blocksOf(b.prefix)
	return true
}

// vacate lets p, which has no owner any more, cool. Without a cool-down, or with the
// zero time, it frees p.
func (s *Set) vacate(r *rangeState, p netip.Prefix, now time.Time, shared bool) {
	r.Released += r.blocksOf(p)
	if !s.cools(now) {
		r.release(p)
		return
	}
	if len(s.cooling) == cap(s.cooling) {
		s.cooling = slices.Grow(s.cooling, len(s.cooling)+1)
	}
	s.cooling = append(s.cooling, cooling{prefix: p, in: r, since: now, shared: shared})
	r.Cooling++
}

func (s *Set) cools(now time.Time) bool { return s.policy.CoolDown > 0 && !now.IsZero() }

// vacateShared is vacate for a block that other owners may claim parts of, or that is
// not wholly inside one range.
func (s *Set) vacateShared(b block, now time.Time) {
	others := s.claimed(b.prefix, !s.cools(now))
	for _, r := range s.ranges {
		part, ok := overlap(r.Prefix, b.prefix)
		if !ok {
			continue
		}
		for p := range without(part, others) {
			shared := false
			for c := range s.coolingIn(p) {
				c.shared, shared = true, true
			}
			s.vacate(r, p, now, shared)
		}
	}
}

// claimed returns the blocks that overlap p and are reserved or have an owner, and, if
// cooling is set, those that cool.
func (s *Set) claimed(p netip.Prefix, cooling bool) (all []netip.Prefix) {
	for _, b := range s.overlapping(p) {
		all = append(all, b.prefix)
	}
	if cooling {
		for c := range s.coolingIn(p) {
			all = append(all, c.prefix)
		}
	}
	return all
}

// without yields the fewest prefixes that together are p without the others.
func without(p netip.Prefix, others []netip.Prefix) iter.Seq[netip.Prefix] {
	rest := addrspace.New(p)
	slices.SortFunc(others, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, other := range others {
		if part, ok := overlap(p, other); ok {
			rest.Take(part) // false for a part of what a wider one has taken
		}
	}
	return rest.FreePrefixes()
}
