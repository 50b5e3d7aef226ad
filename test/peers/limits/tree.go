// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package limits is what the machine allows an allocator: the cheapest
// structure that finds a free item, the same behind a lock, and the same with
// an owner for each item. None of it is an IPAM; all of it is a yardstick.
package limits

import (
	"errors"
	"math/bits"
	"sync"
)

// ErrFull is returned where nothing is free.
var ErrFull = errors.New("full")

// Tree is a bitmap of at most 64^3 items with two levels of summary above it.
// A set bit is a free item, or a word below that has one. It finds a free item
// with three counts of trailing zeros, however full it is.
type Tree struct {
	top  uint64
	mid  [64]uint64
	leaf []uint64
}

// NewTree makes a Tree of n free items.
func NewTree(n int) *Tree {
	t := &Tree{leaf: make([]uint64, (n+63)/64)}
	for i := range n {
		t.Put(i)
	}
	return t
}

// Get takes the lowest free item.
func (t *Tree) Get() (int, bool) {
	if t.top == 0 {
		return 0, false
	}
	i := bits.TrailingZeros64(t.top)
	j := i<<6 | bits.TrailingZeros64(t.mid[i])
	k := j<<6 | bits.TrailingZeros64(t.leaf[j])
	t.clear(k)
	return k, true
}

// From takes the first free item at or above k or, where there is none, the lowest.
func (t *Tree) From(k int) (int, bool) {
	if j := k >> 6; j < len(t.leaf) {
		if w := t.leaf[j] >> (k & 63) << (k & 63); w != 0 {
			k = j<<6 | bits.TrailingZeros64(w)
			t.clear(k)
			return k, true
		}
		i := j >> 6
		if w := t.mid[i] & (^uint64(1) << (j & 63)); w != 0 {
			return t.lowest(i<<6 | bits.TrailingZeros64(w)), true
		}
		if w := t.top & (^uint64(1) << i); w != 0 {
			i = bits.TrailingZeros64(w)
			return t.lowest(i<<6 | bits.TrailingZeros64(t.mid[i])), true
		}
	}
	return t.Get()
}

// lowest takes the lowest free item of leaf word j, which has one.
func (t *Tree) lowest(j int) int {
	k := j<<6 | bits.TrailingZeros64(t.leaf[j])
	t.clear(k)
	return k
}

// Take takes item k and tells whether it was free.
func (t *Tree) Take(k int) bool {
	if t.leaf[k>>6]&(1<<(k&63)) == 0 {
		return false
	}
	t.clear(k)
	return true
}

func (t *Tree) clear(k int) {
	j, i := k>>6, k>>12
	t.leaf[j] &^= 1 << (k & 63)
	if t.leaf[j] == 0 {
		t.mid[i] &^= 1 << (j & 63)
		if t.mid[i] == 0 {
			t.top &^= 1 << i
		}
	}
}

// Put gives item k back.
func (t *Tree) Put(k int) {
	j, i := k>>6, k>>12
	t.leaf[j] |= 1 << (k & 63)
	t.mid[i] |= 1 << (j & 63)
	t.top |= 1 << i
}

// Locked is a Tree behind a mutex.
type Locked struct {
	mu   sync.Mutex
	tree *Tree
	at   int // where Next goes on
}

// Get takes the lowest free item.
func (l *Locked) Get() (int, error) {
	l.mu.Lock()
	k, ok := l.tree.Get()
	l.mu.Unlock()
	if !ok {
		return 0, ErrFull
	}
	return k, nil
}

// Next takes the first free item after the last one that it took.
func (l *Locked) Next() (int, error) {
	l.mu.Lock()
	k, ok := l.tree.From(l.at)
	l.at = k + 1
	l.mu.Unlock()
	if !ok {
		return 0, ErrFull
	}
	return k, nil
}

// Take takes item k.
func (l *Locked) Take(k int) error {
	l.mu.Lock()
	ok := l.tree.Take(k)
	l.mu.Unlock()
	if !ok {
		return ErrFull
	}
	return nil
}

// Put gives item k back.
func (l *Locked) Put(k int) error {
	l.mu.Lock()
	l.tree.Put(k)
	l.mu.Unlock()
	return nil
}
