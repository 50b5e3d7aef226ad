// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"iter"
	"net/netip"
	"time"
)

// cooling is a block that nobody holds and nobody may get yet.
type cooling struct {
	prefix netip.Prefix
	tract  *tract // nil: somebody has taken it again
	since  time.Time
	shared bool // others claim a part of it, or did
}

// queue has what is cooling, the oldest first.
type queue struct {
	all  []cooling
	head int
}

func (q *queue) push(c cooling) {
	if q.head > 32 && q.head > len(q.all)/2 {
		n := copy(q.all, q.all[q.head:])
		clear(q.all[n:])
		q.all, q.head = q.all[:n], 0
	}
	q.all = append(q.all, c)
}

func (q *queue) first() *cooling {
	if q.head == len(q.all) {
		return nil
	}
	return &q.all[q.head]
}

func (q *queue) pop() cooling {
	c := q.all[q.head]
	q.all[q.head] = cooling{}
	q.head++
	return c
}

// overlapping yields what is cooling of p.
func (q *queue) overlapping(p netip.Prefix) iter.Seq[*cooling] {
	return func(yield func(*cooling) bool) {
		for i := q.head; i < len(q.all); i++ {
			if c := &q.all[i]; c.tract != nil && c.prefix.Overlaps(p) && !yield(c) {
				return
			}
		}
	}
}

// of is the oldest that is cooling in one of the tracts of a pool.
func (q *queue) of(pool int) *cooling {
	for i := q.head; i < len(q.all); i++ {
		if c := &q.all[i]; c.tract != nil && c.tract.Pool == pool {
			return c
		}
	}
	return nil
}

// expire frees what has cooled. Should the clock have been set back, that only
// takes longer.
func (s *Set) expire(now time.Time) {
	for {
		c := s.cooling.first()
		if c == nil || now.Sub(c.since) < s.policy.CoolDown {
			return
		}
		gone := s.cooling.pop()
		if gone.tract == nil {
			continue
		}
		gone.tract.cooling--
		if !gone.shared {
			gone.tract.release(gone.prefix)
			continue
		}
		others := append(s.others(gone.prefix), s.coolingIn(gone.prefix)...)
		for p := range without(gone.prefix, others) {
			gone.tract.release(p)
		}
	}
}

// SetCoolDown changes the cool-down, also of what is cooling now.
func (s *Set) SetCoolDown(d time.Duration) { s.policy.CoolDown = d }

// NextFree is when the next block has cooled; zero where none is cooling.
func (s *Set) NextFree() time.Time {
	for i := s.cooling.head; i < len(s.cooling.all); i++ {
		if c := &s.cooling.all[i]; c.tract != nil {
			return c.since.Add(s.policy.CoolDown)
		}
	}
	return time.Time{}
}
