// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

// Pages and nodes have 64 slots each: a word of 64 addresses, or a page, or a
// node. The order of a slot is the largest k for which it has a free aligned
// block of 2^k addresses, -1 if all of it is taken. A search needs the slots of an
// order, and a change needs the order of a slot, so both are kept. The order of slot
// d is orders[d], and bit d of byOrder[o+1] is set if that order is o. The last word
// of byOrder has the slots that are entirely free. The longest run of them
// determines the order of a page or node that has such slots.

// reorder sets the order of slot d to is. all is the order of all slots together
// before; reorder returns the one after.
func reorder(byOrder []uint64, orders *[64]int8, d uint, is, all int) int {
	bit, full, was := uint64(1)<<(d&63), len(byOrder)-2, int(orders[d&63])
	orders[d&63] = int8(is)
	byOrder[was+1] &^= bit
	byOrder[is+1] |= bit
	switch {
	case is == full:
		return full + grown(byOrder[full+1], d, all-full)
	case is > was:
		return max(all, is)
	case all > full:
		if was == full {
			all = full + shrunk(byOrder[full+1], d, all-full)
		}
		return all
	}
	if byOrder[0] == ^uint64(0) {
		return -1
	}
	for all > is && byOrder[all+1] == 0 {
		all--
	}
	return all
}

// measure returns the order of all slots together.
func measure(byOrder []uint64) int {
	full := len(byOrder) - 2
	if w := byOrder[full+1]; w != 0 {
		return full + longestRun(w)
	}
	if byOrder[0] == ^uint64(0) {
		return -1
	}
	for full > 0 && byOrder[full] == 0 {
		full--
	}
	return full - 1
}

// fit returns the word of the slots that have a free block of 2^k addresses, or,
// where that is larger than a slot, of those at which there begins one. all is
// the order of all slots together.
func fit(byOrder []uint64, k uint, all int) uint64 {
	if k == 0 {
		return ^byOrder[0]
	}
	full := uint(len(byOrder)) - 2
	if k > full {
		return runs(byOrder[full+1], k-full)
	}
	var w uint64
	for o := min(uint(all), full); o >= k; o-- {
		w |= byOrder[o+1]
	}
	return w
}
