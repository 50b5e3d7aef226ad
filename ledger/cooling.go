// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "net/netip"

// A cooling lease is in two lists: that of its family and that of its block.
const (
	ofFamily = iota
	ofBlock
	coolingLists
)

// links are the neighbours of a lease in a list.
type links struct{ prev, next *lease }

// list is a list of cooling leases, the one that has cooled longest first.
type list struct {
	head, tail *lease
	n          int
	by         uint8
}

// insert adds x after the leases that have cooled as long.
func (l *list) insert(x *lease) {
	after := l.tail
	for after != nil && after.cooled > x.cooled {
		after = after.cooling[l.by].prev
	}
	var next *lease
	if after == nil {
		next, l.head = l.head, x
	} else {
		next, after.cooling[l.by].next = after.cooling[l.by].next, x
	}
	if next == nil {
		l.tail = x
	} else {
		next.cooling[l.by].prev = x
	}
	x.cooling[l.by] = links{prev: after, next: next}
	l.n++
}

func (l *list) remove(x *lease) {
	at := x.cooling[l.by]
	if at.prev != nil {
		at.prev.cooling[l.by].next = at.next
	} else {
		l.head = at.next
	}
	if at.next != nil {
		at.next.cooling[l.by].prev = at.prev
	} else {
		l.tail = at.prev
	}
	x.cooling[l.by] = links{}
	l.n--
}

func (fp *familyPool) insertCooling(x *lease) {
	fp.cooling.insert(x)
	x.block.cooling.insert(x)
}

func (fp *familyPool) removeCooling(x *lease) {
	fp.cooling.remove(x)
	x.block.cooling.remove(x)
}

// longestCooling returns the lease that has cooled longest of those whose address
// a request may get, with the active block of the address; nil if there is none.
func (fp *familyPool) longestCooling(req *Request) (*lease, *block) {
	if req.Rested || fp.cooling.n == 0 {
		return nil, nil
	}
	if len(req.Within) == 0 || len(fp.lengths) > 1 { // a lease may be of a block that overlaps
		return fp.firstUsable(&fp.cooling, req)
	}
	var found *lease
	var block *block
	for _, part := range req.Within {
		b := fp.blockAround(part)
		if b == nil {
			continue
		}
		if x, _ := fp.firstUsable(&b.cooling, req); x != nil && (found == nil || x.cooled < found.cooled) {
			found, block = x, b
		}
	}
	return found, block
}

func (fp *familyPool) firstUsable(l *list, req *Request) (*lease, *block) {
	for x := l.head; x != nil; x = x.cooling[l.by].next {
		b := fp.allocates(x)
		if b.state == Active && !b.pool.isReserved(b, x.addr) && req.allows(b, x.addr) {
			return x, b
		}
	}
	return nil, nil
}

// coolingIn returns the number of addresses of a part of b that cool.
func (b *block) coolingIn(part netip.Prefix) (n int) {
	if part.Bits() <= b.prefix.Bits() {
		return b.cooling.n
	}
	for x := b.cooling.head; x != nil; x = x.cooling[ofBlock].next {
		if part.Contains(x.addr) {
			n++
		}
	}
	return n
}
