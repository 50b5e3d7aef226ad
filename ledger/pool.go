// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Order is how a pool chooses among its free addresses.
type Order uint8

// Orders of pools.
const (
	Next   Order = iota // go on after the last one lent, so that none is reused soon
	Lowest              // the lowest free one
	Serial              // as Next; what Docker's swarm mode asks for
)

func (o Order) String() string { return name("order", o, "next", "lowest", "serial") }

// Pool is a named address space for one purpose with its policy.
type Pool struct {
	Name         string
	Order        Order
	CoolDown     time.Duration  // from release to reuse
	ReserveEdges bool           // the first and the last address of each block are never lent
	Exclude      []netip.Prefix // never lent either
	Space        string         // address space of the blocks, for FreeSubnet and Overlapping; "": none
}

func (p Pool) equal(q Pool) bool {
	return p.Name == q.Name && p.Order == q.Order && p.CoolDown == q.CoolDown && p.ReserveEdges == q.ReserveEdges && slices.Equal(p.Exclude, q.Exclude) && p.Space == q.Space
}

// Family is an address family.
type Family uint8

// Families; a set of them is a slice.
const (
	IPv4 Family = iota
	IPv6
)

func (f Family) String() string { return name("family", f, "ipv4", "ipv6") }

// MarshalText writes the name.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// FamilyOf is the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// BlockState is where a block is in its life; released ones are forgotten.
type BlockState uint8

// States of blocks. A draining block keeps its leases and lends nothing.
const (
	Active BlockState = iota
	Draining
)

func (s BlockState) String() string { return name("block state", s, "active", "draining") }

// MarshalText writes the name.
func (s BlockState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// pool is a Pool with its blocks, by family. A pool without SetPool exists only
// because the journal has leases of it.
type pool struct {
	Pool
	known    bool
	fam      [2]side
	timers   timers
	excluded map[netip.Addr]exclusion // also of addresses in no block
	subnets  *subnets                 // of Space; nil: none
}

// side is one family of a pool.
type side struct {
	blocks  []*block // ordered by prefix; two active ones never overlap
	leases  table
	cursors [2]netip.Addr // last address that was allocated, see cursor
	cooling list          // oldest first, all blocks
}

// block is an aligned prefix of a pool, granted to this node.
type block struct {
	prefix      netip.Prefix
	last        netip.Addr // of prefix
	pool        *pool
	state       BlockState
	space       *addrspace.Space
	reserved    uint64 // edges and exclusions: out of space without a lease
	users       int    // leases that keep a draining block: all but infra and cooling ones
	quarantined int    // of the users
	infra       int
	staged      bool // its grant, or its draining, is not committed yet
	beside      bool // overlaps an earlier block of its address space
}

// reserve makes space anew: all addresses but those that the policy never
// lends. The leases are for the caller to take out (side.reclaim).
func (b *block) reserve() {
	b.space = addrspace.New(b.prefix)
	b.last, _ = addrspace.NthLast(b.prefix, 0)
	free := b.space.Free()
	exclude := slices.SortedFunc(slices.Values(b.pool.Exclude), func(x, y netip.Prefix) int { return x.Bits() - y.Bits() })
	for _, x := range exclude { // large ones first: one that cannot be taken is within an earlier one
		if x = x.Masked(); x.Bits() < b.prefix.Bits() && x.Contains(b.prefix.Addr()) {
			x = b.prefix
		}
		b.space.Take(x)
	}
	if b.pool.ReserveEdges && !b.prefix.IsSingleIP() {
		b.space.TakeAddr(b.prefix.Addr())
		b.space.TakeAddr(b.last)
	}
	for a := range b.pool.excluded {
		b.space.TakeAddr(a)
	}
	b.reserved = free - b.space.Free()
}

// reclaim takes the leased addresses out of the spaces of the blocks that want
// is true for. A lease may lie in two blocks: one draining, one active.
func (s *side) reclaim(want func(*block) bool) {
	draining := slices.ContainsFunc(s.blocks, func(b *block) bool { return b.state == Draining })
	for x := range s.leases.all() {
		if want(x.block) {
			x.block.space.TakeAddr(x.addr)
		}
		if draining {
			for _, b := range s.blocks {
				if want(b) {
					b.space.TakeAddr(x.addr)
				}
			}
		}
	}
}

func (p *pool) isExcluded(a netip.Addr) bool {
	_, ok := p.excluded[a]
	return ok
}

// isReserved is true for an address that is never lent: by policy, or because
// somebody has excluded it.
func (p *pool) isReserved(b *block, a netip.Addr) bool {
	if p.ReserveEdges && (a == b.prefix.Addr() || a == b.last) && !b.prefix.IsSingleIP() {
		return true
	}
	if p.isExcluded(a) {
		return true
	}
	return slices.ContainsFunc(p.Exclude, func(x netip.Prefix) bool { return x.Contains(a) })
}

// blockOf is the block that contains a, an active one before a draining one,
// nil if there is none.
func (s *side) blockOf(a netip.Addr) (found *block) {
	for _, b := range s.blocks {
		if b.prefix.Contains(a) && (found == nil || b.state == Active) {
			found = b
		}
	}
	return found
}

// giveBack makes a free in every block that contains it.
func (p *pool) giveBack(s *side, a netip.Addr) {
	for _, b := range s.blocks {
		if b.prefix.Contains(a) && !p.isReserved(b, a) {
			b.space.ReleaseAddr(a)
		}
	}
}

func (s *side) add(b *block) {
	i, _ := s.place(b.prefix)
	s.blocks = slices.Insert(s.blocks, i, b)
	b.pool.subnets.add(b)
}

// place is where a block is, or belongs, among the others. No prefix has host bits.
func (s *side) place(p netip.Prefix) (int, bool) {
	return slices.BinarySearchFunc(s.blocks, p, func(b *block, p netip.Prefix) int { return comparePrefix(b.prefix, p) })
}

// comparePrefix puts a prefix before those that are within it.
func comparePrefix(p, q netip.Prefix) int {
	return cmp.Or(p.Addr().Compare(q.Addr()), p.Bits()-q.Bits())
}

func (s *side) remove(b *block) {
	s.blocks = slices.DeleteFunc(s.blocks, func(x *block) bool { return x == b })
	b.pool.subnets.remove(b)
	if len(s.blocks) == 0 {
		s.cursors = [2]netip.Addr{}
	}
}

// cursor returns the last address that was allocated for pods, or for all else:
// the containers of one pool do not move the place where its pods continue.
func (s *side) cursor(purpose Purpose) *netip.Addr {
	if purpose == ForPod {
		return &s.cursors[0]
	}
	return &s.cursors[1]
}

// from returns the address at which the search for a request starts, the zero
// Addr for the lowest one; cursor is the last address that was allocated.
func (p *pool) from(req *Request, f Family, cursor netip.Addr) netip.Addr {
	order := p.Order
	if req.Order != Next {
		order = req.Order
	}
	switch {
	case req.After.IsValid() && FamilyOf(req.After) == f:
		return req.After.Next()
	case order == Lowest || !cursor.IsValid():
		return netip.Addr{}
	}
	return cursor.Next()
}

// take takes the first free address at or above from, and after the last one
// the lowest one; false if none is free.
func (s *side) take(from netip.Addr) (*block, netip.Addr, bool) {
	switch len(s.blocks) {
	case 0:
		return nil, netip.Addr{}, false
	case 1:
		return s.takeFrom(s.blocks[0], from)
	}
	start := 0 // the block of the cursor; its addresses below the cursor come last
	for i, b := range s.blocks {
		if from.IsValid() && b.prefix.Addr().Compare(from) <= 0 {
			start = i
		}
	}
	for i := range len(s.blocks) + 1 {
		b := s.blocks[(start+i)%len(s.blocks)]
		if b.state != Active || b.space.Free() == 0 {
			continue
		}
		if i > 0 {
			return s.takeFrom(b, netip.Addr{})
		}
		if p, ok := b.space.Next(from, b.prefix.Addr().BitLen()); ok && (!from.IsValid() || from.Compare(p.Addr()) <= 0) {
			return s.takeFrom(b, p.Addr())
		}
	}
	return nil, netip.Addr{}, false
}

func (s *side) takeFrom(b *block, from netip.Addr) (*block, netip.Addr, bool) {
	if b.state != Active {
		return nil, netip.Addr{}, false
	}
	a, ok := b.space.TakeNextAddr(from)
	return b, a, ok
}

// list is a list of cooling leases, the one that cools longest first.
type list struct {
	head, tail *lease
	n          int
}

func (l *list) push(x *lease) {
	x.prev, x.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = x
	} else {
		l.head = x
	}
	l.tail = x
	l.n++
}

// insert puts x back where it was.
func (l *list) insert(x *lease) {
	after := l.tail
	for after != nil && after.cooled > x.cooled {
		after = after.prev
	}
	if after == l.tail {
		l.push(x)
		return
	}
	x.prev = after
	if after == nil {
		x.next, l.head = l.head, x
	} else {
		x.next, after.next = after.next, x
	}
	x.next.prev = x
	l.n++
}

func (l *list) remove(x *lease) {
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		l.head = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		l.tail = x.prev
	}
	x.prev, x.next = nil, nil
	l.n--
}

func checkPool(p Pool) error {
	if p.Name == "" {
		return fmt.Errorf("pool: name is empty")
	}
	if p.Order > Serial {
		return fmt.Errorf("pool %q: order %d is none of next, lowest, serial", p.Name, p.Order)
	}
	if p.CoolDown < 0 {
		return fmt.Errorf("pool %q: cool-down %s is negative", p.Name, p.CoolDown)
	}
	return nil
}
