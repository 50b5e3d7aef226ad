// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddRange adds a range from which blocks are allocated from now on. Reserved prefixes,
// and blocks that owners hold of it already, are taken.
func (s *Set) AddRange(r Range) error {
	r.Prefix = r.Prefix.Masked()
	if err := s.checkRange(r); err != nil {
		return fmt.Errorf("add range %s: %w", r.Prefix, err)
	}
	added := newRange(r)
	s.ranges = append(s.ranges, added)
	s.pools = max(s.pools, r.Pool+1)
	for h, b := range s.overlapping(r.Prefix) {
		part, _ := overlap(r.Prefix, b.prefix)
		added.Allocated += added.takeRest(part)
		if !covers(r.Prefix, b.prefix) {
			continue
		}
		if b.in = added; h != &s.reserved {
			added.Blocks++
			s.foreign--
		}
	}
	return nil
}

func (s *Set) checkRange(r Range) error {
	if !r.Prefix.IsValid() {
		return fmt.Errorf("%w: no prefix", ErrRange)
	}
	if err := checkBits(r.Prefix, r.Bits); err != nil {
		return err
	}
	if r.Pool < 0 || r.Pool > s.pools {
		return fmt.Errorf("%w: pool %d, but there are %d", ErrRange, r.Pool, s.pools)
	}
	for _, other := range s.ranges {
		if other.Prefix.Overlaps(r.Prefix) {
			return fmt.Errorf("%w: it overlaps %s", ErrRange, other.Prefix)
		}
		if other.Pool == r.Pool && other.Prefix.Addr().Is4() != r.Prefix.Addr().Is4() {
			return fmt.Errorf("%w: pool %d has the other family (%s)", ErrRange, r.Pool, other.Prefix)
		}
	}
	return nil
}

func checkBits(p netip.Prefix, bits int) error {
	if bits < p.Bits() {
		return fmt.Errorf("%w: a block of /%d is larger than the range %s", ErrSize, bits, p)
	}
	if width := p.Addr().BitLen(); bits > width {
		return fmt.Errorf("%w: a block of /%d is longer than the %d bits of an address", ErrSize, bits, width)
	}
	return nil
}

// DrainRange stops allocation from a range. Its owners keep their blocks.
func (s *Set) DrainRange(p netip.Prefix) error { return s.setDraining(p, true) }

// ResumeRange is the reverse of DrainRange.
func (s *Set) ResumeRange(p netip.Prefix) error { return s.setDraining(p, false) }

func (s *Set) setDraining(p netip.Prefix, draining bool) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("drain or resume range %s: %w", p, ErrNoRange)
	}
	s.ranges[i].Draining = draining
	return nil
}

func (s *Set) indexOf(p netip.Prefix) int {
	return slices.IndexFunc(s.ranges, func(r *rangeState) bool { return r.Prefix == p.Masked() })
}

// RemoveRange removes a range of which no block has an owner or cools.
func (s *Set) RemoveRange(p netip.Prefix) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("remove range %s: %w", p, ErrNoRange)
	}
	r := s.ranges[i]
	if held := s.conflicts(Owner{}, r.Prefix); len(held) > 0 {
		return fmt.Errorf("remove range %s: %w: node %q has %s, %d blocks in all are held",
			p, ErrInUse, held[0].Holder.Name, held[0].Held, r.Blocks)
	}
	if r.Cooling > 0 {
		return fmt.Errorf("remove range %s: %w: %d blocks are cooling", p, ErrInUse, r.Cooling)
	}
	s.ranges = slices.Delete(s.ranges, i, i+1)
	for i := range s.reserved.blocks {
		if b := &s.reserved.blocks[i]; b.in == r {
			b.in = nil
		}
	}
	return nil
}

// Resize changes the size of the blocks that are allocated from a range.
func (s *Set) Resize(p netip.Prefix, bits int) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("resize the blocks of range %s: %w", p, ErrNoRange)
	}
	if err := checkBits(s.ranges[i].Prefix, bits); err != nil {
		return fmt.Errorf("resize the blocks of range %s: %w", p, err)
	}
	s.ranges[i].resize(bits)
	return nil
}

// Ranges returns the ranges in the order in which they were added.
func (s *Set) Ranges() []Range {
	all := make([]Range, len(s.ranges))
	for i, r := range s.ranges {
		all[i] = r.Range
	}
	return all
}
