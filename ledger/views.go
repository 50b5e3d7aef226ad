// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// BlockStat counts the addresses of one block.
type BlockStat struct {
	Pool        string
	Family      Family
	Block       netip.Prefix
	State       BlockState
	Size        uint64
	Free        uint64 // 0 where the block is draining
	Held        int    // for pods and containers, pending ones included
	Infra       int
	Cooling     int
	Quarantined int
	Reserved    uint64
}

// Leases are all leases, by pool and address. What is staged is not among them.
func (l *Ledger) Leases() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	for _, p := range l.pools {
		for i := range p.fam {
			l.expire(p, &p.fam[i])
		}
	}
	return values(l.sorted(func(x *lease) bool { return !x.staged }))
}

// sorted are the leases that f is true for, by pool and address.
func (l *Ledger) sorted(f func(*lease) bool) []*lease {
	var found []*lease
	for _, p := range l.pools {
		for i := range p.fam {
			for x := range p.fam[i].leases.all() {
				if f(x) {
					found = append(found, x)
				}
			}
		}
	}
	slices.SortFunc(found, func(x, y *lease) int {
		return cmp.Or(strings.Compare(x.block.pool.Name, y.block.pool.Name), x.addr.Compare(y.addr))
	})
	return found
}

func compareAddr(x, y *lease) int { return x.addr.Compare(y.addr) }

func values(xs []*lease) []Lease {
	leases := make([]Lease, 0, len(xs))
	for _, x := range xs {
		leases = append(leases, x.value())
	}
	return leases
}

// ByKey are the committed leases of a key, by address.
func (l *Ledger) ByKey(k Key) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	var found []*lease
	l.held(&k, l.hash(&k), func(x *lease) bool {
		if !x.staged {
			found = append(found, x)
		}
		return true
	})
	slices.SortFunc(found, compareAddr)
	return values(found)
}

// Lookup is the lease of an address of a pool.
func (l *Ledger) Lookup(pool string, a netip.Addr) (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	if p := l.pools[pool]; p != nil {
		s := &p.fam[FamilyOf(a)]
		l.expire(p, s)
		if x := s.lease(a); x != nil && !x.staged {
			return x.value(), true
		}
	}
	return Lease{}, false
}

// Cooling is since when the address of a block cools that will have cooled
// first; false where none does.
func (l *Ledger) Cooling(pool string, block netip.Prefix) (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	p := l.pools[pool]
	if p == nil {
		return since, false
	}
	s := &p.fam[FamilyOf(block.Addr())]
	l.expire(p, s)
	for x := s.cooling.head; x != nil; x = x.next {
		if block.Contains(x.addr) {
			return x.value().Since, true
		}
	}
	return since, false
}

// Stats are the counts of all blocks, by pool, family and prefix.
func (l *Ledger) Stats() []BlockStat {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapse()
	var all []BlockStat
	for _, p := range l.pools {
		for i := range p.fam {
			l.expire(p, &p.fam[i])
			all = append(all, p.stats(Family(i))...)
		}
	}
	slices.SortFunc(all, func(x, y BlockStat) int {
		return cmp.Or(strings.Compare(x.Pool, y.Pool), cmp.Compare(x.Family, y.Family), x.Block.Compare(y.Block))
	})
	return all
}

func (p *pool) stats(f Family) []BlockStat {
	s := &p.fam[f]
	cooling := map[*block]int{}
	for x := s.cooling.head; x != nil; x = x.next {
		cooling[x.block]++
	}
	stats := make([]BlockStat, 0, len(s.blocks))
	for _, b := range s.blocks {
		stat := BlockStat{
			Pool: p.Name, Family: f, Block: b.prefix, State: b.state, Size: addrspace.Size(b.prefix), Reserved: b.reserved,
			Held: b.users - b.quarantined, Infra: b.infra, Quarantined: b.quarantined, Cooling: cooling[b],
		}
		if b.state == Active {
			stat.Free = b.space.Free()
		}
		stats = append(stats, stat)
	}
	return stats
}
