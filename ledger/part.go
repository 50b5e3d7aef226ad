// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// takeFor takes the first free address at or above from, then from the beginning.
// The address is of the first part in req.Within with room, of the first block with
// room, or of the whole pool.
func (fp *familyPool) takeFor(req *Request, from netip.Addr) (*block, netip.Addr, bool) {
	switch {
	case len(req.Within) > 0:
		return fp.takeWithin(req, from)
	case req.Listed:
		return fp.takeListed(from)
	}
	return fp.take(from)
}

// takeListed takes the first free address at or above from, then from the
// beginning, of the first block with room in the order of SetBlocks.
func (fp *familyPool) takeListed(from netip.Addr) (*block, netip.Addr, bool) {
	b := fp.freeList(byRank).next(0)
	if b == nil {
		return nil, netip.Addr{}, false
	}
	a, ok := b.space.TakeNextAddr(from)
	return b, a, ok
}

func (fp *familyPool) takeWithin(req *Request, from netip.Addr) (*block, netip.Addr, bool) {
	for _, part := range req.Within {
		b := fp.blockAround(part)
		if b == nil || !b.hasRoom {
			continue
		}
		if a, ok := b.takePart(part, from, req.Except); ok {
			return b, a, true
		}
	}
	return nil, netip.Addr{}, false
}

// blockAround returns the active block that contains all of part, nil if there is none.
func (fp *familyPool) blockAround(part netip.Prefix) *block {
	if i, ok := fp.search(part); ok && fp.blocks[i].state == Active {
		return fp.blocks[i]
	}
	b := fp.blockOf(part.Addr())
	if b == nil || b.state != Active || b.prefix.Bits() > part.Bits() {
		return nil
	}
	return b
}

// takePart takes the first free address of part at or above from, then from its
// first address, but for those of except.
func (b *block) takePart(part netip.Prefix, from netip.Addr, except []netip.Prefix) (netip.Addr, bool) {
	if part == b.prefix && len(except) == 0 {
		return b.space.TakeNextAddr(from)
	}
	a, ok := b.nextInPart(part, from, except)
	if !ok && from != part.Addr() {
		a, ok = b.nextInPart(part, part.Addr(), except)
	}
	return a, ok && b.space.TakeAddr(a)
}

func (b *block) nextInPart(part netip.Prefix, from netip.Addr, except []netip.Prefix) (netip.Addr, bool) {
	for part.Contains(from) {
		p, ok := b.space.Next(from, from.BitLen())
		a := p.Addr()
		if !ok || a.Less(from) || !part.Contains(a) {
			break
		}
		i := slices.IndexFunc(except, func(x netip.Prefix) bool { return x.Contains(a) })
		if i < 0 {
			return a, true
		}
		last, _ := addrspace.NthLast(except[i].Masked(), 0)
		from = last.Next()
	}
	return netip.Addr{}, false
}

// allows reports whether the request may get a of b.
func (r *Request) allows(b *block, a netip.Addr) bool {
	inPart := func(part netip.Prefix) bool { return part.Bits() >= b.prefix.Bits() && part.Contains(a) }
	excepted := func(x netip.Prefix) bool { return x.Contains(a) }
	return len(r.Within) == 0 || slices.ContainsFunc(r.Within, inPart) && !slices.ContainsFunc(r.Except, excepted)
}

// exhausted counts in which states the addresses are that a request could not get.
func (p *pool) exhausted(f Family, req *Request) error {
	fp := &p.fam[f]
	e := &Exhausted{Pool: p.Name, Family: f}
	if len(req.Within) == 0 {
		e.Cooling = fp.cooling.n
		for _, b := range fp.freeList(byPrefix).blocks {
			e.addBlock(b)
		}
		return e
	}
	for _, part := range req.Within {
		b := fp.blockAround(part)
		switch {
		case b == nil:
			continue
		case b.prefix == part:
			e.addBlock(b)
		default:
			e.addPart(fp, part)
		}
		e.Cooling += b.coolingIn(part)
	}
	return e
}

func (e *Exhausted) addBlock(b *block) {
	e.Size, e.Reserved = e.Size+addrspace.Size(b.prefix), e.Reserved+b.reserved
	e.Held, e.Infra, e.Quarantined = e.Held+b.users-b.quarantined, e.Infra+b.infra, e.Quarantined+b.quarantined
}

// addPart counts the addresses of a part one by one; those without a lease are
// reserved, since none is free.
func (e *Exhausted) addPart(fp *familyPool, part netip.Prefix) {
	size, leased := addrspace.Size(part), fp.leasesIn(part)
	for _, x := range leased {
		switch {
		case x.state == Quarantined:
			e.Quarantined++
		case x.purpose == ForInfra:
			e.Infra++
		case x.state == Held || x.state == Pending:
			e.Held++
		}
	}
	e.Size, e.Reserved = e.Size+size, e.Reserved+size-uint64(len(leased))
}
