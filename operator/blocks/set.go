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

// Order is how free blocks are chosen.
type Order uint8

const (
	// NextFit goes on behind the block that was given last, and round again.
	NextFit Order = iota
	// Lowest always gives the lowest free block.
	Lowest
)

// Policy is for all ranges of a Set.
type Policy struct {
	Order    Order
	CoolDown time.Duration // how long a block is not lent after its owner is gone
}

// Range is a prefix of which nodes get blocks.
type Range struct {
	Prefix netip.Prefix
	Bits   int // prefix length of a node's block
	Pool   int // every node gets one block of every pool
}

// Set is the book. Use New.
type Set struct {
	policy  Policy
	tracts  []*tract
	pools   int
	owners  table
	pending int // blocks
	foreign int // blocks that are not wholly of one range
	cooling queue
	reserve holding // of nobody: what is never lent
}

// New makes a Set without ranges.
func New(policy Policy) *Set { return &Set{policy: policy} }

// Choose gives o one block of every pool of which it has none, in the order
// of the pools, pending; or, where one pool has none left, nothing at all. What
// o has already is among the answer.
func (s *Set) Choose(o Owner, c Choice, now time.Time) ([]netip.Prefix, error) {
	s.expire(now)
	h := s.owners.find(o.ID)
	fresh := h == nil
	if fresh {
		h = s.owners.take(o)
	}
	had := len(h.blocks)
	var revived []*cooling
	for pool := range s.pools {
		if s.served(h, pool) {
			continue
		}
		b, was, err := s.grant(o, pool, &c)
		if err != nil {
			s.undo(h, had, revived)
			if fresh {
				s.owners.give(h)
			}
			return nil, err
		}
		if was != nil {
			revived = append(revived, was)
		}
		h.blocks = append(h.blocks, b)
	}
	if len(h.blocks) == 0 {
		s.owners.give(h)
		return nil, fmt.Errorf("allocate for node %q: %w", o.Name, ErrNoRange)
	}
	if fresh {
		s.owners.put(h)
	}
	for i := had; i < len(h.blocks); i++ {
		h.blocks[i].pending = true
		s.pending++
	}
	return h.prefixes(), nil
}

// served is true where h has a block of the pool, or one outside of all ranges
// that is of its family.
func (s *Set) served(h *holding, pool int) bool {
	for i := range h.blocks {
		b := &h.blocks[i]
		if b.tract != nil && b.tract.Pool == pool {
			return true
		}
		if b.tract == nil && s.is4(pool) != b.is6 {
			return true
		}
	}
	return !slices.ContainsFunc(s.tracts, func(t *tract) bool { return t.Pool == pool })
}

func (s *Set) is4(pool int) bool {
	i := slices.IndexFunc(s.tracts, func(t *tract) bool { return t.Pool == pool })
	return i >= 0 && s.tracts[i].Prefix.Addr().Is4()
}

// grant takes for o a preferred block of a pool, or the next free one, of the
// size that c says or of the range's. was is the entry of a block that cooled.
func (s *Set) grant(o Owner, pool int, c *Choice) (b block, was *cooling, err error) {
	if b, was, ok := s.preferred(pool, c); ok {
		return b, was, nil
	}
	fits, size := false, c.sizeOf(pool)
	var excluded uint64
	for _, t := range s.tracts {
		if t.Pool != pool {
			continue
		}
		bits, ok := c.bits(t)
		if !ok {
			continue
		}
		fits = true
		if t.draining {
			continue
		}
		p, n, ok := t.next(bits, s.policy.Order, c.Taken)
		if ok {
			t.blocks++
			t.counters.allocated += t.blocksOf(p)
			return newBlock(p, t), nil, nil
		}
		excluded += n
	}
	if !fits {
		return block{}, nil, fmt.Errorf("allocate for node %q: %w: no range of pool %d can be cut in /%d", o.Name, ErrSize, pool, size)
	}
	e := s.exhausted(o, pool, size)
	e.Claimed = excluded
	return block{}, nil, e
}

func (s *Set) exhausted(o Owner, pool, size int) *Exhausted {
	e := &Exhausted{Node: o.Name, Pool: pool, Bits: size}
	for _, t := range s.tracts {
		if t.Pool != pool {
			continue
		}
		if e.Bits == 0 {
			e.Bits = t.Bits
		}
		e.Capacity += t.capacity()
		e.Used += t.used
		e.Cooling += t.cooling
	}
	if c := s.cooling.of(pool); c != nil {
		e.Next = c.since.Add(s.policy.CoolDown)
	}
	return e
}

// undo gives back the blocks of h from number had on. Nobody has seen them.
// Those that were cooling before go on cooling.
func (s *Set) undo(h *holding, had int, revived []*cooling) {
	for i := had; i < len(h.blocks); i++ {
		t, p := h.blocks[i].tract, h.blocks[i].prefix()
		t.cursor = t.before
		t.blocks--
		t.counters.allocated -= t.blocksOf(p)
		if j := slices.IndexFunc(revived, func(c *cooling) bool { return c.prefix == p }); j >= 0 {
			revived[j].tract = t
			t.cooling++
			continue
		}
		t.release(p)
	}
	h.blocks = h.blocks[:had]
}

// Confirm notes that o is known to have its blocks.
func (s *Set) Confirm(o Owner) {
	if h := s.owners.find(o.ID); h != nil {
		for i := range h.blocks {
			s.settle(&h.blocks[i])
		}
	}
}

// Return gives back a block that o is known not to have: nobody has used it, so
// it need not cool.
func (s *Set) Return(o Owner, p netip.Prefix) error {
	h := s.owners.find(o.ID)
	if h == nil || h.find(p) < 0 {
		return fmt.Errorf("return %s of node %q: %w", p, o.Name, ErrNotHeld)
	}
	s.drop(h, h.find(p), time.Time{})
	if len(h.blocks) == 0 {
		s.owners.remove(h)
	}
	return nil
}

// Release gives back all that o has, because the Node object is gone. It is
// not lent again before it has cooled.
func (s *Set) Release(o Owner, now time.Time) error {
	s.expire(now)
	h := s.owners.find(o.ID)
	if h == nil {
		return fmt.Errorf("release the blocks of node %q: %w", o.Name, ErrNotHeld)
	}
	for len(h.blocks) > 0 {
		s.drop(h, len(h.blocks)-1, now)
	}
	s.owners.remove(h)
	return nil
}

// ReleaseBlock gives back one of the blocks of o, which then cools.
func (s *Set) ReleaseBlock(o Owner, p netip.Prefix, now time.Time) error {
	s.expire(now)
	h := s.owners.find(o.ID)
	if h == nil || h.find(p) < 0 {
		return fmt.Errorf("release %s of node %q: %w", p, o.Name, ErrNotHeld)
	}
	s.drop(h, h.find(p), now)
	if len(h.blocks) == 0 {
		s.owners.remove(h)
	}
	return nil
}

// Blocks is what o has, and whether some of it is pending.
func (s *Set) Blocks(o Owner) (blocks []netip.Prefix, pending bool) {
	h := s.owners.find(o.ID)
	if h == nil {
		return nil, false
	}
	return h.prefixes(), h.pending()
}

// Holdings yields all that is held, in no order. The Set must not change meanwhile.
func (s *Set) Holdings() iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		for h := range s.owners.all() {
			if !yield(Holding{h.owner, h.pending(), h.prefixes()}) {
				return
			}
		}
	}
}

// Continue makes NextFit go on behind p, which was the last block given before
// the Set was made anew.
func (s *Set) Continue(p netip.Prefix) {
	for _, t := range s.tracts {
		if t.has(p) && p.Bits() <= t.unit {
			t.cursor = t.after(t.in(p))
		}
	}
}
