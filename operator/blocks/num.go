// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// num is an address, or the number of a block, of up to 128 bits.
type num struct{ hi, lo uint64 }

func numOf(a netip.Addr) num {
	if a.Is4() {
		b := a.As4()
		return num{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return num{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// addr is the address numbered n, of 32 bits or of 128.
func (n num) addr(wide bool) netip.Addr {
	if !wide {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(n.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)
	return netip.AddrFrom16(b)
}

func (n num) add(m num) num {
	lo, carry := bits.Add64(n.lo, m.lo, 0)
	return num{n.hi + m.hi + carry, lo}
}

func (n num) sub(m num) num {
	lo, borrow := bits.Sub64(n.lo, m.lo, 0)
	return num{n.hi - m.hi - borrow, lo}
}

// shl and shr give 0 for k >= 128.
func (n num) shl(k uint) num {
	if k < 64 {
		return num{n.hi<<k | n.lo>>(64-k), n.lo << k}
	}
	return num{hi: n.lo << (k - 64)}
}

func (n num) shr(k uint) num {
	if k < 64 {
		return num{n.hi >> k, n.lo>>k | n.hi<<(64-k)}
	}
	return num{lo: n.hi >> (k - 64)}
}

// count is 2^k, at most 2^63: so many blocks nobody counts.
func count(k int) uint64 { return 1 << min(k, 63) }

// overlap is what p and q have in common: the longer of the two, if anything.
func overlap(p, q netip.Prefix) (netip.Prefix, bool) {
	if q.Bits() < p.Bits() {
		p, q = q, p
	}
	return q, p.Contains(q.Addr())
}

// covers is true where all of q is in p.
func covers(p, q netip.Prefix) bool { return p.Bits() <= q.Bits() && p.Contains(q.Addr()) }

// halves are the two parts of p, which is not a single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	a, wide := p.Addr(), p.Addr().Is6()
	half := num{lo: 1}.shl(uint(a.BitLen() - p.Bits() - 1))
	return netip.PrefixFrom(a, p.Bits()+1), netip.PrefixFrom(numOf(a).add(half).addr(wide), p.Bits()+1)
}
