// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// addressSpace holds what the engine knows of one address space; which prefixes
// are free in it, the ledger knows. It is guarded by Driver.change.
type addressSpace struct {
	name       string
	inLedger   string                   // its name in the ledger
	pods       FromPods                 // Pool is "" if pools are not of the pod block
	predefined [2][]Predefined          // by family
	pools      map[netip.Prefix][]*pool // by prefix: the whole and its parts
	parts      []netip.Prefix           // prefixes of pools in the pod block, which are not blocks of the ledger
}

func newAddressSpace(name string, predefined [2][]Predefined) *addressSpace {
	return &addressSpace{
		name:       name,
		inLedger:   ledgerPrefix + name,
		predefined: predefined,
		pools:      map[netip.Prefix][]*pool{},
	}
}

func (s *addressSpace) add(p *pool) {
	if p.fromPods() && len(s.pools[p.id.prefix]) == 0 {
		s.parts = append(s.parts, p.id.prefix)
	}
	s.pools[p.id.prefix] = append(s.pools[p.id.prefix], p)
}

func (s *addressSpace) remove(p *pool) {
	if !s.isLast(p) {
		s.pools[p.id.prefix] = slices.DeleteFunc(s.pools[p.id.prefix], func(x *pool) bool { return x == p })
		return
	}
	delete(s.pools, p.id.prefix)
	s.parts = slices.DeleteFunc(s.parts, func(x netip.Prefix) bool { return x == p.id.prefix })
}

// isLast reports whether no other pool has the prefix of p.
func (s *addressSpace) isLast(p *pool) bool { return len(s.pools[p.id.prefix]) == 1 }

// overlapping returns an error that names the prefix that a pool would overlap;
// nil if it would overlap none.
func (d *Driver) overlapping(id poolID, host []netip.Prefix) error {
	if i := slices.IndexFunc(host, id.prefix.Overlaps); i >= 0 {
		return fmt.Errorf("%w: %s overlaps %s of the host (--ipam-opt %s=true allows it)",
			ErrPoolOverlap, id.prefix, host[i], OverlapOption)
	}
	s := d.spaces[id.space]
	x, found := d.ledger.Overlapping(s.inLedger, id.prefix, id.ledgerPool())
	for _, part := range s.parts {
		if part.Overlaps(id.prefix) && (!found || part.Compare(x) < 0) {
			x, found = part, true
		}
	}
	if !found {
		return nil
	}
	return fmt.Errorf("%w: %s overlaps %s of %s (--ipam-opt %s=true allows it)",
		ErrPoolOverlap, id.prefix, x, s.name, OverlapOption)
}

// choose returns the lowest free prefix of the predefined lists. bits is its
// length, 0 for that of the list.
func (d *Driver) choose(s *addressSpace, f ledger.Family, bits int, host []netip.Prefix) (netip.Prefix, error) {
	avoid := slices.Concat(host, s.parts)
	fits := false
	for _, x := range s.predefined[f] {
		n := x.Size
		if bits != 0 {
			n = bits
		}
		if n < x.Base.Bits() {
			continue
		}
		fits = true
		if p, ok := d.ledger.FreeSubnet(s.inLedger, x.Base, n, avoid); ok {
			return p, nil
		}
	}
	if !fits {
		return netip.Prefix{}, fmt.Errorf("%w: no predefined %s pool of %s can hold a /%d",
			ErrInvalidPool, f, s.name, bits)
	}
	return netip.Prefix{}, fmt.Errorf("%w: %s of %s", ErrNoMoreSubnets, f, s.name)
}
