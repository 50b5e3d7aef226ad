// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Occupy records that o has p, because its Node object says so. It is recorded whatever
// the result: a Conflict if another owner holds a part of p, or p is reserved;
// ErrOutOfRange if p is not wholly inside one range. Repeating the call changes nothing,
// and reports a conflict for as long as there is one.
func (s *Set) Occupy(o Owner, p netip.Prefix, now time.Time) error {
	s.expire(now)
	p = p.Masked()
	h, known := s.holding(o)
	if !known {
		s.owners[o.ID] = h
	} else if i := h.find(p); i >= 0 {
		s.confirm(&h.blocks[i])
		return s.check(h, h.blocks[i])
	}
	b := block{prefix: p, in: s.rangeOf(p)}
	if b.in != nil && b.in.take(p) {
		b.in.Allocated += b.in.blocksOf(p)
	} else {
		b.shared = s.contest(b)
	}
	s.count(b, 1)
	h.blocks = append(h.blocks, b)
	return s.check(h, b)
}

// check returns an error if a block of h is in conflict, or out of range.
func (s *Set) check(h *holding, b block) error {
	if b.shared {
		if all := s.conflicts(h.owner, b.prefix); len(all) > 0 {
			return all[0]
		}
	}
	if b.in == nil {
		return fmt.Errorf("%s of node %q: %w", b.prefix, h.owner.Name, ErrOutOfRange)
	}
	return nil
}

// Conflicts returns the conflicts of o's blocks with those of other owners and with
// reserved prefixes.
func (s *Set) Conflicts(o Owner) (all []*Conflict) {
	h := s.owners[o.ID]
	if h == nil {
		return nil
	}
	for _, b := range h.blocks {
		if b.shared {
			all = append(all, s.conflicts(o, b.prefix)...)
		}
	}
	return all
}

// conflicts returns what keeps p from o: reserved prefixes first, then other owners by
// name.
func (s *Set) conflicts(o Owner, p netip.Prefix) (all []*Conflict) {
	for h, b := range s.overlapping(p) {
		if h.owner != o {
			all = append(all, &Conflict{Owner: o, block: p, Holder: h.owner, Held: b.prefix})
		}
	}
	slices.SortStableFunc(all, func(a, b *Conflict) int { return a.Holder.compare(b.Holder) })
	return all
}

// Reserve keeps p, also in ranges that are added later, from being allocated. An owner
// of a part of it keeps that part.
func (s *Set) Reserve(p netip.Prefix) {
	p = p.Masked()
	if s.reserved.find(p) < 0 {
		b := block{prefix: p, in: s.rangeOf(p)}
		b.shared = s.contest(b)
		s.reserved.blocks = append(s.reserved.blocks, b)
	}
}

// CheckBlocks returns an error unless every one of the prefixes is exactly one
// block of a range, without host bits, and no pool has two of them. fits reports
// whether a range can have a block of a length.
func (s *Set) CheckBlocks(all []netip.Prefix, fits func(r Range, bits int) bool) error {
	var pools []int
	for _, p := range all {
		r := s.rangeOf(p.Masked())
		if r == nil {
			return fmt.Errorf("%s: %w", p, ErrOutOfRange)
		}
		if p != p.Masked() || !fits(r.Range, p.Bits()) {
			return fmt.Errorf("%s: %w of range %s, such as %s",
				p, errNotOneBlock, r.Prefix, netip.PrefixFrom(p.Addr(), r.Bits).Masked())
		}
		if slices.Contains(pools, r.Pool) {
			return fmt.Errorf("%s: %w: it is the second one of pool %d, and a node has one of each pool",
				p, errNotOneBlock, r.Pool)
		}
		pools = append(pools, r.Pool)
	}
	return nil
}

// CheckFree returns a Conflict if another owner has a part of one of the prefixes,
// or if it is reserved.
func (s *Set) CheckFree(o Owner, all []netip.Prefix) error {
	for _, p := range all {
		if conflicts := s.conflicts(o, p); len(conflicts) > 0 {
			return conflicts[0]
		}
	}
	return nil
}

// contest takes the free parts of b, which is not free as a whole, and marks the blocks
// that have the rest as shared. It reports whether b is shared.
func (s *Set) contest(b block) (shared bool) {
	reused := s.reuse(b)
	for _, other := range s.overlapping(b.prefix) {
		other.shared, shared = true, true
	}
	for c := range s.coolingIn(b.prefix) {
		c.shared, shared = true, true
	}
	for _, r := range s.ranges {
		if part, ok := overlap(r.Prefix, b.prefix); ok && !reused {
			r.Allocated += r.takeRest(part)
		}
	}
	return shared
}

// overlapping yields all blocks that overlap p, the reserved ones first.
func (s *Set) overlapping(p netip.Prefix) iter.Seq2[*holding, *block] {
	return func(yield func(*holding, *block) bool) {
		if !s.reserved.yield(p, yield) {
			return
		}
		for _, h := range s.owners {
			if !h.yield(p, yield) {
				return
			}
		}
	}
}

func (h *holding) yield(p netip.Prefix, yield func(*holding, *block) bool) bool {
	for i := range h.blocks {
		if b := &h.blocks[i]; b.prefix.Overlaps(p) && !yield(h, b) {
			return false
		}
	}
	return true
}
