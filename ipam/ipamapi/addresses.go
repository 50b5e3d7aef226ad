// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// RequestAddress returns an address of a pool, with the length of its prefix.
func (d *Driver) RequestAddress(
	poolID string,
	ip net.IP,
	options map[string]string,
) (*net.IPNet, map[string]string, error) {
	var a netip.Addr
	if len(ip) > 0 {
		var ok bool
		if a, ok = netip.AddrFromSlice(ip); !ok {
			return nil, nil, &callError{"request", poolID, a, badLength(ip)}
		}
		a = a.Unmap()
	}
	p, err := d.request(context.Background(), poolID, a, options)
	if err != nil {
		return nil, nil, &callError{"request", poolID, a, err}
	}
	return toNet(p), nil, nil
}

// toNet returns p in the engine's type, with one allocation.
func toNet(p netip.Prefix) *net.IPNet {
	x := new(struct {
		net.IPNet
		ip, mask [net.IPv6len]byte
	})
	x.IP, x.Mask = x.ip[:], x.mask[:]
	if p.Addr().Is4() {
		a := p.Addr().As4()
		x.IP, x.Mask = x.IP[:copy(x.ip[:], a[:])], x.Mask[:net.IPv4len]
	} else {
		x.ip = p.Addr().As16()
	}
	for i := range p.Bits() {
		x.mask[i/8] |= 0x80 >> (i % 8)
	}
	return &x.IPNet
}

// ReleaseAddress releases an address. It succeeds if the address is not held.
func (d *Driver) ReleaseAddress(poolID string, ip net.IP) error {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return &callError{"release", poolID, a, badLength(ip)}
	}
	if err := d.release(context.Background(), poolID, a.Unmap()); err != nil {
		return &callError{"release", poolID, a.Unmap(), err}
	}
	return nil
}

func badLength(ip net.IP) error {
	return fmt.Errorf("%w: it has %d bytes", ErrInvalidAddress, len(ip))
}
