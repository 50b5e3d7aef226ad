// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// podPoolOf returns the pool of the pod network if p lies in a block of it.
func (d *Driver) podPoolOf(s *addressSpace, p netip.Prefix) string {
	if s.pods.Pool == "" {
		return ""
	}
	for _, b := range d.ledger.Blocks(s.pods.Pool) {
		if within(p, b) {
			return s.pods.Pool
		}
	}
	return ""
}

// suballocate returns the lowest part of the pod block in which every address is
// free. It is not done if the pod network has blocks of the other family only.
func (d *Driver) suballocate(s *addressSpace, f ledger.Family, bits int) (p netip.Prefix, done bool, err error) {
	blocks := d.ledger.Blocks(s.pods.Pool)
	if len(blocks) == 0 {
		return p, false, fmt.Errorf("%w: pool %q of the pod network has no block yet", ErrNotNow, s.pods.Pool)
	}
	if !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return ledger.FamilyOf(b.Addr()) == f }) {
		return p, false, nil
	}
	switch {
	case bits != 0:
	case f == ledger.IPv4:
		bits = s.pods.Size4
	default:
		bits = s.pods.Size6
	}
	avoid := slices.Clone(s.parts)
	for {
		p, ok := d.ledger.FreePart(s.pods.Pool, f, bits, avoid)
		if !ok {
			return p, true, fmt.Errorf("%w: no /%d of pool %q of the pod network is free",
				ErrNoMoreSubnets, bits, s.pods.Pool)
		}
		x, overlaps := d.ledger.Overlapping(s.inLedger, p, "")
		if !overlaps {
			return p, true, nil
		}
		avoid = append(avoid, x)
	}
}
