// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// takeFor takes the first free address at or above from, then from the
// beginning, of the first part in req.Within with room; of the whole pool, if
// Within is empty.
func (s *side) takeFor(req *Request, from netip.Addr) (*block, netip.Addr, bool) {
	if len(req.Within) == 0 {
		return s.take(from)
	}
	for _, part := range req.Within {
		b := s.blockAround(part)
		if b == nil || b.space.Free() == 0 {
			continue
		}
		if a, ok := b.takePart(part, from, req.Except); ok {
			return b, a, true
		}
	}
	return nil, netip.Addr{}, false
}

// blockAround returns the active block that contains all of part, nil if there is none.
func (s *side) blockAround(part netip.Prefix) *block {
	if i, ok := s.place(part); ok && s.blocks[i].state == Active {
		return s.blocks[i]
	}
	b := s.blockOf(part.Addr())
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
	s := &p.fam[f]
	e := &Exhausted{Pool: p.Name, Family: f}
	if len(req.Within) == 0 {
		e.Cooling = s.cooling.n
		for _, b := range s.blocks {
			if b.state == Active {
				e.addBlock(b)
			}
		}
		return e
	}
	for _, part := range req.Within {
		if b := s.blockAround(part); b != nil && b.prefix == part {
			e.addBlock(b)
		} else if b != nil {
			e.addPart(s, part)
		}
	}
	for x := s.cooling.head; x != nil; x = x.next {
		if slices.ContainsFunc(req.Within, func(part netip.Prefix) bool { return part.Contains(x.addr) }) {
			e.Cooling++
		}
	}
	return e
}

func (e *Exhausted) addBlock(b *block) {
	e.Size, e.Reserved = e.Size+addrspace.Size(b.prefix), e.Reserved+b.reserved
	e.Held, e.Quarantined = e.Held+b.users-b.quarantined+b.infra, e.Quarantined+b.quarantined
}

// addPart counts the addresses of a part one by one; those without a lease are
// reserved, since none is free. A part may be larger than the number of leases.
func (e *Exhausted) addPart(s *side, part netip.Prefix) {
	size := addrspace.Size(part)
	leased := uint64(0)
	count := func(x *lease) {
		leased++
		switch x.state {
		case Held, Pending:
			e.Held++
		case Quarantined:
			e.Quarantined++
		}
	}
	if size < uint64(s.leases.n) {
		for a := part.Addr(); part.Contains(a); a = a.Next() {
			if x := s.lease(a); x != nil {
				count(x)
			}
		}
	} else {
		for x := range s.leases.all() {
			if part.Contains(x.addr) {
				count(x)
			}
		}
	}
	e.Size, e.Reserved = e.Size+size, e.Reserved+size-leased
}
