// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// realm is an address space. It is guarded by Driver.change.
type realm struct {
	name       string
	pods       FromPods            // Pool is "" where pools are not of the pod block
	predefined [2][]Predefined     // by family
	taken      [2]*addrspace.Space // by family: free is what no book has
	families   [2][]ledger.Family  // each alone
	books      map[netip.Prefix]*book
	beside     []*book // those that overlap others on purpose: not in taken
}

func newRealm(name string, byFamily [2][]Predefined) *realm {
	return &realm{
		name: name, predefined: byFamily, families: [2][]ledger.Family{{ledger.IPv4}, {ledger.IPv6}}, books: map[netip.Prefix]*book{},
		taken: [2]*addrspace.Space{
			addrspace.New(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), addrspace.New(netip.PrefixFrom(netip.IPv6Unspecified(), 0)),
		},
	}
}

// add takes the prefix of b.
func (r *realm) add(b *book) {
	r.books[b.prefix], b.family = b, r.families[ledger.FamilyOf(b.prefix.Addr())]
	if !r.taken[ledger.FamilyOf(b.prefix.Addr())].Take(b.prefix) {
		r.beside = append(r.beside, b)
	}
}

func (r *realm) remove(b *book) {
	delete(r.books, b.prefix)
	if i := slices.Index(r.beside, b); i >= 0 {
		r.beside = slices.Delete(r.beside, i, i+1)
		return
	}
	r.taken[ledger.FamilyOf(b.prefix.Addr())].Release(b.prefix)
}

// overlapping names what p overlaps; nil where it overlaps nothing.
func (r *realm) overlapping(p netip.Prefix, host []netip.Prefix) error {
	if x, ok := clash(p, host); ok {
		return fmt.Errorf("%w: %s overlaps %s of the host (--ipam-opt %s=true allows it)", ErrPoolOverlap, p, x, OverlapOption)
	}
	if r.taken[ledger.FamilyOf(p.Addr())].IsFree(p) && len(r.beside) == 0 {
		return nil
	}
	var first netip.Prefix
	for q := range r.books {
		if q.Overlaps(p) && (!first.IsValid() || q.Compare(first) < 0) {
			first = q
		}
	}
	if !first.IsValid() {
		return nil
	}
	return fmt.Errorf("%w: %s overlaps %s of %s (--ipam-opt %s=true allows it)", ErrPoolOverlap, p, first, r.name, OverlapOption)
}

// clash returns the network of another owner that overlaps p. A default route is not a network.
func clash(p netip.Prefix, others []netip.Prefix) (netip.Prefix, bool) {
	for _, x := range others {
		if x.Bits() > 0 && x.Overlaps(p) {
			return canonical(x), true
		}
	}
	return netip.Prefix{}, false
}

// choose is the lowest prefix of the predefined lists that is free. bits is its
// length, 0 for that of the list.
func (r *realm) choose(f ledger.Family, bits int, host []netip.Prefix) (netip.Prefix, error) {
	fits := false
	for _, x := range r.predefined[f] {
		n := x.Size
		if bits != 0 {
			n = bits
		}
		if n < x.Base.Bits() {
			continue
		}
		fits = true
		if p, ok := r.search(r.taken[f], x.Base, n, host); ok {
			return p, nil
		}
	}
	if !fits {
		return netip.Prefix{}, fmt.Errorf("%w: no predefined %s pool of %s can hold a /%d", ErrInvalidPool, f, r.name, bits)
	}
	return netip.Prefix{}, fmt.Errorf("%w: %s of %s", ErrNoMoreSubnets, f, r.name)
}

// search is the lowest prefix of base that is free in space and overlaps
// neither host nor what is beside.
func (r *realm) search(space *addrspace.Space, base netip.Prefix, bits int, host []netip.Prefix) (netip.Prefix, bool) {
	for from := base.Addr(); from.IsValid() && base.Contains(from); {
		p, ok := space.Next(from, bits)
		if !ok || p.Addr().Less(from) || !base.Contains(p.Addr()) {
			break
		}
		x, clashes := clash(p, host)
		for _, b := range r.beside {
			if !clashes && b.prefix.Overlaps(p) {
				x, clashes = b.prefix, true
			}
		}
		if !clashes {
			return p, true
		}
		last, _ := addrspace.NthLast(x, 0)
		from = last.Next()
	}
	return netip.Prefix{}, false
}
