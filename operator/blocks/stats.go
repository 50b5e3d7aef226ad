// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import "time"

// Skips counts, for every block that was found, the taken blocks between the beginning
// of the search and the block.
type Skips struct {
	Count   uint64
	Sum     float64
	Buckets [5]uint64 // at most 1, 5, 25, 125, 625; cumulative
}

// SkipBuckets returns the upper bounds of the buckets of Skips.
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

// RangeStat holds the figures of a range.
type RangeStat struct {
	Range
	Draining  bool
	Capacity  uint64 // blocks of the range's size; 2^63 stands for more
	Used      uint64 // of these, all of which a part is taken
	Blocks    int    // blocks that owners hold, of any size
	Cooling   int
	Allocated uint64 // since the range was added, in blocks of the range's size
	Released  uint64
	Skipped   Skips
}

// Free returns the number of blocks of the range's size that are left.
func (r RangeStat) Free() uint64 { return r.Capacity - r.Used }

// Stat holds the figures of a Set.
type Stat struct {
	Ranges  []RangeStat
	Owners  int
	Pending int // blocks that are pending
	Foreign int // blocks that are not wholly inside one range
}

// Stat returns the figures of the Set.
func (s *Set) Stat(now time.Time) Stat {
	s.expire(now)
	stat := Stat{Owners: len(s.owners), Pending: s.pending, Foreign: s.foreign}
	for _, r := range s.ranges {
		stat.Ranges = append(stat.Ranges, r.RangeStat)
	}
	return stat
}
