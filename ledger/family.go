// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// BlockState is the state of a block. A released block is forgotten.
type BlockState uint8

// States of blocks. A draining block keeps its leases and allocates nothing.
const (
	Active BlockState = iota
	Draining
)

func (s BlockState) String() string { return name("block state", s, "active", "draining") }

// MarshalText returns the name.
func (s BlockState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// block is an aligned prefix of a pool that this node was granted.
type block struct {
	prefix netip.Prefix
	last   netip.Addr // of prefix
	pool   *pool
	state  BlockState
	// space holds the free addresses: neither reserved nor leased, whichever of
	// two overlapping blocks the lease is of.
	space       *addrspace.Space
	reserved    uint64 // edges and exclusions: out of space without a lease
	users       int    // leases that keep a draining block: all but infra and cooling ones
	quarantined int    // of the users
	infra       int
	cooling     list // the longest cooling one first
	staged      bool // its grant, or its draining, is not committed yet
	forgotten   bool // the pool does not have it any more
	beside      bool // overlaps an earlier block of its address space

	rank    int  // among the prefixes of SetBlocks; -1: not known yet
	hasRoom bool // space has a free address, as noteRoom has seen it
	at      [freeLists]int
}

func (p *pool) newBlock(prefix netip.Prefix) *block {
	b := &block{prefix: prefix, pool: p, rank: -1, cooling: list{by: ofBlock}}
	b.last, _ = addrspace.NthLast(prefix, 0)
	b.space = addrspace.New(prefix)
	b.reserved = p.reserve(b)
	b.hasRoom = b.space.Free() > 0
	return b
}

// family returns the part of the pool that b is in.
func (b *block) family() *familyPool { return &b.pool.fam[FamilyOf(b.last)] }

// familyPool is one family of a pool. Two active blocks never overlap; a
// draining block may overlap others of any state.
type familyPool struct {
	blocks  []*block // sorted by prefix
	lengths []length // of the blocks, the shortest first
	leases  table
	cursors [2]netip.Addr // last address that was allocated, see cursor
	cooling list          // of all blocks, the longest cooling one first
	free    [freeLists]freeList
}

// length counts the blocks of one prefix length.
type length struct{ bits, n int }

// place returns the index of a block, or the index where it belongs. p has no host bits.
func (fp *familyPool) search(p netip.Prefix) (int, bool) {
	return slices.BinarySearchFunc(
		fp.blocks,
		p,
		func(b *block, p netip.Prefix) int { return comparePrefix(b.prefix, p) },
	)
}

// add adds blocks that the pool does not have.
func (fp *familyPool) add(blocks ...*block) {
	for _, b := range blocks {
		i, ok := slices.BinarySearchFunc(
			fp.lengths,
			b.prefix.Bits(),
			func(x length, bits int) int { return x.bits - bits },
		)
		if !ok {
			fp.lengths = slices.Insert(fp.lengths, i, length{bits: b.prefix.Bits()})
		}
		fp.lengths[i].n++
		b.pool.subnets.add(b)
	}
	if len(blocks) == 1 {
		i, _ := fp.search(blocks[0].prefix)
		fp.blocks = slices.Insert(fp.blocks, i, blocks[0])
	} else {
		fp.blocks = append(fp.blocks, blocks...)
		slices.SortFunc(fp.blocks, func(x, y *block) int { return comparePrefix(x.prefix, y.prefix) })
	}
	fp.changed()
	if len(fp.lengths) == 1 {
		return // no block overlaps another one
	}
	addresses, leases := uint64(0), uint64(fp.leases.n)
	for _, b := range blocks {
		addresses += min(addrspace.Size(b.prefix), leases)
	}
	if addresses > leases {
		for x := range fp.leases.all() {
			fp.occupyAll(x.addr)
		}
		return
	}
	for _, b := range blocks {
		for _, x := range fp.leasesIn(b.prefix) {
			fp.occupy(b, x.addr)
		}
	}
}

// forget removes b. The caller removes it from blocks with compact.
func (fp *familyPool) forget(b *block) {
	i := slices.IndexFunc(fp.lengths, func(x length) bool { return x.bits == b.prefix.Bits() })
	if fp.lengths[i].n--; fp.lengths[i].n == 0 {
		fp.lengths = slices.Delete(fp.lengths, i, i+1)
	}
	b.forgotten = true
	b.pool.subnets.remove(b)
	fp.changed()
}

// compact removes the forgotten blocks.
func (fp *familyPool) compact() {
	fp.blocks = slices.DeleteFunc(fp.blocks, func(b *block) bool { return b.forgotten })
	if len(fp.blocks) == 0 {
		fp.cursors = [2]netip.Addr{}
	}
}

// changed makes the free lists stale: a block came, went, or changed its state.
func (fp *familyPool) changed() {
	for i := range fp.free {
		fp.free[i].valid = false
	}
}

// rebuild makes the spaces of all blocks again, after a change of the policy.
func (fp *familyPool) rebuild() {
	for _, b := range fp.blocks {
		b.space = addrspace.New(b.prefix)
		b.reserved = b.pool.reserve(b)
	}
	for x := range fp.leases.all() {
		fp.occupyAll(x.addr)
	}
	for _, b := range fp.blocks {
		fp.noteRoom(b)
	}
}

// occupyAll takes a out of the free addresses of every block.
func (fp *familyPool) occupyAll(a netip.Addr) {
	for i := range fp.lengths {
		if b := fp.blockOfLength(a, fp.lengths[i].bits); b != nil {
			fp.occupy(b, a)
		}
	}
}

// occupy takes a out of the free addresses of b.
func (fp *familyPool) occupy(b *block, a netip.Addr) {
	b.space.TakeAddr(a)
	fp.noteRoom(b)
}

// taken follows a take of an address that b has allocated.
func (fp *familyPool) taken(b *block, a netip.Addr) {
	if len(fp.lengths) > 1 {
		fp.occupyAll(a)
	}
	fp.noteRoom(b)
}

// vacate returns a free again in every block that contains it; b is the one of its lease.
func (fp *familyPool) vacate(b *block, a netip.Addr) {
	if len(fp.lengths) > 1 {
		for i := range fp.lengths {
			if x := fp.blockOfLength(a, fp.lengths[i].bits); x != nil && x != b {
				fp.vacateIn(x, a)
			}
		}
	}
	fp.vacateIn(b, a)
}

func (fp *familyPool) vacateIn(b *block, a netip.Addr) {
	if !b.pool.isReserved(b, a) {
		b.space.ReleaseAddr(a)
		fp.noteRoom(b)
	}
}

// blockOfLength returns the block with this prefix length that contains a, nil if
// there is none.
func (fp *familyPool) blockOfLength(a netip.Addr, bits int) *block {
	p, err := a.Prefix(bits)
	if err != nil {
		return nil
	}
	if i, ok := fp.search(p); ok {
		return fp.blocks[i]
	}
	return nil
}

// blockOf returns the block that contains a, an active one before a draining one,
// nil if there is none.
func (fp *familyPool) blockOf(a netip.Addr) (found *block) {
	for i := range fp.lengths {
		b := fp.blockOfLength(a, fp.lengths[i].bits)
		if b != nil && (found == nil || b.state == Active) {
			found = b
		}
	}
	return found
}

// allocates returns the block that allocates the address of x again: an active one,
// if one contains it.
func (fp *familyPool) allocates(x *lease) *block {
	if x.block.state == Active || len(fp.lengths) == 1 {
		return x.block
	}
	return fp.blockOf(x.addr)
}

// leasesOf returns the leases of b.
func (fp *familyPool) leasesOf(b *block) []*lease {
	if b.users+b.infra+b.cooling.n == 0 {
		return nil
	}
	return slices.DeleteFunc(fp.leasesIn(b.prefix), func(x *lease) bool { return x.block != b })
}

// leasesIn returns the leases whose address is in p, in no order.
func (fp *familyPool) leasesIn(p netip.Prefix) (found []*lease) {
	if addrspace.Size(p) < uint64(fp.leases.n) {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			if x := fp.lease(a); x != nil {
				found = append(found, x)
			}
		}
		return found
	}
	for x := range fp.leases.all() {
		if p.Contains(x.addr) {
			found = append(found, x)
		}
	}
	return found
}

// cursor returns the last address that was allocated for pods, or for all else:
// the containers of one pool do not move the place where its pods continue.
func (fp *familyPool) cursor(purpose Purpose) *netip.Addr {
	if purpose == ForPod {
		return &fp.cursors[0]
	}
	return &fp.cursors[1]
}

// from returns the address at which the search for a request starts, the zero
// Addr for the lowest one; cursor is the last address that was allocated.
func (p *pool) from(req *Request, cursor netip.Addr) netip.Addr {
	order := p.Order
	if req.Order != Next {
		order = req.Order
	}
	if order == Lowest || !cursor.IsValid() {
		return netip.Addr{}
	}
	return cursor.Next()
}
