// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"net/netip"
	"time"
)

// Skips counts, for every block that was looked for, how many taken ones lay
// between where the search began and what it found.
type Skips struct {
	Count   uint64
	Sum     float64
	Buckets [5]uint64 // at most 1, 5, 25, 125, 625; cumulative
}

// SkipBuckets are the upper bounds of the buckets of Skips.
func SkipBuckets() [5]float64 { return [5]float64{1, 5, 25, 125, 625} }

func (s *Skips) add(n uint64) {
	s.Count++
	s.Sum += float64(n)
	for i, most := range SkipBuckets() {
		if float64(n) <= most {
			s.Buckets[i]++
		}
	}
}

// RangeStat is how a range stands.
type RangeStat struct {
	Range
	Draining  bool
	Capacity  uint64 // blocks of the range's size; 2^63 stands for more
	Used      uint64 // of these, all of which a part is taken
	Blocks    int    // blocks that owners hold, of whatever size
	Cooling   int
	Allocated uint64 // in its whole life, in blocks of the range's size
	Released  uint64
	Skipped   Skips
}

// Free is the number of blocks of the range's size that are left.
func (r RangeStat) Free() uint64 { return r.Capacity - r.Used }

// Stat is how a Set stands.
type Stat struct {
	Ranges  []RangeStat
	Owners  int
	Pending int // blocks that are pending
	Foreign int // blocks that are not, or not wholly, of one range
}

// Stat tells how the Set stands.
func (s *Set) Stat(now time.Time) Stat {
	s.expire(now)
	stat := Stat{Owners: s.owners.count, Pending: s.pending, Foreign: s.foreign}
	for _, t := range s.tracts {
		stat.Ranges = append(stat.Ranges, RangeStat{Range: t.Range, Draining: t.draining, Capacity: t.capacity(),
			Used: t.used, Blocks: t.blocks, Cooling: t.cooling,
			Allocated: t.counters.allocated, Released: t.counters.released, Skipped: t.counters.skipped})
	}
	return stat
}

// Holding is what an owner has.
type Holding struct {
	Owner   Owner
	Pending bool // some of the blocks are
	Blocks  []netip.Prefix
}
