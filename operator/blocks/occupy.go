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

// Occupy records that o has p, as its Node object says. It is recorded whatever
// the answer: a Conflict where somebody else holds a part of it, ErrOutOfRange
// where it is not wholly of one range. Occupying again what one has changes
// nothing, and tells of the same conflicts as long as there are any.
func (s *Set) Occupy(o Owner, p netip.Prefix, now time.Time) error {
	s.expire(now)
	p = p.Masked()
	h := s.owners.find(o.ID)
	if h == nil {
		h = s.owners.take(o)
		s.owners.put(h)
	} else if i := h.find(p); i >= 0 {
		s.settle(&h.blocks[i])
		return s.reason(h, &h.blocks[i])
	}
	if t := s.tractOf(p); t != nil && t.take(p) {
		t.blocks++
		t.counters.allocated += t.blocksOf(p)
		h.blocks = append(h.blocks, newBlock(p, t))
		return nil
	}
	b := s.contest(p)
	s.tally(b, 1)
	h.blocks = append(h.blocks, b)
	return s.reason(h, &h.blocks[len(h.blocks)-1])
}

// Conflicts are the owners with whom o shares a block, each once.
func (s *Set) Conflicts(o Owner) []*Conflict {
	var all []*Conflict
	h := s.owners.find(o.ID)
	if h == nil {
		return nil
	}
	for i := range h.blocks {
		if b := &h.blocks[i]; b.shared {
			for other, held := range s.overlapping(b.prefix()) {
				if other != h {
					all = append(all, &Conflict{o, b.prefix(), other.owner, held.prefix()})
				}
			}
		}
	}
	return all
}

// reason is what is wrong with a block of h, nil where nothing is.
func (s *Set) reason(h *holding, b *block) error {
	if b.shared {
		for other, held := range s.overlapping(b.prefix()) {
			if other != h {
				return &Conflict{h.owner, b.prefix(), other.owner, held.prefix()}
			}
		}
	}
	if b.tract == nil {
		return fmt.Errorf("%s of node %q: %w", b.prefix(), h.owner.Name, ErrOutOfRange)
	}
	return nil
}

// Reserve makes what ranges have of p, also later ones, never lent. Who holds a
// part of it already keeps it.
func (s *Set) Reserve(p netip.Prefix) {
	p = p.Masked()
	if s.reserve.find(p) < 0 {
		s.reserve.blocks = append(s.reserve.blocks, s.contest(p))
	}
}

// CheckBlocks returns an error unless every one of the prefixes is exactly one
// block of a range, without host bits, and no pool has two of them. fits reports
// whether a range can have a block of a length.
func (s *Set) CheckBlocks(all []netip.Prefix, fits func(r Range, bits int) bool) error {
	var of []int // pools
	for _, p := range all {
		t := s.tractOf(p.Masked())
		if t == nil {
			return fmt.Errorf("%s: %w", p, ErrOutOfRange)
		}
		if p != p.Masked() || !fits(t.Range, p.Bits()) {
			return fmt.Errorf("%s: %w of range %s, such as %s", p, ErrNoBlock, t.Prefix, netip.PrefixFrom(p.Addr(), t.Bits).Masked())
		}
		if slices.Contains(of, t.Pool) {
			return fmt.Errorf("%s: %w: it is the second one of pool %d, and a node has one of each pool", p, ErrNoBlock, t.Pool)
		}
		of = append(of, t.Pool)
	}
	return nil
}

// CheckFree returns a Conflict if another owner has a part of one of the prefixes,
// or if it is reserved.
func (s *Set) CheckFree(o Owner, all []netip.Prefix) error {
	for _, p := range all {
		for other, held := range s.overlapping(p) {
			if other.owner != o {
				return &Conflict{o, p, other.owner, held.prefix()}
			}
		}
	}
	return nil
}

// tractOf is the range that has all of p.
func (s *Set) tractOf(p netip.Prefix) *tract {
	for _, t := range s.tracts {
		if t.has(p) {
			return t
		}
	}
	return nil
}

// tally counts a block of an owner, or, with -1, discounts it.
func (s *Set) tally(b block, n int) {
	if b.tract != nil {
		b.tract.blocks += n
	} else {
		s.foreign += n
	}
}

// contest takes of p what is free, and lets all who have the rest know that
// they share it.
func (s *Set) contest(p netip.Prefix) block {
	b := newBlock(p, s.tractOf(p))
	revived := s.revive(b)
	for _, other := range s.overlapping(p) {
		other.shared, b.shared = true, true
	}
	for c := range s.cooling.overlapping(p) {
		c.shared, b.shared = true, true
	}
	for _, t := range s.tracts {
		if part, ok := overlap(t.Prefix, p); ok && !revived {
			t.counters.allocated += t.takeRest(part)
		}
	}
	return b
}

// revive takes the block b, which is cooling, as it is.
func (s *Set) revive(b block) bool {
	for c := range s.cooling.overlapping(b.prefix()) {
		if c.prefix == b.prefix() && c.tract == b.tract {
			b.tract.cooling--
			b.tract.counters.allocated += b.tract.blocksOf(b.prefix())
			c.tract = nil
			return true
		}
	}
	return false
}

// overlapping yields all blocks that overlap p, the reserved ones first, with
// those who have them.
func (s *Set) overlapping(p netip.Prefix) iter.Seq2[*holding, *block] {
	return func(yield func(*holding, *block) bool) {
		if !s.reserve.yield(p, yield) {
			return
		}
		for h := range s.owners.all() {
			if !h.yield(p, yield) {
				return
			}
		}
	}
}

func (h *holding) yield(p netip.Prefix, yield func(*holding, *block) bool) bool {
	for i := range h.blocks {
		if b := &h.blocks[i]; b.prefix().Overlaps(p) && !yield(h, b) {
			return false
		}
	}
	return true
}

// vacateShared is vacate for a block of which others may claim parts, or that
// is not wholly of one range.
func (s *Set) vacateShared(b block, now time.Time) {
	others := s.others(b.prefix())
	cool := s.policy.CoolDown > 0 && !now.IsZero()
	if !cool {
		others = append(others, s.coolingIn(b.prefix())...)
	}
	for _, t := range s.tracts {
		part, ok := overlap(t.Prefix, b.prefix())
		if !ok {
			continue
		}
		for p := range without(part, others) {
			t.counters.released += t.blocksOf(p)
			if !cool {
				t.release(p)
				continue
			}
			shared := false
			for c := range s.cooling.overlapping(p) {
				c.shared, shared = true, true
			}
			s.cooling.push(cooling{prefix: p, tract: t, since: now, shared: shared})
			t.cooling++
		}
	}
}

// others are the blocks that overlap p and that somebody has.
func (s *Set) others(p netip.Prefix) (all []netip.Prefix) {
	for _, b := range s.overlapping(p) {
		all = append(all, b.prefix())
	}
	return all
}

func (s *Set) coolingIn(p netip.Prefix) (all []netip.Prefix) {
	for c := range s.cooling.overlapping(p) {
		all = append(all, c.prefix)
	}
	return all
}

// without yields the fewest prefixes that are p without the others.
func without(p netip.Prefix, others []netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) { without1(p, others, yield) }
}

func without1(p netip.Prefix, others []netip.Prefix, yield func(netip.Prefix) bool) bool {
	within := make([]netip.Prefix, 0, len(others))
	for _, o := range others {
		if covers(o, p) {
			return true
		}
		if o.Overlaps(p) {
			within = append(within, o)
		}
	}
	if len(within) == 0 {
		return yield(p)
	}
	low, high := halves(p)
	return without1(low, within, yield) && without1(high, within, yield)
}
