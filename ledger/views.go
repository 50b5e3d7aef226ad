// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// BlockStat counts the addresses of one block.
type BlockStat struct {
	Pool        string
	Family      Family
	Block       netip.Prefix
	State       BlockState
	Size        uint64
	Free        uint64 // 0 if the block is draining
	Held        int    // for pods and containers, pending ones included
	Infra       int
	Cooling     int
	Quarantined int
	Reserved    uint64
}

// Leases returns all committed leases, by pool and address.
func (l *Ledger) Leases() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	for _, p := range l.pools {
		for i := range p.fam {
			l.expireCooling(p, &p.fam[i])
		}
	}
	return values(l.sorted(func(x *lease) bool { return !x.staged }))
}

// leasesAtOnce is the number of leases that All copies under one lock.
const leasesAtOnce = 256

// All yields the committed leases, in no order. It does not hold the lock while the caller
// uses a lease, which is valid until the next one. A lease that exists from the beginning
// to the end is yielded, and more than once only if other leases are claimed meanwhile.
func (l *Ledger) All() iter.Seq[*Lease] { return l.AllInSteps(leasesAtOnce) }

// AllInSteps is All with a number of leases that are copied under one lock. With 4 it
// holds the lock for about as long as a claim does.
func (l *Ledger) AllInSteps(n int) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		room := make([]Lease, 0, n)
		for at := (position{}); !at.end; {
			room = l.appendLeases(room[:0], &at, n)
			for i := range room {
				if !yield(&room[i]) {
					return
				}
			}
		}
	}
}

// position is a place among the leases. Pools stay, and no bucket of a table becomes fewer.
type position struct {
	pool, family, bucket int
	end                  bool
}

// appendLeases appends n leases from a place on, or a few more, and moves the place behind them.
func (l *Ledger) appendLeases(room []Lease, at *position, n int) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	for ; at.pool < len(l.order); at.pool++ {
		p := l.order[at.pool]
		for ; at.family < len(p.fam); at.family++ {
			fp := &p.fam[at.family]
			l.expireCooling(p, fp)
			room = fp.appendLeases(room, at, n)
			if at.bucket < len(fp.leases.heads) {
				return room
			}
			at.bucket = 0
		}
		at.family = 0
	}
	at.end = true
	return room
}

func (fp *familyPool) appendLeases(room []Lease, at *position, n int) []Lease {
	for ; at.bucket < len(fp.leases.heads) && len(room) < n; at.bucket++ {
		for x := fp.leases.heads[at.bucket]; x != nil; x = x.chains[byAddr].next {
			if !x.staged {
				room = append(room, x.value())
			}
		}
	}
	return room
}

// sorted returns the leases for which f is true, by pool and address.
func (l *Ledger) sorted(f func(*lease) bool) (found []*lease) {
	pools := slices.Clone(l.order)
	slices.SortFunc(pools, func(x, y *pool) int { return strings.Compare(x.Name, y.Name) })
	type at struct {
		addr  netip.Addr // of the lease, which is in no cache
		lease *lease
	}
	var part []at
	for _, p := range pools {
		for i := range p.fam {
			part = part[:0]
			for x := range p.fam[i].leases.all() {
				if f(x) {
					part = append(part, at{x.addr, x})
				}
			}
			slices.SortFunc(part, func(x, y at) int { return x.addr.Compare(y.addr) })
			for _, x := range part {
				found = append(found, x.lease)
			}
		}
	}
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

// ByKey returns the committed leases of a key, by address.
func (l *Ledger) ByKey(k Key) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
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

// Lookup returns the committed lease of an address of a pool.
func (l *Ledger) Lookup(pool string, a netip.Addr) (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	if p := l.pools[pool]; p != nil {
		fp := &p.fam[FamilyOf(a)]
		l.expireCooling(p, fp)
		if x := fp.lease(a); x != nil && !x.staged {
			return x.value(), true
		}
	}
	return Lease{}, false
}

// statsAtOnce is the number of blocks whose counts are copied under one lock.
const statsAtOnce = 256

// Stats returns the counts of all blocks, by pool, family and prefix. Those of
// one pool are of one instant; claims may come between those of two pools.
func (l *Ledger) Stats() (all []BlockStat) {
	for next := 0; next >= 0; {
		next = l.appendStats(&all, next)
	}
	slices.SortFunc(all, func(x, y BlockStat) int {
		return cmp.Or(strings.Compare(x.Pool, y.Pool), cmp.Compare(x.Family, y.Family), x.Block.Compare(y.Block))
	})
	return all
}

// appendStats appends the counts of some pools, from number i on, and returns the
// number of the next pool, -1 after the last one.
func (l *Ledger) appendStats(all *[]BlockStat, i int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expirePending()
	for enough := len(*all) + statsAtOnce; i < len(l.order) && len(*all) < enough; i++ {
		p := l.order[i]
		for f := range p.fam {
			l.expireCooling(p, &p.fam[f])
			for _, b := range p.fam[f].blocks {
				*all = append(*all, b.stat(Family(f)))
			}
		}
	}
	if i == len(l.order) {
		return -1
	}
	return i
}

func (b *block) stat(f Family) BlockStat {
	s := BlockStat{
		Pool:        b.pool.Name,
		Family:      f,
		Block:       b.prefix,
		State:       b.state,
		Size:        addrspace.Size(b.prefix),
		Reserved:    b.reserved,
		Held:        b.users - b.quarantined,
		Infra:       b.infra,
		Quarantined: b.quarantined,
		Cooling:     b.cooling.n,
	}
	if b.state == Active {
		s.Free = b.space.Free()
	}
	return s
}

// Policies returns the pools that SetPool has made known, by name.
func (l *Ledger) Policies() (all []Pool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		if p.known {
			all = append(all, p.Pool)
		}
	}
	slices.SortFunc(all, func(x, y Pool) int { return strings.Compare(x.Name, y.Name) })
	return all
}
