// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// book is the addresses of one prefix: a pool of the ledger, or a part of the
// pod network's. Whoever claims or releases an address of it holds life for
// reading; it ends, and parts of it end, with life held for writing.
type book struct {
	prefix  netip.Prefix
	pool    string // the ledger's
	pods    bool   // pool is the pod network's
	realm   *realm
	edges   []netip.Prefix
	family  []ledger.Family // its one
	open    atomic.Bool     // the ledger has the pool; written under Driver.change
	asked   bool            // it may have it; guarded by Driver.change, as the next one
	entries int             // pools with this book
	life    sync.RWMutex
	live    atomic.Int64 // leases; it may be too high, where somebody else has released some

	mu     sync.Mutex
	cursor netip.Addr       // lent last, not counting the named ones
	index  *addrspace.Space // nil until it is needed
	cooled []ledger.Lease   // cooling when the index was made, the oldest first
}

// entry is a pool as the engine knows it.
type entry struct {
	id     poolID
	key    string // id as text
	lends  netip.Prefix
	book   *book
	alone  []*entry       // itself
	gone   bool           // guarded by book.life
	refs   int            // these and below are guarded by Driver.change
	chosen bool           // by the Driver
	shared map[string]int // gateways: how many networks have it beside the first one
}

func newBook(id poolID) *book {
	b := &book{prefix: id.prefix, pool: id.ledgerPool(), pods: id.pods != "", edges: edges(id.prefix)}
	b.open.Store(b.pods)
	return b
}

// edges are the addresses of p that nobody is lent: network and broadcast
// address, subnet-router anycast.
func edges(p netip.Prefix) []netip.Prefix {
	width := p.Addr().BitLen()
	if width-p.Bits() < 2 {
		return nil // RFC 3021, RFC 6164
	}
	all := append(make([]netip.Prefix, 0, 2), netip.PrefixFrom(p.Addr(), width))
	if p.Addr().Is4() {
		last, _ := addrspace.NthLast(p, 0)
		all = append(all, netip.PrefixFrom(last, width))
	}
	return all
}

// reserves is true for an edge.
func (b *book) reserves(a netip.Addr) bool {
	return slices.ContainsFunc(b.edges, func(p netip.Prefix) bool { return p.Addr() == a })
}

// The ledger lends any address of a pool, in the pool's order. Where an address
// of a part is wanted, or in another order, it is chosen here and claimed by
// name. The index is a guess at what is free: the ledger decides. What it takes
// for free and is not costs one more try; what it takes for held and is not is
// found when nothing else is left, and the index is made anew.

// next takes the next address of part that the index has for free.
func (b *book) next(part netip.Prefix, serial bool) (netip.Addr, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	width := part.Addr().BitLen()
	try := func(from netip.Addr) (netip.Addr, bool) {
		p, ok := b.index.Next(from, width)
		return p.Addr(), ok && !p.Addr().Less(from) && part.Contains(p.Addr())
	}
	a, ok := netip.Addr{}, false
	if after := b.cursor.Next(); serial && after.IsValid() && part.Contains(after) {
		a, ok = try(after)
	}
	if !ok {
		a, ok = try(part.Addr())
	}
	return a, ok && b.index.TakeAddr(a)
}

// learn makes the index of all leases of the ledger.
func (b *book) learn(leases []ledger.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.index, b.cooled = addrspace.New(b.prefix), nil
	for _, e := range b.edges {
		b.index.TakeAddr(e.Addr())
	}
	for _, l := range leases {
		if l.Pool == b.pool && b.index.TakeAddr(l.Addr) && l.State == ledger.Cooling {
			b.cooled = append(b.cooled, l)
		}
	}
	slices.SortStableFunc(b.cooled, func(x, y ledger.Lease) int { return cmp.Compare(x.Since.UnixNano(), y.Since.UnixNano()) })
}

func (b *book) learned() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.index != nil
}

// free is how many addresses the index has for free.
func (b *book) free() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.index.Free()
}

// cooling are the addresses of part that cooled when the index was made.
func (b *book) cooling(part netip.Prefix) (all []netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.cooled {
		if part.Contains(l.Addr) {
			all = append(all, l.Addr)
		}
	}
	return all
}

// lent notes that a was lent; named, if it was asked for.
func (b *book) lent(a netip.Addr, named bool) {
	b.live.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !named {
		b.cursor = a
	}
	if b.index != nil {
		b.index.TakeAddr(a)
	}
}

// last is the address that was lent last.
func (b *book) last() netip.Addr {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cursor
}

// freed notes that a is free again.
func (b *book) freed(a netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.index != nil {
		b.index.ReleaseAddr(a)
	}
}
