// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package limits

import "sync"

// Owned is the least that also knows whose an item is: a Tree behind a mutex, a
// map from owner to item and a slice from item to owner. An owner is 8 bytes,
// where a real one is a few names.
type Owned struct {
	mu    sync.Mutex
	tree  *Tree
	item  map[uint64]uint32
	owner []uint64
	last  uint64
}

// NewOwned makes an Owned of n free items.
func NewOwned(n int) *Owned {
	return &Owned{tree: NewTree(n), item: map[uint64]uint32{}, owner: make([]uint64, n)}
}

// Claim takes the lowest free item for a new owner.
func (o *Owned) Claim() (owner uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	k, ok := o.tree.Get()
	if !ok {
		return 0, ErrFull
	}
	o.last++
	o.item[o.last], o.owner[k] = uint32(k), o.last
	return o.last, nil
}

// Release gives back what an owner has.
func (o *Owned) Release(owner uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.item[owner]
	delete(o.item, owner)
	o.owner[k] = 0
	o.tree.Put(int(k))
	return nil
}
