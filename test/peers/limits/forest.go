// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package limits

import (
	"math/bits"
	"sync"
)

// treeSize is how many items a Tree of a Forest has: all that fit.
const treeSize = 64 * 64 * 64

// Forest is up to 64 Trees behind a mutex, with a word that says which of them
// have a free item: the limit for more items than one Tree has.
type Forest struct {
	mu    sync.Mutex
	free  uint64
	trees []*Tree
	at    int // where Next goes on
}

// NewForest makes a Forest of n free items, a multiple of 64^3.
func NewForest(n int) *Forest {
	f := &Forest{}
	for i := range n / treeSize {
		f.trees, f.free = append(f.trees, NewTree(treeSize)), f.free|1<<i
	}
	return f
}

// Get takes the lowest free item.
func (f *Forest) Get() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.from(0)
}

// Next takes the first free item after the last one that it took.
func (f *Forest) Next() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, err := f.from(f.at)
	f.at = k + 1
	return k, err
}

func (f *Forest) from(at int) (int, error) {
	if f.free == 0 {
		return 0, ErrFull
	}
	i := at / treeSize
	w := f.free >> i << i
	if w == 0 {
		w = f.free
	}
	first := bits.TrailingZeros64(w)
	if first != i {
		at = 0
	}
	// In its own Tree the search begins at the lowest item again where there is
	// nothing above: that is not next fit to the letter, but costs the same.
	k, ok := f.trees[first].From(at % treeSize)
	if !ok {
		return 0, ErrFull
	}
	if f.trees[first].top == 0 {
		f.free &^= 1 << first
	}
	return first*treeSize + k, nil
}

// Put gives item k back.
func (f *Forest) Put(k int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trees[k/treeSize].Put(k % treeSize)
	f.free |= 1 << (k / treeSize)
	return nil
}
