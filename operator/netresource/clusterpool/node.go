// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package clusterpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/netresource"
)

// node implements the provider for one node; the provider's lock guards it.
type node struct {
	provider *Provider
	name     string
	obj      *v1alpha1.NetResourceSet
	blocks   map[netip.Prefix]blocks.Owner // with an owner for each block
	held     map[netip.Prefix]blocks.Owner // announced for it, and kept from all nodes
	bad      string                        // the error of an invalid block in the newest version
	short    string                        // the error of a missing family
	gone     bool                          // the NetResourceSet was deleted
}

var _ netresource.NetResourceOperations = (*node)(nil)

// update keeps the newest version.
func (n *node) update(obj *v1alpha1.NetResourceSet) {
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
	// PopulateStatusFields reports a conflict for as long as there is one.
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

// UpdatedNode implements netresource.NetResourceOperations. After the first Resync only the
// manager changes the pool; another writer's changes of it have no effect.
func (n *node) UpdatedNode(obj *v1alpha1.NetResourceSet) {
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	n.update(obj)
}

// PopulateStatusFields implements netresource.NetResourceOperations.
func (n *node) PopulateStatusFields(r *v1alpha1.NetResourceSet) {
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	e := cmp.Or(n.bad, n.short)
	for _, prefix := range slices.SortedFunc(maps.Keys(n.blocks), netip.Prefix.Compare) {
		for _, c := range n.provider.sets[family(prefix)].Conflicts(n.blocks[prefix]) {
			e = c.Error()
		}
	}
	if e != "" {
		r.Status.IPAM.OperatorStatus.Error = e
	}
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

// ResyncInterfacesAndIPs implements netresource.NetResourceOperations.
func (n *node) ResyncInterfacesAndIPs(context.Context, *slog.Logger) (v1alpha1.AllocationMap, error) {
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	n.complete()
	all := make(v1alpha1.AllocationMap, len(n.blocks))
	for prefix := range n.blocks {
		all[handshake.Key(prefix)] = v1alpha1.AllocationIP{SubnetID: n.provider.poolOf(prefix)}
	}
	return all, nil
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
	if !n.provider.synced || n.gone || len(n.blocks) == 0 {
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

// PrepareIPAllocation implements netresource.NetResourceOperations.
func (n *node) PrepareIPAllocation(*slog.Logger) (*netresource.AllocationAction, error) {
	p := n.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.synced:
		return nil, ErrNotSynced
	case len(p.ranges) == 0:
		return nil, ErrNoPool
	}
	a := &netresource.AllocationAction{
		AvailableForAllocationIPv4: int(p.free(0, "")),
		AvailableForAllocationIPv6: int(p.free(1, "")),
	}
	if n.main() == 0 && a.AvailableForAllocationIPv4 == 0 {
		a.AvailableForAllocationIPv6 = 0
	}
	return a, nil
}

// AllocateIPs implements netresource.NetResourceOperations. It allocates blocks with at
// least the wanted number of addresses, and the first block of the other family. A node
// without blocks gets the first block of each family, or none.
func (n *node) AllocateIPs(ctx context.Context, a *netresource.AllocationAction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p := n.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.synced:
		return ErrNotSynced
	case n.gone:
		return fmt.Errorf("allocate addresses for node %s: its NetResourceSet is gone", n.name)
	}
	var taken []netip.Prefix
	undo := func(err error) error {
		for _, prefix := range taken {
			_ = p.sets[family(prefix)].Return(n.blocks[prefix], prefix) // it was never used
			delete(n.blocks, prefix)
		}
		return fmt.Errorf("allocate %d addresses for node %s: %w", a.MaxIPsToAllocate, n.name, err)
	}
	n.complete()
	main, begins := n.main(), len(n.blocks) == 0
	for f := range p.sets {
		if begins && f != main && p.allocates(f) {
			prefix, err := n.add(f)
			if err != nil {
				return undo(err)
			}
			taken = append(taken, prefix)
		}
	}
	for left, first := a.MaxIPsToAllocate, true; left > 0; first = false {
		prefix, err := n.add(main)
		if err != nil && first {
			return undo(err)
		}
		if err != nil {
			return nil // the next round asks for the rest
		}
		taken = append(taken, prefix)
		left -= size(prefix)
	}
	return nil
}

func size(p netip.Prefix) int { return 1 << min(p.Addr().BitLen()-p.Bits(), 20) }

// PrepareIPRelease implements netresource.NetResourceOperations. It chooses unused blocks:
// those of draining CIDRs first, then the highest.
func (n *node) PrepareIPRelease(excess int, _ *slog.Logger) *netresource.ReleaseAction {
	p := n.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	used, main := n.used(), n.main()
	a := &netresource.ReleaseAction{}
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
		a.IPsToRelease = append(a.IPsToRelease, handshake.Key(prefix))
	}
	return a
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

// ReleaseIPs implements netresource.NetResourceOperations.
func (n *node) ReleaseIPs(ctx context.Context, a *netresource.ReleaseAction) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
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

// CreateInterface implements netresource.NetResourceOperations. There are no interfaces.
func (n *node) CreateInterface(context.Context, *netresource.AllocationAction, *slog.Logger) (int, string, error) {
	return 0, "no interfaces", errors.New("make an interface: AddressPools have none")
}

// GetMaximumAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMaximumAllocatableIPv4() int { return 0 }

// GetMinimumAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMinimumAllocatableIPv4() int { return n.provider.config.Pre }

// IsPrefixDelegated implements netresource.NetResourceOperations.
func (n *node) IsPrefixDelegated() bool { return true }

// GetUsedIPWithPrefixes implements netresource.NetResourceOperations. It counts the
// family that watermarks count.
func (n *node) GetUsedIPWithPrefixes() int {
	n.provider.mu.Lock()
	defer n.provider.mu.Unlock()
	count, main := 0, n.main()
	for prefix := range n.used() {
		if family(prefix) != main {
			continue
		}
		count = min(count+size(prefix), math.MaxInt32)
	}
	return count
}

// GetMaximumBurstableAllocatableIPv4 implements netresource.NetResourceOperations.
func (n *node) GetMaximumBurstableAllocatableIPv4() int { return 0 }
