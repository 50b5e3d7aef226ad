// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package watermark computes how many addresses a node lacks, and how many it could
// release. It is pure.
//
// T are the addresses that the node has and is not releasing, U those that it cannot
// allocate (leased or cooling), free is the larger of Pre and Pending:
//
//	needed = max(U + free - T, Min - T), at least 0, and not above Max
//	excess = T - max(Min, U + free) - Above, at least 0
//
// Both have the same T and U and the same level, max(Min, U+free), so that one never
// causes the other. A node that takes the needed addresses, and up to Above more, has no
// excess. A node that releases its excess needs nothing.
//
// The settings of other projects are names for these. CCE has PreAllocate, MinAllocate,
// MaxAllocate and MaxAboveWatermark. AWS' agent has WARM_IP_TARGET, MINIMUM_IP_TARGET and
// the most pods of a node, in units of addresses or of prefixes.
package watermark

// Marks holds the watermarks of a node.
type Marks struct {
	Pre     int // free at all times; less than 0 is 0
	Min     int // at least
	Max     int // at most, whatever else is wanted; 0: no bound
	Above   int // how many more may be taken at once, and kept
	Pending int // pods that will soon need an address
}

// Level holds the numbers of a node's addresses.
type Level struct {
	Total      int // of the node
	GivingBack int // of these, being released
	Used       int // cannot be allocated: leased, or cooling
}

// Wanted returns the number of addresses that the node should have, without Max.
func (m Marks) Wanted(l Level) int { return max(m.Min, l.Used+max(m.Pre, m.Pending, 0)) }

// Needed returns the number of addresses that the node lacks and may have.
func (m Marks) Needed(l Level) int {
	return m.capped(l, m.Wanted(l)-(l.Total-l.GivingBack))
}

// Request returns the number of addresses to allocate at once: 0 if none is needed.
func (m Marks) Request(l Level) int {
	n := m.Needed(l)
	if n == 0 {
		return 0
	}
	return m.capped(l, n+max(m.Above, 0))
}

// capped limits n by Max. An address that is being released still counts.
func (m Marks) capped(l Level, n int) int {
	if m.Max > 0 {
		n = min(n, m.Max-l.Total)
	}
	return max(n, 0)
}

// Excess returns the number of addresses that the node could release.
func (m Marks) Excess(l Level) int {
	return max(0, l.Total-l.GivingBack-m.Wanted(l)-max(m.Above, 0))
}

// Units returns the number of blocks of size that n addresses need.
func Units(n, size int) int {
	if n <= 0 || size <= 0 {
		return 0
	}
	return (n + size - 1) / size
}
