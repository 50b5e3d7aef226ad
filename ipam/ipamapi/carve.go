// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// blocks are those that a pool of the ledger lends from.
func (d *Driver) blocks(pool string) (all []netip.Prefix) {
	for _, s := range d.ledger.Stats() {
		if s.Pool == pool && s.State == ledger.Active {
			all = append(all, s.Block)
		}
	}
	return all
}

// podPoolOf is the pool of the pod network, where p is in its block.
func (d *Driver) podPoolOf(r *realm, p netip.Prefix) string {
	if r.pods.Pool == "" {
		return ""
	}
	for _, b := range d.blocks(r.pods.Pool) {
		if within(p, b) {
			return r.pods.Pool
		}
	}
	return ""
}

// carve fills in the lowest part of the pod block that nobody has an address
// of. It is not done where the pod network has blocks of the other family only.
func (d *Driver) carve(r *realm, w *wish) (done bool, err error) {
	blocks, bits := d.blocks(r.pods.Pool), w.bits
	if bits == 0 {
		bits = r.pods.Size4
		if w.family == ledger.IPv6 {
			bits = r.pods.Size6
		}
	}
	if len(blocks) == 0 {
		return false, fmt.Errorf("%w: pool %q of the pod network has no block yet", ErrNotNow, r.pods.Pool)
	}
	leases := d.ledger.Leases()
	for _, b := range blocks {
		if ledger.FamilyOf(b.Addr()) != w.family {
			continue
		}
		done = true
		space := addrspace.New(b)
		for _, l := range leases {
			if l.Pool == r.pods.Pool {
				space.TakeAddr(l.Addr)
			}
		}
		var others []netip.Prefix
		for p := range r.books {
			if p.Overlaps(b) {
				others = append(others, p)
			}
		}
		if p, ok := r.search(space, b, bits, others); ok && bits >= b.Bits() {
			w.id.prefix, w.id.pods = p, r.pods.Pool
			return true, nil
		}
	}
	if done {
		return true, fmt.Errorf("%w: no /%d of pool %q of the pod network is without leases", ErrNoMoreSubnets, bits, r.pods.Pool)
	}
	return false, nil
}
