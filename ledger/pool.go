// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Order is the rule by which a pool chooses among its free addresses.
type Order uint8

// Orders of pools.
const (
	Next   Order = iota // the next one after the last one, so that no address is reused soon
	Lowest              // the lowest free one
	Serial              // as Next; the order that Docker's swarm mode asks for
)

func (o Order) String() string { return name("order", o, "next", "lowest", "serial") }

// DefaultCoolDown is the cool-down of a pool that never had a policy.
const DefaultCoolDown = 30 * time.Second

// Pool is a named address space for one purpose with its policy.
type Pool struct {
	Name         string
	Order        Order
	CoolDown     time.Duration  // from release to reuse
	ReserveEdges bool           // the first and the last address of each block are never allocated
	Exclude      []netip.Prefix // never allocated either
	Space        string         // address space of the blocks, for FreeSubnet and Overlapping; "": none
}

func (p Pool) equal(q Pool) bool {
	return p.Name == q.Name && p.Order == q.Order && p.CoolDown == q.CoolDown && p.Space == q.Space && p.reservesAs(q)
}

// reservesAs reports whether p and q reserve the same addresses.
func (p Pool) reservesAs(q Pool) bool {
	return p.ReserveEdges == q.ReserveEdges && slices.Equal(p.Exclude, q.Exclude)
}

func (p Pool) check() error {
	switch {
	case p.Name == "":
		return fmt.Errorf("set a pool: its name is empty")
	case p.Order > Serial:
		return fmt.Errorf("set pool %q: order %d: want next, lowest or serial", p.Name, p.Order)
	case p.CoolDown < 0:
		return fmt.Errorf("set pool %q: cool-down %s is negative", p.Name, p.CoolDown)
	}
	return nil
}

// Family is an address family.
type Family uint8

// Families; a set of them is a slice.
const (
	IPv4 Family = iota
	IPv6
)

func (f Family) String() string { return name("family", f, "ipv4", "ipv6") }

// MarshalText returns the name.
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// pool is a Pool with its blocks, by family. A pool without SetPool exists only
// because the journal has leases or exclusions of it. Its addresses cool for as long as
// those of its last policy did.
type pool struct {
	Pool
	known    bool // SetPool was called: the policy is known
	staged   bool // the policy is not committed yet
	fam      [2]familyPool
	timers   timers
	exclude  [2][]netip.Prefix        // Pool.Exclude by family: sorted, none within another
	excluded map[netip.Addr]exclusion // also addresses that are in no block
	subnets  *subnets                 // of Space; nil: none
}

func (p *pool) hasBlocks() bool {
	for i := range p.fam {
		if slices.ContainsFunc(p.fam[i].blocks, func(b *block) bool { return !b.forgotten }) {
			return true
		}
	}
	return false
}

// set changes the policy, and with it the reserved addresses of the blocks.
func (p *pool) set(policy Pool, known bool) {
	same := p.reservesAs(policy)
	p.Pool, p.known = policy, known
	if same {
		return
	}
	p.exclude = byFamily(policy.Exclude)
	for i := range p.fam {
		p.fam[i].rebuild()
	}
}

// byFamily returns prefixes sorted, without those that another one contains.
func byFamily(prefixes []netip.Prefix) (all [2][]netip.Prefix) {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, x := range prefixes {
		sorted = append(sorted, x.Masked())
	}
	slices.SortFunc(sorted, comparePrefix)
	for _, x := range sorted {
		list := &all[FamilyOf(x.Addr())]
		if n := len(*list); n == 0 || !(*list)[n-1].Contains(x.Addr()) {
			*list = append(*list, x)
		}
	}
	return all
}

// comparePrefix sorts a prefix before those that are within it.
func comparePrefix(p, q netip.Prefix) int {
	if c := p.Addr().Compare(q.Addr()); c != 0 {
		return c
	}
	return p.Bits() - q.Bits()
}

// isExcluded reports whether a is excluded by Ledger.Exclude.
func (p *pool) isExcluded(a netip.Addr) bool {
	if len(p.excluded) == 0 {
		return false
	}
	_, ok := p.excluded[a]
	return ok
}

// isReserved reports whether a is never allocated from b: by the policy, or
// because it is excluded.
func (p *pool) isReserved(b *block, a netip.Addr) bool {
	if p.ReserveEdges && (a == b.prefix.Addr() || a == b.last) && !b.prefix.IsSingleIP() {
		return true
	}
	if p.isExcluded(a) {
		return true
	}
	list := p.exclude[FamilyOf(a)]
	if len(list) == 0 {
		return false
	}
	i, ok := slices.BinarySearchFunc(list, a, func(x netip.Prefix, a netip.Addr) int { return x.Addr().Compare(a) })
	return ok || i > 0 && list[i-1].Contains(a)
}

// reserve takes the addresses that are never allocated out of the space of b,
// which is all free, and returns their number.
func (p *pool) reserve(b *block) uint64 {
	free := b.space.Free()
	list := p.exclude[FamilyOf(b.last)]
	i, ok := slices.BinarySearchFunc(list, b.prefix, comparePrefix)
	if ok || i > 0 && list[i-1].Contains(b.prefix.Addr()) {
		b.space.Take(b.prefix)
	}
	for ; i < len(list) && b.prefix.Contains(list[i].Addr()); i++ {
		b.space.Take(list[i])
	}
	if p.ReserveEdges && !b.prefix.IsSingleIP() {
		b.space.TakeAddr(b.prefix.Addr())
		b.space.TakeAddr(b.last)
	}
	if size := addrspace.Size(b.prefix); size < uint64(len(p.excluded)) {
		for a := b.prefix.Addr(); b.prefix.Contains(a); a = a.Next() {
			if p.isExcluded(a) {
				b.space.TakeAddr(a)
			}
		}
	} else {
		for a := range p.excluded {
			b.space.TakeAddr(a)
		}
	}
	return free - b.space.Free()
}
