// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package handshake

import (
	"errors"
	"fmt"
	"net/netip"
)

// Key names an address or a block in a pool and in entries: an address without a length,
// a block as a CIDR.
func Key(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// ParseKey is the address or the block of a key.
func ParseKey(key string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(key); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(key)
	switch {
	case err != nil || p.Addr().Is4In6():
		return netip.Prefix{}, errors.New("is neither an address nor a block like 10.1.4.0/28")
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("has host bits set: %s would be right", p.Masked())
	}
	return p, nil
}
