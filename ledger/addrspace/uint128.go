// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// u128 is an address, or the distance between two, as a number.
type u128 struct{ hi, lo uint64 }

func u64(n uint64) u128 { return u128{lo: n} }

// pow2 is 2^n, 0 for n = 128.
func pow2(n uint) u128 {
	if n < 64 {
		return u128{lo: 1 << n}
	}
	return u128{hi: 1 << (n - 64)}
}

func (u u128) add(v u128) u128 {
	lo, carry := bits.Add64(u.lo, v.lo, 0)
	hi, _ := bits.Add64(u.hi, v.hi, carry)
	return u128{hi, lo}
}

func (u u128) sub(v u128) u128 {
	lo, borrow := bits.Sub64(u.lo, v.lo, 0)
	hi, _ := bits.Sub64(u.hi, v.hi, borrow)
	return u128{hi, lo}
}

func (u u128) less(v u128) bool { return u.hi < v.hi || u.hi == v.hi && u.lo < v.lo }
func (u u128) isZero() bool     { return u.hi|u.lo == 0 }
func (u u128) and(v u128) u128  { return u128{u.hi & v.hi, u.lo & v.lo} }
func (u u128) or(v u128) u128   { return u128{u.hi | v.hi, u.lo | v.lo} }
func (u u128) xor(v u128) u128  { return u128{u.hi ^ v.hi, u.lo ^ v.lo} }

// shl and shr give 0 for n >= 128.
func (u u128) shl(n uint) u128 {
	if n < 64 {
		return u128{u.hi<<n | u.lo>>(64-n), u.lo << n}
	}
	return u128{u.lo << (n - 64), 0}
}

func (u u128) shr(n uint) u128 {
	if n < 64 {
		return u128{u.hi >> n, u.lo>>n | u.hi<<(64-n)}
	}
	return u128{0, u.hi >> (n - 64)}
}

// floor returns the largest multiple of 2^n that is not above u.
func (u u128) floor(n uint) u128 {
	if n < 64 {
		return u128{u.hi, u.lo >> n << n}
	}
	return u128{u.hi >> (n - 64) << (n - 64), 0}
}

// ones is 2^n - 1, n <= 128.
func ones(n uint) u128 {
	switch {
	case n == 0:
		return u128{}
	case n <= 64:
		return u128{lo: ^uint64(0) >> (64 - n)}
	default:
		return u128{hi: ^uint64(0) >> (128 - n), lo: ^uint64(0)}
	}
}

// trailingZeros is 128 for 0.
func (u u128) trailingZeros() int {
	if u.lo != 0 {
		return bits.TrailingZeros64(u.lo)
	}
	return 64 + bits.TrailingZeros64(u.hi)
}

// saturate returns u, or the largest uint64 if u is larger.
func (u u128) saturate() uint64 {
	if u.hi != 0 {
		return ^uint64(0)
	}
	return u.lo
}

func toU128(a netip.Addr) u128 {
	if a.Is4() {
		b := a.As4()
		return u128{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return u128{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// toAddr returns the address numbered u, in the family of 32 or of 128 bits.
func toAddr(u u128, is4 bool) netip.Addr {
	if is4 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(u.lo))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], u.hi)
	binary.BigEndian.PutUint64(b[8:], u.lo)
	return netip.AddrFrom16(b)
}
