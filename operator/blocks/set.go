// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Order selects which of the free blocks is taken.
type Order uint8

const (
	// NextFit takes the next free block behind the last one taken, and wraps around.
	NextFit Order = iota
	// Lowest takes the lowest free block.
	Lowest
)

// Policy applies to all ranges of a Set.
type Policy struct {
	Order    Order
	CoolDown time.Duration // how long a released block stays unused
}

// Range is a prefix from which nodes get blocks.
type Range struct {
	Prefix netip.Prefix
	Bits   int // prefix length of a node's block
	Pool   int // every node gets one block of every pool
}

// Set holds ranges and the owners of their blocks. Use New.
type Set struct {
	policy   Policy
	ranges   []*rangeState
	pools    int
	owners   map[ID]*holding
	idle     []*holding // of no owner
	pending  int        // blocks
	foreign  int        // blocks that are not wholly inside one range
	cooling  []cooling
	reserved holding // of the zero Owner
}

// New returns a Set without ranges.
func New(policy Policy) *Set { return &Set{policy: policy, owners: map[ID]*holding{}} }

// Allocate gives o one block of every pool, as Choose does with these sizes.
func (s *Set) Allocate(o Owner, sizes []int, now time.Time) ([]netip.Prefix, error) {
	return s.Choose(o, Choice{Sizes: sizes}, now)
}

// Choose gives o one block of every pool of which it has none, in the order of the
// pools. The blocks are pending. If one pool has none left, o gets nothing. The result
// includes the blocks that o had before.
func (s *Set) Choose(o Owner, c Choice, now time.Time) ([]netip.Prefix, error) {
	s.expire(now)
	h, known := s.holding(o)
	var room [2]grant
	grants := room[:0]
	for pool := range s.pools {
		if s.served(h, pool) {
			continue
		}
		g, err := s.grant(o, pool, &c)
		if err != nil {
			undo(grants)
			if !known {
				s.recycle(h)
			}
			return nil, err
		}
		grants = append(grants, g)
	}
	if len(h.blocks)+len(grants) == 0 {
		s.recycle(h)
		return nil, fmt.Errorf("allocate for node %q: %w", o.Name, ErrNoRange)
	}
	for _, g := range grants {
		b := block{prefix: g.prefix, in: g.in, pending: true}
		if g.cooled {
			s.reuse(b)
		} else {
			g.in.Allocated += g.in.blocksOf(g.prefix)
		}
		s.pending++
		g.in.Blocks++
		h.blocks = append(h.blocks, b)
	}
	if !known {
		s.owners[o.ID] = h
	}
	return h.prefixes(), nil
}

// served reports whether an owner needs no block of a pool. It needs none if it has one
// of the pool, if it has a block of the pool's family outside of all ranges, or if the
// pool has no ranges.
func (s *Set) served(h *holding, pool int) bool {
	i := slices.IndexFunc(s.ranges, func(r *rangeState) bool { return r.Pool == pool })
	if i < 0 {
		return true
	}
	is4 := s.ranges[i].Prefix.Addr().Is4()
	return slices.ContainsFunc(h.blocks, func(b block) bool {
		if b.in == nil {
			return b.prefix.Addr().Is4() == is4
		}
		return b.in.Pool == pool
	})
}

// grant is a block that an allocation has found and can still give up.
type grant struct {
	prefix netip.Prefix
	in     *rangeState
	cursor netip.Addr // of the range, before
	cooled bool       // the block was cooling, and is until the allocation succeeds
}

// grant finds a block of a pool for o.
func (s *Set) grant(o Owner, pool int, c *Choice) (grant, error) {
	if g, ok := s.preferred(pool, c); ok {
		return g, nil
	}
	fits, size := false, c.sizeOf(pool)
	for _, r := range s.ranges {
		bits, ok := c.bits(r)
		if r.Pool != pool || !ok {
			continue
		}
		fits = true
		if r.Draining {
			continue
		}
		before := r.cursor
		if p, ok := r.next(bits, s.policy.Order, c.Taken); ok {
			return grant{prefix: p, in: r, cursor: before}, nil
		}
	}
	if !fits {
		return grant{}, fmt.Errorf(
			"allocate for node %q: %w: no range of pool %d can be cut in /%d",
			o.Name,
			ErrSize,
			pool,
			size,
		)
	}
	return grant{}, s.exhausted(o, pool, c)
}

// undo frees the blocks that an allocation has found.
func undo(grants []grant) {
	for _, g := range grants {
		g.in.cursor = g.cursor
		if !g.cooled {
			g.in.release(g.prefix)
		}
	}
}

func (s *Set) exhausted(o Owner, pool int, c *Choice) *Exhausted {
	e := &Exhausted{Node: o.Name, Pool: pool, bits: c.sizeOf(pool)}
	for _, r := range s.ranges {
		if r.Pool != pool {
			continue
		}
		if e.bits == 0 {
			e.bits = r.Bits
		}
		e.capacity += r.Capacity
		e.used += r.Used
		e.cooling += r.Cooling
		if bits, ok := c.bits(r); ok && c.Taken != nil && !r.Draining {
			e.claimed += r.freeBlocks(bits) // Taken excludes all of them
		}
	}
	if i := slices.IndexFunc(s.cooling, func(c cooling) bool { return c.in.Pool == pool }); i >= 0 {
		e.Next = s.cooling[i].since.Add(s.policy.CoolDown)
	}
	return e
}

// Confirm records that o knows its blocks: none of them is pending any more.
func (s *Set) Confirm(o Owner) {
	if h := s.owners[o.ID]; h != nil {
		for i := range h.blocks {
			s.confirm(&h.blocks[i])
		}
	}
}

func (s *Set) confirm(b *block) {
	if b.pending {
		b.pending = false
		s.pending--
	}
}

// Return frees a block that o has never used. It does not cool.
func (s *Set) Return(o Owner, p netip.Prefix) error {
	if err := s.releaseBlock(o, p, time.Time{}); err != nil {
		return fmt.Errorf("return %s of node %q: %w", p, o.Name, err)
	}
	return nil
}

// ReleaseBlock frees one block of o. It cools first.
func (s *Set) ReleaseBlock(o Owner, p netip.Prefix, now time.Time) error {
	s.expire(now)
	if err := s.releaseBlock(o, p, now); err != nil {
		return fmt.Errorf("release %s of node %q: %w", p, o.Name, err)
	}
	return nil
}

func (s *Set) releaseBlock(o Owner, p netip.Prefix, now time.Time) error {
	h := s.owners[o.ID]
	if h == nil || h.find(p) < 0 {
		return errNotHeld
	}
	s.drop(h, h.find(p), now)
	if len(h.blocks) == 0 {
		s.forget(h)
	}
	return nil
}

// Release frees all blocks of o, whose Node object is gone. They cool first.
func (s *Set) Release(o Owner, now time.Time) error {
	s.expire(now)
	h := s.owners[o.ID]
	if h == nil {
		return fmt.Errorf("release the blocks of node %q: %w", o.Name, errNotHeld)
	}
	for len(h.blocks) > 0 {
		s.drop(h, len(h.blocks)-1, now)
	}
	s.forget(h)
	return nil
}

// drop takes block i from h. It cools from now on; with the zero time it is free at once.
func (s *Set) drop(h *holding, i int, now time.Time) {
	b := h.blocks[i]
	s.confirm(&b)
	s.count(b, -1)
	h.blocks = slices.Delete(h.blocks, i, i+1)
	if b.in != nil && !b.shared {
		s.vacate(b.in, b.prefix, now, false)
		return
	}
	s.vacateShared(b, now)
}

// count adds n to the number of blocks of b's range, or of those of no range.
func (s *Set) count(b block, n int) {
	if b.in != nil {
		b.in.Blocks += n
	} else {
		s.foreign += n
	}
}

// Blocks returns the blocks of o, and whether some of them are pending.
func (s *Set) Blocks(o Owner) (all []netip.Prefix, pending bool) {
	h := s.owners[o.ID]
	if h == nil {
		return nil, false
	}
	return h.prefixes(), slices.ContainsFunc(h.blocks, func(b block) bool { return b.pending })
}

// Continue makes NextFit go on behind p, the last block that was allocated before the
// Set was created.
func (s *Set) Continue(p netip.Prefix) {
	if r := s.rangeOf(p); r != nil && p.Bits() <= r.unit {
		r.cursor = end(p)
	}
}
