// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import "math/bits"

// aligned[r] has the bits at which an aligned run of 2^r bits may begin.
var aligned = [8]uint64{
	^uint64(0), 0x5555555555555555, 0x1111111111111111, 0x0101010101010101,
	0x0001000100010001, 0x0000000100000001, 1,
}

// span[r] is a run of 2^r bits.
var span = [8]uint64{1, 3, 0xf, 0xff, 0xffff, 0xffffffff, ^uint64(0)}

// around returns the aligned run of 2^r bits that has bit b.
func around(b, r uint) uint64 { return span[r&7] << (b >> (r & 7) << (r & 7) & 63) }

// lowest returns the number of the lowest set bit of w, which is not 0.
func lowest(w uint64) uint { return uint(bits.TrailingZeros64(w)) }

// runs returns the word of the places at which 2^r set bits of w begin, aligned.
func runs(w uint64, r uint) uint64 {
	for i := uint(1); i < 1<<(r&7); i *= 2 {
		w &= w >> (i & 63)
	}
	return w & aligned[r&7]
}

// longestRun returns the largest r for which runs(w, r) is not 0, and -1 for 0.
func longestRun(w uint64) int {
	if w == 0 {
		return -1
	}
	for r := range uint(6) {
		if w &= w >> (1 << r); w&aligned[r+1] == 0 {
			return int(r)
		}
	}
	return 6
}

// grown is longestRun of w, where it was r, or -1, before bit b was set; or, if
// that is shorter, the longest run with bit b.
func grown(w uint64, b uint, r int) int {
	for r = max(r, 0); r < 6; r++ {
		if m := around(b, uint(r)+1); w&m != m {
			break
		}
	}
	return r
}

// shrunk is longestRun of w, where it was r before bit b was cleared.
func shrunk(w uint64, b uint, r int) int {
	was := w | 1<<(b&63)
	if m := around(b, uint(r)); was&m != m || r < 6 && runs(w, uint(r)) != 0 {
		return r // there is another run as long
	}
	return r - 1
}
