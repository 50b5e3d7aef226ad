// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddRange adds a range, from which blocks are given from now on. What owners
// say that they have of it, and what is reserved, is taken already.
func (s *Set) AddRange(r Range) error {
	r.Prefix = r.Prefix.Masked()
	if err := s.checkRange(r); err != nil {
		return fmt.Errorf("add range %s: %w", r.Prefix, err)
	}
	t := newTract(r)
	s.tracts = append(s.tracts, t)
	s.pools = max(s.pools, r.Pool+1)
	for h, b := range s.overlapping(r.Prefix) {
		part, _ := overlap(r.Prefix, b.prefix())
		t.counters.allocated += t.takeRest(part)
		if !t.has(b.prefix()) {
			continue
		}
		if b.tract = t; h != &s.reserve {
			t.blocks++
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
	for _, t := range s.tracts {
		if t.Prefix.Overlaps(r.Prefix) {
			return fmt.Errorf("%w: it overlaps %s", ErrRange, t.Prefix)
		}
		if t.Pool == r.Pool && t.Prefix.Addr().Is4() != r.Prefix.Addr().Is4() {
			return fmt.Errorf("%w: pool %d has the other family (%s)", ErrRange, r.Pool, t.Prefix)
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

// DrainRange stops giving blocks of a range. Those that are held stay.
func (s *Set) DrainRange(p netip.Prefix) error { return s.setDraining(p, true) }

// ResumeRange is the reverse of DrainRange.
func (s *Set) ResumeRange(p netip.Prefix) error { return s.setDraining(p, false) }

func (s *Set) setDraining(p netip.Prefix, draining bool) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("drain or resume range %s: %w", p, ErrNoRange)
	}
	s.tracts[i].draining = draining
	return nil
}

func (s *Set) indexOf(p netip.Prefix) int {
	return slices.IndexFunc(s.tracts, func(t *tract) bool { return t.Prefix == p.Masked() })
}

// RemoveRange removes a range of which nobody holds anything and nothing cools.
func (s *Set) RemoveRange(p netip.Prefix) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("remove range %s: %w", p, ErrNoRange)
	}
	t := s.tracts[i]
	for h, b := range s.overlapping(t.Prefix) {
		if h != &s.reserve {
			return fmt.Errorf("remove range %s: %w: node %q has %s, %d blocks in all are held", p, ErrInUse, h.owner.Name, b.prefix(), t.blocks)
		}
	}
	if t.cooling > 0 {
		return fmt.Errorf("remove range %s: %w: %d blocks are cooling", p, ErrInUse, t.cooling)
	}
	s.tracts = slices.Delete(s.tracts, i, i+1)
	for i := range s.reserve.blocks {
		if b := &s.reserve.blocks[i]; b.tract == t {
			b.tract = nil
		}
	}
	return nil
}

// Resize changes the size of the blocks that a range gives from now on.
func (s *Set) Resize(p netip.Prefix, bits int) error {
	i := s.indexOf(p)
	if i < 0 {
		return fmt.Errorf("resize the blocks of range %s: %w", p, ErrNoRange)
	}
	if err := checkBits(s.tracts[i].Prefix, bits); err != nil {
		return fmt.Errorf("resize the blocks of range %s: %w", p, err)
	}
	s.tracts[i].resize(bits)
	return nil
}

// Ranges are the ranges, in the order in which they were added.
func (s *Set) Ranges() []Range {
	all := make([]Range, len(s.tracts))
	for i, t := range s.tracts {
		all[i] = t.Range
	}
	return all
}
