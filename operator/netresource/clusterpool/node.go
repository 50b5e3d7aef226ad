// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package clusterpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/netresource"
)

// node is the provider's part for one node; the provider's lock guards it.
type node struct {
	provider *Provider
	name     string
	obj      *v1alpha1.NetResourceSet
	blocks   map[netip.Prefix]blocks.Owner // with an owner for each block
	held     map[netip.Prefix]blocks.Owner // announced for it, and kept from all nodes
	bad      string                        // the error of an invalid block in the newest version
	short    string                        // the error of a missing family
}

// node returns the node of a NetResourceSet that State was called for. The caller holds mu.
func (p *Provider) node(set *v1alpha1.NetResourceSet) (*node, error) {
	n := p.nodes[set.Name]
	if n == nil {
		return nil, fmt.Errorf("find node %s: its State comes first", set.Name)
	}
	n.update(set)
	return n, nil
}

// update keeps the newest version.
func (n *node) update(obj *v1alpha1.NetResourceSet) {
	if n.obj == obj {
		return
	}
	n.obj, n.bad = obj, ""
	last := "" // of several invalid blocks always the same one
	for key := range obj.Spec.IPAM.Pool {
		if _, err := handshake.ParseKey(key); err != nil && key >= last {
			last, n.bad = key, fmt.Sprintf(
				"spec.ipam.pool: block %q must be a CIDR like 10.1.4.0/28: it is removed",
				key,
			)
		}
	}
	for _, key := range obj.Spec.IPAM.PodCIDRs {
		if _, err := handshake.ParseKey(string(key)); err != nil {
			n.bad = fmt.Sprintf("spec.ipam.podCIDRs: block %q must be a CIDR like 10.1.4.0/28: it is not used", key)
		}
	}
}

// load records the blocks of the node in the newest version.
func (n *node) load() {
	for _, key := range slices.Sorted(maps.Keys(n.obj.Spec.IPAM.Pool)) {
		n.occupy(key)
	}
	for _, key := range n.obj.Spec.IPAM.PodCIDRs {
		n.occupy(string(key))
	}
}

// takeIntents records the blocks that an earlier operator has announced for the node.
func (n *node) takeIntents() {
	for _, key := range netresource.IntentOf(n.obj) {
		prefix, err := handshake.ParseKey(key)
		if _, has := n.blocks[prefix]; has || err != nil {
			continue
		}
		owner, into := blocks.NewOwner(n.name, n.name+" "+prefix.String()), n.blocks
		err = n.provider.sets[family(prefix)].Occupy(owner, prefix, n.provider.config.Now())
		if _, conflict := errors.AsType[*blocks.Conflict](err); conflict {
			into = n.held
		}
		into[prefix] = owner
	}
}

// claimUsed records the blocks without an owner of which the node uses an address. The pool
// may have lost them when a cluster was restored, and blocks of an earlier mode were never
// in it.
func (n *node) claimUsed() {
	lengths := n.lengths()
	for _, text := range slices.Sorted(maps.Keys(n.obj.Status.IPAM.Used)) {
		ip, err := netip.ParseAddr(text)
		if _, has := n.blockOf(ip, lengths); has || err != nil {
			continue
		}
		for prefix, r := range n.provider.ranges {
			if !prefix.Contains(ip) || r.drained {
				continue
			}
			block := netip.PrefixFrom(ip, r.bits).Masked()
			set, owner := n.provider.sets[family(block)], blocks.NewOwner(n.name, n.name+" "+block.String())
			if set.Occupy(owner, block, n.provider.config.Now()) == nil {
				n.blocks[block], lengths[r.bits] = owner, true
			} else {
				_ = set.Return(owner, block) // another node holds it
			}
		}
	}
}

// lengths returns the prefix lengths of the node's blocks. A node may have thousands of
// blocks, and use as many addresses, while all nodes wait: blockOf looks up a block by
// these lengths.
func (n *node) lengths() map[int]bool {
	lengths := map[int]bool{}
	for prefix := range n.blocks {
		lengths[prefix.Bits()] = true
	}
	return lengths
}

// blockOf returns the block of the node that contains an address.
func (n *node) blockOf(ip netip.Addr, lengths map[int]bool) (netip.Prefix, bool) {
	for bits := range lengths {
		prefix, err := ip.Prefix(bits) // fails if bits is longer than an address
		if _, ours := n.blocks[prefix]; ours && err == nil {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// occupy records a block of the node.
func (n *node) occupy(key string) {
	prefix, err := handshake.ParseKey(key)
	if _, has := n.blocks[prefix]; has || err != nil {
		return
	}
	owner := blocks.NewOwner(n.name, n.name+" "+prefix.String())
	n.blocks[prefix] = owner
	// Describe reports a conflict for as long as there is one.
	_ = n.provider.sets[family(prefix)].Occupy(owner, prefix, n.provider.config.Now())
}

// drop releases a block.
func (n *node) drop(prefix netip.Prefix) error {
	owner, ok := n.blocks[prefix]
	if !ok {
		return nil
	}
	if err := n.provider.sets[family(prefix)].ReleaseBlock(owner, prefix, n.provider.config.Now()); err != nil {
		return fmt.Errorf("release block %s of node %s: %w", prefix, n.name, err)
	}
	delete(n.blocks, prefix)
	return nil
}

// add allocates a block of a family.
func (n *node) add(family int) (netip.Prefix, error) {
	p := n.provider
	p.allocated++
	owner := blocks.NewOwner(n.name, fmt.Sprintf("%s #%d", n.name, p.allocated))
	cidrs, err := p.sets[family].Allocate(owner, nil, p.config.Now())
	if errors.Is(err, blocks.ErrNoRange) {
		return netip.Prefix{}, fmt.Errorf("%w: %w", ErrNoPool, err)
	}
	if err != nil {
		return netip.Prefix{}, err
	}
	p.sets[family].Confirm(owner)
	n.blocks[cidrs[0]] = owner
	return cidrs[0], nil
}

// Describe implements netresource.Provider.
func (p *Provider) Describe(_ context.Context, r *v1alpha1.NetResourceSet) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[r.Name]
	if n == nil {
		return nil
	}
	e := cmp.Or(n.bad, n.short)
	for _, prefix := range slices.SortedFunc(maps.Keys(n.blocks), netip.Prefix.Compare) {
		for _, c := range p.sets[family(prefix)].Conflicts(n.blocks[prefix]) {
			e = c.Error()
		}
	}
	if e != "" {
		r.Status.IPAM.OperatorStatus.Error = e
	}
	return nil
}

// poolOf returns the AddressPool of a block, "" for none.
func (p *Provider) poolOf(block netip.Prefix) string {
	for prefix, r := range p.ranges {
		if prefix.Overlaps(block) {
			return r.pool
		}
	}
	return ""
}

// State implements netresource.Provider. After the first Read only the manager changes the
// pool; another writer's changes of it have no effect.
func (p *Provider) State(_ context.Context, set *v1alpha1.NetResourceSet) (netresource.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[set.Name]
	if n == nil {
		n = &node{
			provider: p,
			name:     set.Name,
			blocks:   map[netip.Prefix]blocks.Owner{},
			held:     map[netip.Prefix]blocks.Owner{},
		}
		p.nodes[set.Name] = n
		n.update(set)
		if p.synced {
			n.load()
			n.claimUsed()
		}
	}
	n.update(set)
	n.complete()
	s := netresource.State{
		Available: make(v1alpha1.AllocationMap, len(n.blocks)),
		Least:     p.config.Pre,
		Prefixes:  true,
		Used:      n.usedAddresses(),
	}
	for prefix := range n.blocks {
		s.Available[handshake.Key(prefix)] = v1alpha1.AllocationIP{SubnetID: p.poolOf(prefix)}
	}
	return s, nil
}

// allocates reports whether there are ranges of a family from which blocks are allocated.
func (p *Provider) allocates(f int) bool {
	for prefix, r := range p.ranges {
		if family(prefix) == f && !r.drained {
			return true
		}
	}
	return false
}

// has reports whether the node has a block of a family.
func (n *node) has(f int) bool {
	for prefix := range n.blocks {
		if family(prefix) == f {
			return true
		}
	}
	return false
}

// main returns the family that watermarks count: IPv4 if there is any.
func (n *node) main() int {
	if n.provider.allocates(0) || n.has(0) {
		return 0
	}
	return 1
}

// complete allocates the first block of a family that the node lacks, whose pool may have
// come later.
func (n *node) complete() {
	n.short = ""
	if !n.provider.synced || len(n.blocks) == 0 {
		return
	}
	for f := range n.provider.sets {
		if !n.provider.allocates(f) || n.has(f) {
			continue
		}
		if _, err := n.add(f); err != nil {
			n.short = fmt.Sprintf("allocate a block of the missing family for node %s: %v", n.name, err)
		}
	}
}

// Allocate implements netresource.Provider. It allocates blocks with at least the wanted number
// of addresses, and the first block of the other family. A node without blocks gets the first
// block of each family, or none.
func (p *Provider) Allocate(
	ctx context.Context,
	set *v1alpha1.NetResourceSet,
	wanted int,
) (got netresource.Allocation, err error) {
	if err := ctx.Err(); err != nil {
		return got, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.node(set)
	switch {
	case err != nil:
		return got, err
	case !p.synced:
		return got, ErrNotSynced
	case len(p.ranges) == 0:
		return got, ErrNoPool
	}
	n.complete()
	main := n.main()
	if p.free(main, "") == 0 {
		return got, nil
	}
	got.Addresses, err = n.allocate(main, wanted)
	return got, err
}

// allocate allocates blocks of the main family with at least the wanted number of addresses.
func (n *node) allocate(main, wanted int) (addresses int, err error) {
	p := n.provider
	var taken []netip.Prefix
	undo := func(err error) error {
		for _, prefix := range taken {
			_ = p.sets[family(prefix)].Return(n.blocks[prefix], prefix) // it was never used
			delete(n.blocks, prefix)
		}
		return fmt.Errorf("allocate %d addresses for node %s: %w", wanted, n.name, err)
	}
	begins := len(n.blocks) == 0
	for f := range p.sets {
		if begins && f != main && p.allocates(f) {
			prefix, err := n.add(f)
			if err != nil {
				return 0, undo(err)
			}
			taken = append(taken, prefix)
		}
	}
	prefix, err := n.add(main)
	if err != nil {
		return 0, undo(err)
	}
	for addresses = size(prefix); addresses < wanted && err == nil; { // the next round asks for what is left
		if prefix, err = n.add(main); err == nil {
			addresses += size(prefix)
		}
	}
	return addresses, nil
}

func size(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), 20) }

// Spare implements netresource.Provider. It chooses unused blocks: those of draining CIDRs
// first, then the highest.
func (p *Provider) Spare(_ context.Context, set *v1alpha1.NetResourceSet, excess int) (keys []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.node(set)
	if err != nil {
		return nil, err
	}
	used, main := n.used(), n.main()
	blocks := slices.SortedFunc(maps.Keys(n.blocks), func(x, y netip.Prefix) int {
		if dx, dy := p.drains(x), p.drains(y); dx != dy {
			if dx {
				return -1
			}
			return 1
		}
		return y.Addr().Compare(x.Addr())
	})
	for _, prefix := range blocks {
		if used[prefix] || family(prefix) != main || size(prefix) > excess {
			continue
		}
		excess -= size(prefix)
		keys = append(keys, handshake.Key(prefix))
	}
	return keys, nil
}

// used returns the blocks of which an address is used.
func (n *node) used() map[netip.Prefix]bool {
	used, lengths := map[netip.Prefix]bool{}, n.lengths()
	for key := range n.obj.Status.IPAM.Used {
		if ip, err := netip.ParseAddr(key); err == nil {
			if prefix, ok := n.blockOf(ip, lengths); ok {
				used[prefix] = true
			}
		}
	}
	return used
}

// drains reports whether no block is allocated any more from the range of a block.
func (p *Provider) drains(block netip.Prefix) bool {
	for prefix, r := range p.ranges {
		if prefix.Overlaps(block) {
			return r.drained
		}
	}
	return true
}

// Release implements netresource.Provider.
func (p *Provider) Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *netresource.ReleaseAction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := p.node(set)
	if err != nil {
		return err
	}
	var failed []error
	for _, key := range a.IPsToRelease {
		prefix, err := handshake.ParseKey(key)
		if err != nil {
			failed = append(failed, fmt.Errorf("release %q of node %s: it %w", key, n.name, err))
			continue
		}
		failed = append(failed, n.drop(prefix))
	}
	return errors.Join(failed...)
}

// usedAddresses counts the addresses of used blocks, of the family that watermarks count.
func (n *node) usedAddresses() (count int) {
	main := n.main()
	for prefix := range n.used() {
		if family(prefix) == main {
			count = min(count+size(prefix), math.MaxInt32)
		}
	}
	return count
}
