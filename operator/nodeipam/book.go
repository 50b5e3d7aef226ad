// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// book is the Set behind its lock, with the names of the owners. It calls
// nobody while locked.
type book struct {
	now func() time.Time

	mu    sync.Mutex
	set   *blocks.Set
	names map[string][]blocks.Owner // who has blocks, by name
}

func newBook(set *blocks.Set, now func() time.Time) *book {
	return &book{now: now, set: set, names: map[string][]blocks.Owner{}}
}

// note keeps names true after the blocks of o changed.
func (b *book) note(o blocks.Owner) {
	blocks, _ := b.set.Blocks(o)
	owners := b.names[o.Name]
	i := slices.Index(owners, o)
	switch {
	case len(blocks) > 0 && i < 0:
		b.names[o.Name] = append(owners, o)
	case len(blocks) == 0 && i >= 0 && len(owners) == 1:
		delete(b.names, o.Name)
	case len(blocks) == 0 && i >= 0:
		b.names[o.Name] = slices.Delete(owners, i, i+1)
	}
}

// owners are all who have blocks under a name.
func (b *book) owners(name string) []blocks.Owner {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names[name])
}

// all are all who have blocks.
func (b *book) all() []blocks.Owner {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []blocks.Owner
	for _, owners := range b.names {
		all = append(all, owners...)
	}
	slices.SortFunc(all, func(o, p blocks.Owner) int { return cmp.Compare(o.Name, p.Name) })
	return all
}

// blocks are those of o; pending is true where o may not know it.
func (b *book) blocks(o blocks.Owner) (blocks []netip.Prefix, pending bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Blocks(o)
}

// allocate gives o a block of every pool, or those that it has.
func (b *book) allocate(o blocks.Owner, c blocks.Choice) ([]netip.Prefix, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	return b.set.Choose(o, c, b.now())
}

// occupy records what o is known to have. errs says, for each, what is wrong.
func (b *book) occupy(o blocks.Owner, blocks []netip.Prefix) (errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	for _, p := range blocks {
		errs = append(errs, b.set.Occupy(o, p, b.now()))
	}
	return errs
}

// claim takes all blocks for o, or none where one is not free or of no range.
func (b *book) claim(o blocks.Owner, blocks []netip.Prefix) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	for i, p := range blocks {
		if err := b.set.Occupy(o, p, b.now()); err != nil {
			for _, q := range blocks[:i+1] {
				err = errors.Join(err, b.set.Return(o, q.Masked()))
			}
			return err
		}
	}
	return nil
}

// check returns an error unless all are exactly one block of a pool each.
func (b *book) check(all []netip.Prefix, fits func(blocks.Range, int) bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.CheckBlocks(all, fits)
}

// checkFree returns an error if another owner has a part of one of the blocks, or if
// it is reserved.
func (b *book) checkFree(o blocks.Owner, blocks []netip.Prefix) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.CheckFree(o, blocks)
}

// takeBack takes from o all but keep. Of what was only offered it is known never
// to get the rest; what it had, before a cluster was restored, cools.
func (b *book) takeBack(o blocks.Owner, keep []netip.Prefix) (freed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	blocks, offered := b.set.Blocks(o)
	for _, p := range blocks {
		switch {
		case slices.Contains(keep, p):
		case offered:
			freed = b.set.Return(o, p) == nil || freed
		default:
			freed = b.set.ReleaseBlock(o, p, b.now()) == nil || freed
		}
	}
	return freed
}

// release frees what o has, which is gone. It says what that was, and who had
// shared some of it.
func (b *book) release(o blocks.Owner) (blocks []netip.Prefix, shared []*blocks.Conflict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	blocks, _ = b.set.Blocks(o)
	shared = b.set.Conflicts(o)
	if len(blocks) > 0 && b.set.Release(o, b.now()) != nil {
		return nil, nil
	}
	return blocks, shared
}

func (b *book) conflicts(o blocks.Owner) []*blocks.Conflict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Conflicts(o)
}

// change changes the ranges.
func (b *book) change(f func(*blocks.Set) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f(b.set)
}

func (b *book) stat() blocks.Stat {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Stat(b.now())
}

// pools are the first range of each pool.
func (b *book) pools() []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()
	var pools []netip.Prefix
	for _, r := range b.set.Ranges() {
		for len(pools) <= r.Pool {
			pools = append(pools, netip.Prefix{})
		}
		if !pools[r.Pool].IsValid() {
			pools[r.Pool] = r.Prefix
		}
	}
	return pools
}

// goOn makes the order of the blocks go on behind those of the newest node, as
// far as that can be seen: blocks that cooled under an earlier leader are then
// the last to be given again.
func (b *book) goOn(nodes []v1.Node) {
	newest := -1
	for i := range nodes {
		if numbered(&nodes[i]) && (newest < 0 || nodes[newest].CreationTimestamp.Before(&nodes[i].CreationTimestamp)) {
			newest = i
		}
	}
	if newest < 0 {
		return
	}
	blocks, _ := podCIDRsOf(&nodes[newest])
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range blocks {
		b.set.Continue(p)
	}
}
