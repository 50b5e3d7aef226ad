// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package watermark says how many addresses a node lacks, and how many it could
// give back. It is pure.
//
// With T the addresses that the node has and is not giving back, U those that it
// cannot lend (leased or cooling), and free the larger of Pre and Pending:
//
//	needed = max(U + free - T, Min - T), at least 0, and not above Max
//	excess = T - max(Min, U + free) - Above, at least 0
//
// Both have the same T and U and the same level, max(Min, U+free), so that the
// one is never followed by the other: whoever takes what is needed, and up to
// Above more, has no excess, and whoever gives back the excess needs nothing.
//
// The settings of others are names for these: CCE's PreAllocate, MinAllocate,
// MaxAllocate, MaxAboveWatermark; AWS' WARM_IP_TARGET, MINIMUM_IP_TARGET and the
// most pods of a node (AWS), in units of addresses or of prefixes.
//
// Example: 8 are to be free, 16 at least; 9 of 16 are in use.
//
//	m := watermark.Marks{Pre: 8, Min: 16}
//	m.Needed(watermark.Level{Total: 16, Used: 9}) // 1
package watermark

// Marks are the watermarks of a node.
type Marks struct {
	Pre     int // free at all times; less than 0 is 0
	Min     int // at least
	Max     int // at most, whatever else is wanted; 0: no bound
	Above   int // how many more may be taken at once, and kept
	Pending int // pods that are about to ask
}

// Level is how a node stands.
type Level struct {
	Total      int // what it has
	GivingBack int // of these, on their way back
	Used       int // cannot be lent: leased, or cooling
}

// Wanted is how many addresses the node is to have, whatever Max says.
func (m Marks) Wanted(l Level) int { return max(m.Min, l.Used+max(m.Pre, m.Pending, 0)) }

// Needed is how many addresses the node lacks and may have.
func (m Marks) Needed(l Level) int {
	return m.capped(l, m.Wanted(l)-(l.Total-l.GivingBack))
}

// Request is how many are best asked for at once: 0 where none is needed.
func (m Marks) Request(l Level) int {
	n := m.Needed(l)
	if n == 0 {
		return 0
	}
	return m.capped(l, n+max(m.Above, 0))
}

// capped bounds what is asked for. What is on its way back still takes a place.
func (m Marks) capped(l Level, n int) int {
	if m.Max > 0 {
		n = min(n, m.Max-l.Total)
	}
	return max(n, 0)
}

// Excess is how many addresses could be given back.
func (m Marks) Excess(l Level) int {
	return max(0, l.Total-l.GivingBack-m.Wanted(l)-max(m.Above, 0))
}

// AWS is the settings of the AWS agent.
type AWS struct {
	WarmIP, MinimumIP int // WARM_IP_TARGET, MINIMUM_IP_TARGET; 0: not set
	WarmUnits         int // WARM_ENI_TARGET or WARM_PREFIX_TARGET; where no IP target is set
	UnitSize          int // addresses of an interface, or of a prefix
	MaxPods           int
}

// Marks are the same in our words. A target in units is that many addresses.
func (a AWS) Marks() Marks {
	if a.WarmIP != 0 || a.MinimumIP != 0 {
		return Marks{Pre: a.WarmIP, Min: a.MinimumIP, Max: a.MaxPods}
	}
	return Marks{Pre: a.WarmUnits * a.UnitSize, Max: a.MaxPods}
}

// Units is n addresses in blocks of size, rounded up.
func Units(n, size int) int {
	if n <= 0 || size <= 0 {
		return 0
	}
	return (n + size - 1) / size
}

// Rounded is how many addresses a pool is to have of which inUse are used, in
// multiples of pre, and one more of these than would be full.
func Rounded(inUse, pre int) int {
	if pre <= 0 {
		return inUse
	}
	return Units(inUse+pre, pre) * pre
}
