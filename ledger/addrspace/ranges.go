// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"iter"
	"net/netip"
)

// TakeRange takes the addresses from first to last, both included. If one of them is
// not free, it changes nothing and reports false.
func (s *Space) TakeRange(first, last netip.Addr) bool {
	if _, ok := s.offset(last); !ok {
		return false
	}
	if _, ok := s.offset(first); !ok || last.Less(first) {
		return false
	}
	for p := range Cover(first, last) {
		if off, k, ok := s.block(p); !ok || !s.alike(off, k, true) {
			return false
		}
	}
	for p := range Cover(first, last) {
		s.markPrefix(p, false)
	}
	return true
}

// Cover yields the fewest prefixes that together are the addresses from first
// to last, both included, in order; none if last is below first.
func Cover(first, last netip.Addr) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		if first.Is4() != last.Is4() || !first.IsValid() {
			return
		}
		width, from, to := uint(first.BitLen()), toU128(first), toU128(last)
		for !to.less(from) {
			k := min(uint(from.trailingZeros()), width)
			for k > 0 && to.less(from.or(ones(k))) {
				k--
			}
			if !yield(netip.PrefixFrom(toAddr(from, first.Is4()), int(width-k))) {
				return
			}
			end := from.or(ones(k))
			if end == to {
				return
			}
			from = end.add(u64(1))
		}
	}
}

// FreePrefixes yields the largest free aligned prefixes, in order.
func (s *Space) FreePrefixes() iter.Seq[netip.Prefix] { return s.FreeWithin(s.base) }

// FreeWithin yields the largest free aligned prefixes of p, in order; none if p is not
// a prefix of the Space. A caller may take what it has got and go on.
func (s *Space) FreeWithin(p netip.Prefix) iter.Seq[netip.Prefix] {
	return func(yield func(netip.Prefix) bool) {
		off, width, ok := s.block(p)
		for last := off.or(ones(width)); ok; {
			if _, off, ok = s.root.next(0, off); !ok || last.less(off) {
				return
			}
			most, k := min(uint(off.trailingZeros()), width), uint(0)
			for k < most && s.alike(off, k+1, true) {
				k++
			}
			end := off.or(ones(k))
			if !yield(netip.PrefixFrom(s.addr(off), s.unit-int(k))) || end == last {
				return
			}
			off = end.add(u64(1))
		}
	}
}
