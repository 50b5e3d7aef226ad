// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrNodeID is wrapped by every refusal of a node ID that does not fit a subnet.
var ErrNodeID = errors.New("node ID does not fit")

// NodePrefix returns the prefix of length bits of node id inside base:
// base + (id mod 2^n) * 2^(width-n), n = bits - base.Bits(). IDs run from 1 to
// 2^n; the last one has the subnet numbered 0, so that none is wasted.
func NodePrefix(base netip.Prefix, bits int, id uint32) (netip.Prefix, error) {
	base = base.Masked()
	if err := checkOneNode(base, bits); err != nil {
		return netip.Prefix{}, err
	}
	n := uint(bits - base.Bits())
	part, err := nodePart(id, n)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("prefix of node %d in %s cut in /%d: %w", id, base, bits, err)
	}
	a := toU128(base.Addr()).add(part.shl(uint(base.Addr().BitLen() - bits)))
	return netip.PrefixFrom(toAddr(a, base.Addr().Is4()), bits), nil
}

// NodeOfPrefix returns the inverse of NodePrefix: the node whose prefix contains addr.
func NodeOfPrefix(base netip.Prefix, bits int, addr netip.Addr) (uint32, error) {
	base = base.Masked()
	if err := checkOneNode(base, bits); err != nil {
		return 0, err
	}
	if !base.Contains(addr) {
		return 0, fmt.Errorf("node of %s: not in %s", addr, base)
	}
	n := uint(bits - base.Bits())
	part := toU128(addr).sub(toU128(base.Addr())).shr(uint(base.Addr().BitLen() - bits))
	if part.isZero() {
		part = pow2(min(n, 127))
	}
	if part.hi != 0 || part.lo > uint64(^uint32(0)) {
		return 0, fmt.Errorf("node of %s in %s cut in /%d: %w: no node ID has this prefix", addr, base, bits, ErrNodeID)
	}
	return uint32(part.lo), nil
}

// NodeAddr returns the address of node id on a network that all nodes share:
// base + id, moved up by one where gateway (invalid: none) lies at or below it.
// It is never the gateway, the network address or (IPv4) the broadcast address.
func NodeAddr(base netip.Prefix, id uint32, gateway netip.Addr) (netip.Addr, error) {
	base = base.Masked()
	n := uint(base.Addr().BitLen() - base.Bits())
	fail := func(err error) (netip.Addr, error) {
		return netip.Addr{}, fmt.Errorf("address of node %d in %s: %w", id, base, err)
	}
	part, err := nodePart(id, n)
	if err != nil {
		return fail(err)
	}
	if part.isZero() {
		return fail(fmt.Errorf("%w: no free address for nodeID %d", ErrNodeID, id))
	}
	if gateway.IsValid() && base.Contains(gateway) {
		if gw := toU128(gateway).and(ones(n)); !gw.isZero() && !part.less(gw) {
			part = part.add(u64(1))
		}
	}
	last := ones(n)
	if base.Addr().Is4() {
		last = last.sub(u64(1)) // the broadcast address
	}
	if n < 2 || last.less(part) {
		return fail(fmt.Errorf("%w: no free address for nodeID %d", ErrNodeID, id))
	}
	return toAddr(toU128(base.Addr()).add(part), base.Addr().Is4()), nil
}

// NodeOfAddr returns the inverse of NodeAddr.
func NodeOfAddr(base netip.Prefix, addr, gateway netip.Addr) (uint32, error) {
	base = base.Masked()
	if !base.Contains(addr) {
		return 0, fmt.Errorf("node of %s: not in %s", addr, base)
	}
	n := uint(base.Addr().BitLen() - base.Bits())
	part := toU128(addr).and(ones(n))
	if gateway.IsValid() && base.Contains(gateway) {
		gw := toU128(gateway).and(ones(n))
		if gw == part && !gw.isZero() {
			return 0, fmt.Errorf("node of %s in %s: that is the gateway", addr, base)
		}
		if !gw.isZero() && gw.less(part) {
			part = part.sub(u64(1))
		}
	}
	if part.hi != 0 || part.lo == 0 || part.lo > uint64(^uint32(0)) {
		return 0, fmt.Errorf("node of %s in %s: %w: no node ID has this address", addr, base, ErrNodeID)
	}
	id := uint32(part.lo)
	if a, err := NodeAddr(base, id, gateway); err != nil || a != addr {
		return 0, fmt.Errorf("node of %s in %s: no node ID has this address", addr, base)
	}
	return id, nil
}

// MaxNodePrefix returns the largest node ID that NodePrefix accepts.
func MaxNodePrefix(base netip.Prefix, bits int) uint32 {
	if checkOneNode(base, bits) != nil {
		return 0
	}
	if n := uint(bits - base.Bits()); n < 32 {
		return 1 << n
	}
	return ^uint32(0)
}

// MaxNodeAddr returns the largest node ID that NodeAddr accepts, 0 if none.
func MaxNodeAddr(base netip.Prefix, gateway netip.Addr) uint32 {
	n := uint(base.Addr().BitLen() - base.Bits())
	if n < 2 {
		return 0
	}
	last := ones(n)
	if base.Addr().Is4() {
		last = last.sub(u64(1))
	}
	if gateway.IsValid() && base.Contains(gateway) {
		if gw := toU128(gateway).and(ones(n)); !gw.isZero() && !last.less(gw) {
			last = last.sub(u64(1))
		}
	}
	if last.hi != 0 || last.lo > uint64(^uint32(0)) {
		return ^uint32(0)
	}
	return uint32(last.lo)
}

// Nth returns address number n of p, counted from its first; ok is false past its end.
func Nth(p netip.Prefix, n uint64) (addr netip.Addr, ok bool) {
	p = p.Masked()
	if last := ones(uint(p.Addr().BitLen() - p.Bits())); last.less(u64(n)) {
		return netip.Addr{}, false
	}
	return toAddr(toU128(p.Addr()).add(u64(n)), p.Addr().Is4()), true
}

// NthLast returns address number n of p counted down from its last, which is 0.
func NthLast(p netip.Prefix, n uint64) (addr netip.Addr, ok bool) {
	p = p.Masked()
	last := ones(uint(p.Addr().BitLen() - p.Bits()))
	if last.less(u64(n)) {
		return netip.Addr{}, false
	}
	return toAddr(toU128(p.Addr()).add(last).sub(u64(n)), p.Addr().Is4()), true
}

// Sub returns sub-prefix number n of length bits of p; ok is false past its end.
func Sub(p netip.Prefix, bits int, n uint64) (sub netip.Prefix, ok bool) {
	p = p.Masked()
	width := p.Addr().BitLen()
	if bits < p.Bits() || bits > width || ones(uint(bits-p.Bits())).less(u64(n)) {
		return netip.Prefix{}, false
	}
	a := toU128(p.Addr()).add(u64(n).shl(uint(width - bits)))
	return netip.PrefixFrom(toAddr(a, p.Addr().Is4()), bits), true
}

// Distance returns the number of blocks of length bits between two addresses of p,
// upwards from the first, around at the end of p; at most the largest uint64.
func Distance(p netip.Prefix, bits int, from, to netip.Addr) uint64 {
	width := from.BitLen()
	way := toU128(to).sub(toU128(from)).and(ones(uint(width - p.Bits())))
	return way.shr(uint(width - bits)).saturate()
}

// Size returns the number of addresses of p, at most the largest uint64.
func Size(p netip.Prefix) uint64 {
	n := uint(p.Addr().BitLen() - p.Bits())
	if n >= 64 {
		return ^uint64(0)
	}
	return 1 << n
}

// nodePart maps an ID onto [0, 2^n): the ID itself, and 2^n onto 0.
func nodePart(id uint32, n uint) (u128, error) {
	if id == 0 {
		return u128{}, fmt.Errorf("%w: nodeID 0 is out of the valid range, IDs begin at 1", ErrNodeID)
	}
	if n >= 33 || uint64(id) < 1<<n {
		return u64(uint64(id)), nil
	}
	if uint64(id) == 1<<n {
		return u128{}, nil
	}
	return u128{}, fmt.Errorf("%w: nodeID %d is out of the valid range 1-%d", ErrNodeID, id, uint64(1)<<n)
}

func checkOneNode(base netip.Prefix, bits int) error {
	if bits <= base.Bits() {
		return fmt.Errorf(
			"prefix length for one node (%d) must be higher than that of the subnet of all nodes, %s",
			bits,
			base,
		)
	}
	if width := base.Addr().BitLen(); bits > width {
		return fmt.Errorf("prefix length for one node (%d) must be at most %d in %s", bits, width, base)
	}
	return nil
}
