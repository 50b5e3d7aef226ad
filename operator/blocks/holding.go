// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"
	"slices"
	"time"
)

// holding is what one owner has. It is as small as it can be: of 65 536 of them
// a cache has but a few, and to reach one is most of the work with it.
type holding struct {
	owner  Owner
	blocks []block
	number uint32   // in the table
	room   [2]block // where blocks begin
}

// block is one block of an owner. Where it is shared, or not wholly of one
// range, only a look at all others tells what becomes free without it.
type block struct {
	at      num
	tract   *tract // nil: not wholly of one range
	bits    uint8
	is6     bool
	pending bool
	shared  bool // it overlaps others, or did
}

func newBlock(p netip.Prefix, t *tract) block {
	return block{at: numOf(p.Addr()), tract: t, bits: uint8(p.Bits()), is6: p.Addr().Is6()}
}

func (b *block) prefix() netip.Prefix { return netip.PrefixFrom(b.at.addr(b.is6), int(b.bits)) }

func (h *holding) find(p netip.Prefix) int {
	want := newBlock(p, nil)
	return slices.IndexFunc(h.blocks, func(b block) bool {
		return b.at == want.at && b.bits == want.bits && b.is6 == want.is6
	})
}

func (h *holding) prefixes() []netip.Prefix {
	all := make([]netip.Prefix, len(h.blocks))
	for i := range h.blocks {
		all[i] = h.blocks[i].prefix()
	}
	return all
}

// pending is true where the owner may not know of all its blocks.
func (h *holding) pending() bool {
	return slices.ContainsFunc(h.blocks, func(b block) bool { return b.pending })
}

// settle notes that the owner is known to have b.
func (s *Set) settle(b *block) {
	if b.pending {
		b.pending = false
		s.pending--
	}
}

// drop takes block i from h. It cools from now on; with no time it is free at once.
func (s *Set) drop(h *holding, i int, now time.Time) {
	s.settle(&h.blocks[i])
	b := h.blocks[i]
	h.blocks = append(h.blocks[:i], h.blocks[i+1:]...)
	s.tally(b, -1)
	if b.tract != nil && !b.shared {
		s.vacate(b.tract, b.prefix(), now)
		return
	}
	s.vacateShared(b, now)
}

// vacate frees p, which nobody else claims, or lets it cool first.
func (s *Set) vacate(t *tract, p netip.Prefix, now time.Time) {
	t.counters.released += t.blocksOf(p)
	if s.policy.CoolDown <= 0 || now.IsZero() {
		t.release(p)
		return
	}
	s.cooling.push(cooling{prefix: p, tract: t, since: now})
	t.cooling++
}
