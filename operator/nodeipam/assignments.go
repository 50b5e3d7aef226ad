// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// errTwin is wrapped by the error of a node whose UID another node has, too.
var errTwin = errors.New("two nodes have one UID")

// assignments holds the Set with its lock, and the owners by name. It makes no call to
// another component while locked.
type assignments struct {
	now func() time.Time

	mu    sync.Mutex
	set   *blocks.Set
	names map[string][]blocks.Owner // owners of blocks, by name
	uids  map[string][]blocks.Owner // the same, by UID
}

func newAssignments(set *blocks.Set, now func() time.Time) *assignments {
	return &assignments{now: now, set: set, names: map[string][]blocks.Owner{}, uids: map[string][]blocks.Owner{}}
}

// note updates names and uids after the blocks of o changed.
func (b *assignments) note(o blocks.Owner) {
	blocks, _ := b.set.Blocks(o)
	noteIn(b.names, o.Name, o, len(blocks) > 0)
	if o.UID != "" {
		noteIn(b.uids, o.UID, o, len(blocks) > 0)
	}
}

// noteIn keeps o under a key if it has blocks, and removes it otherwise.
func noteIn(index map[string][]blocks.Owner, key string, o blocks.Owner, has bool) {
	owners := index[key]
	i := slices.Index(owners, o)
	switch {
	case has && i < 0:
		index[key] = append(owners, o)
	case !has && i >= 0 && len(owners) == 1:
		delete(index, key)
	case !has && i >= 0:
		index[key] = slices.Delete(owners, i, i+1)
	}
}

// twin returns an error if another owner of blocks has the UID of o.
func (b *assignments) twin(o blocks.Owner) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, other := range b.uids[o.UID] {
		if other != o {
			return fmt.Errorf("%w: node %q has the UID %q of node %q, which has podCIDRs: want a UID of its own",
				errTwin, o.Name, o.UID, other.Name)
		}
	}
	return nil
}

// owners returns the owners of blocks under a name.
func (b *assignments) owners(name string) []blocks.Owner {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names[name])
}

// all returns all owners of blocks.
func (b *assignments) all() []blocks.Owner {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []blocks.Owner
	for _, owners := range b.names {
		all = append(all, owners...)
	}
	slices.SortFunc(all, func(o, p blocks.Owner) int { return cmp.Compare(o.Name, p.Name) })
	return all
}

// blocks returns the blocks of o. They are pending if o may not know them yet.
func (b *assignments) blocks(o blocks.Owner) (blocks []netip.Prefix, pending bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Blocks(o)
}

// allocate gives o a block of every pool, unless it has one.
func (b *assignments) allocate(o blocks.Owner, c blocks.Choice) ([]netip.Prefix, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	return b.set.Choose(o, c, b.now())
}

// occupy records the blocks that o is known to have. It returns an error for each, or nil.
func (b *assignments) occupy(o blocks.Owner, blocks []netip.Prefix) (errs []error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.note(o)
	for _, p := range blocks {
		errs = append(errs, b.set.Occupy(o, p, b.now()))
	}
	return errs
}

// claim takes all blocks for o, or none if one is not free or outside of all ranges.
func (b *assignments) claim(o blocks.Owner, blocks []netip.Prefix) error {
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
func (b *assignments) check(all []netip.Prefix, fits func(blocks.Range, int) bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.CheckBlocks(all, fits)
}

// checkFree returns an error if another owner has a part of one of the blocks, or if
// it is reserved.
func (b *assignments) checkFree(o blocks.Owner, blocks []netip.Prefix) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.CheckFree(o, blocks)
}

// keepOnly releases all blocks of o except keep. Offered blocks are free at once, since o
// never gets them; blocks that o had before a cluster was restored cool.
func (b *assignments) keepOnly(o blocks.Owner, keep []netip.Prefix) (freed bool) {
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

// release frees the blocks of o, whose Node object is gone. It returns them, and the owners
// that shared some of them.
func (b *assignments) release(o blocks.Owner) (blocks []netip.Prefix, shared []*blocks.Conflict) {
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

func (b *assignments) conflicts(o blocks.Owner) []*blocks.Conflict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Conflicts(o)
}

// change changes the ranges.
func (b *assignments) change(f func(*blocks.Set) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return f(b.set)
}

func (b *assignments) stat() blocks.Stat {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.set.Stat(b.now())
}

// pools returns the first range of each pool.
func (b *assignments) pools() []netip.Prefix {
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

// continueAfter makes the order of the blocks go on behind those of the newest of nodes.
// Blocks that cooled under an earlier leader are then the last to be allocated again.
func (b *assignments) continueAfter(nodes []v1.Node) {
	newest := -1
	for i := range nodes {
		if hasPodCIDRs(&nodes[i]) &&
			(newest < 0 || nodes[newest].CreationTimestamp.Before(&nodes[i].CreationTimestamp)) {
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
