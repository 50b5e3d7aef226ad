// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// subnets finds free prefixes beside the blocks of the pools of one address
// space. The ledger's lock guards it; a nil one holds nothing.
//
// Pools of a space may overlap. A block that overlaps an earlier one is not in
// free, and every search looks at it.
type subnets struct {
	free   [2]*addrspace.Space // by family: the addresses of no block
	beside []*block
}

func newSubnets() *subnets {
	return &subnets{free: [2]*addrspace.Space{
		addrspace.New(netip.PrefixFrom(netip.IPv4Unspecified(), 0)),
		addrspace.New(netip.PrefixFrom(netip.IPv6Unspecified(), 0)),
	}}
}

func (n *subnets) add(b *block) {
	if n == nil {
		return
	}
	b.beside = !n.free[FamilyOf(b.prefix.Addr())].Take(b.prefix)
	if b.beside {
		n.beside = append(n.beside, b)
	}
}

func (n *subnets) remove(b *block) {
	switch {
	case n == nil:
	case b.beside:
		n.beside = slices.DeleteFunc(n.beside, func(x *block) bool { return x == b })
	default:
		n.free[FamilyOf(b.prefix.Addr())].Release(b.prefix)
	}
}

// enter moves the blocks of p into the address space that is named.
func (l *Ledger) enter(p *pool, space string) {
	if p.Space == space {
		return
	}
	to := l.spaces[space]
	if to == nil && space != "" {
		to = newSubnets()
		l.spaces[space] = to
	}
	for i := range p.fam {
		for _, b := range p.fam[i].blocks {
			p.subnets.remove(b)
			to.add(b)
		}
	}
	p.subnets = to
}

// FreeSubnet returns the lowest aligned prefix of a length in base that overlaps
// no block of the pools of an address space and none of avoid.
func (l *Ledger) FreeSubnet(space string, base netip.Prefix, bits int, avoid []netip.Prefix) (netip.Prefix, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.spaces[space]
	if n == nil {
		n = newSubnets()
	}
	if len(n.beside) > 0 {
		avoid = slices.Clone(avoid)
		for _, b := range n.beside {
			avoid = append(avoid, b.prefix)
		}
	}
	return nextFree(n.free[FamilyOf(base.Addr())], base, bits, avoid)
}

// FreePart returns the lowest aligned prefix of a length in an active block of a
// pool of which every address is free, and that overlaps none of avoid.
func (l *Ledger) FreePart(pool string, f Family, bits int, avoid []netip.Prefix) (netip.Prefix, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pools[pool]
	if p == nil {
		return netip.Prefix{}, false
	}
	l.expirePending()
	s := &p.fam[f]
	l.expireCooling(p, s)
	for _, b := range s.blocks {
		if b.state != Active {
			continue
		}
		if part, ok := nextFree(b.space, b.prefix, bits, avoid); ok {
			return part, true
		}
	}
	return netip.Prefix{}, false
}

// nextFree returns the lowest aligned prefix of a length in base that is free in
// space and overlaps none of avoid.
func nextFree(space *addrspace.Space, base netip.Prefix, bits int, avoid []netip.Prefix) (netip.Prefix, bool) {
	if bits < base.Bits() {
		return netip.Prefix{}, false
	}
	for from := base.Addr(); base.Contains(from); {
		p, ok := space.Next(from, bits)
		if !ok || p.Addr().Less(from) || !base.Contains(p.Addr()) {
			break
		}
		i := slices.IndexFunc(avoid, p.Overlaps)
		if i < 0 {
			return p, true
		}
		last, _ := addrspace.NthLast(avoid[i].Masked(), 0)
		from = last.Next()
	}
	return netip.Prefix{}, false
}

// Overlapping returns the lowest block of an address space that overlaps p; the
// blocks of one pool, which may be "", do not count.
func (l *Ledger) Overlapping(space string, p netip.Prefix, except string) (block netip.Prefix, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.spaces[space]
	if n == nil || len(n.beside) == 0 && n.free[FamilyOf(p.Addr())].IsFree(p) {
		return block, false
	}
	for _, x := range l.pools {
		if x.subnets != n || x.Name == except {
			continue
		}
		for _, b := range x.fam[FamilyOf(p.Addr())].blocks {
			if b.prefix.Overlaps(p) && (!ok || comparePrefix(b.prefix, block) < 0) {
				block, ok = b.prefix, true
			}
		}
	}
	return block, ok
}

// Blocks returns the active blocks of a pool, by family and prefix.
func (l *Ledger) Blocks(pool string) (blocks []netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pools[pool]
	if p == nil {
		return nil
	}
	for i := range p.fam {
		for _, b := range p.fam[i].blocks {
			if b.state == Active {
				blocks = append(blocks, b.prefix)
			}
		}
	}
	return blocks
}

// LeasesOf returns the leases of a pool by address, without those that are staged.
func (l *Ledger) LeasesOf(pool string) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	p := l.pools[pool]
	if p == nil {
		return nil
	}
	var found []*lease
	for i := range p.fam {
		l.expireCooling(p, &p.fam[i])
		for x := range p.fam[i].leases.all() {
			if !x.staged {
				found = append(found, x)
			}
		}
	}
	slices.SortFunc(found, compareAddr)
	return values(found)
}
