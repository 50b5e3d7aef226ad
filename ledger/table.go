// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"net/netip"
)

// index names a table of leases.
type index uint8

const (
	byAddr index = iota
	byKey
	byPod
	indices
)

// table finds leases by a hash. The leases of a bucket are a chain, the newest first,
// whose links are in the leases; a map would keep a copy of each key, far from the
// lease. The table grows with each lease by splitting one bucket (linear hashing), so
// that no claim waits for a move of all leases.
type table struct {
	heads []*lease
	n     int
	by    index
}

// put adds x under hash h.
func (t *table) put(x *lease, h uint32) {
	t.n++
	for len(t.heads) < 2*t.n {
		t.split()
	}
	x.hashes[t.by] = h
	i := t.bucket(h)
	t.push(&t.heads[i], x)
}

// push adds x in front of the chain that begins at head.
func (t *table) push(head **lease, x *lease) {
	next := *head
	x.chains[t.by] = links{next: next}
	if next != nil {
		next.chains[t.by].prev = x
	}
	*head = x
}

// bucket returns the bucket of h. Each bucket from the last power of two on was split
// from the one that is as far from the first.
func (t *table) bucket(h uint32) int {
	n := len(t.heads)
	mask := 1<<bits.Len(uint(n-1)) - 1
	if i := int(h) & mask; i < n {
		return i
	}
	return int(h) & (mask >> 1)
}

// split adds a bucket and moves its part of another bucket there. Both chains keep
// their order.
func (t *table) split() {
	t.heads = append(t.heads, nil)
	last := len(t.heads) - 1
	if last == 0 {
		return
	}
	old := last - 1<<(bits.Len(uint(last))-1)
	var ends [2]*lease
	x := t.heads[old]
	t.heads[old] = nil
	for x != nil {
		next, i, to := x.chains[t.by].next, 0, old
		if t.bucket(x.hashes[t.by]) != old {
			i, to = 1, last
		}
		x.chains[t.by] = links{prev: ends[i]}
		if ends[i] == nil {
			t.heads[to] = x
		} else {
			ends[i].chains[t.by].next = x
		}
		ends[i], x = x, next
	}
}

// remove removes x, which the table contains.
func (t *table) remove(x *lease) {
	at := x.chains[t.by]
	if at.prev != nil {
		at.prev.chains[t.by].next = at.next
	} else {
		t.heads[t.bucket(x.hashes[t.by])] = at.next
	}
	if at.next != nil {
		at.next.chains[t.by].prev = at.prev
	}
	x.chains[t.by] = links{}
	t.n--
}

// first returns the newest lease of hash h. Leases of several keys may have one hash.
func (t *table) first(h uint32) *lease {
	if t.n == 0 {
		return nil
	}
	return t.same(t.heads[t.bucket(h)], h)
}

// next returns the next older lease of the hash of x.
func (t *table) next(x *lease) *lease { return t.same(x.chains[t.by].next, x.hashes[t.by]) }

// same returns the first lease of hash h in the chain from x on.
func (t *table) same(x *lease, h uint32) *lease {
	for x != nil && x.hashes[t.by] != h {
		x = x.chains[t.by].next
	}
	return x
}

// all yields the leases in no order. The loop may remove the lease that it is at.
func (t *table) all() iter.Seq[*lease] {
	return func(yield func(*lease) bool) {
		for _, x := range t.heads {
			for x != nil {
				next := x.chains[t.by].next
				if !yield(x) {
					return
				}
				x = next
			}
		}
	}
}

// lease returns the lease of an address, nil if there is none.
func (fp *familyPool) lease(a netip.Addr) *lease {
	x := fp.leases.first(hashAddr(a))
	for x != nil && x.addr != a {
		x = fp.leases.next(x)
	}
	return x
}

// hashAddr puts eight neighbours into one line of memory, since they are usually
// allocated one after the other. It spreads the lines: the upper bits of a product
// depend on all bits below.
func hashAddr(a netip.Addr) uint32 {
	const odd = 0x9E3779B97F4A7C15 // 2^64 by the golden ratio
	b := a.As16()
	high, low := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	return uint32((high*odd^low>>3)*odd>>35)<<3 | uint32(low)&7
}
