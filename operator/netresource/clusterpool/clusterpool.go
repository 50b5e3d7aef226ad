// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterpool implements netresource's provider for clusters without a cloud. It
// allocates blocks of AddressPools for nodes, as many as their watermarks want. A block is
// a key of the node's pool, a CIDR of the size that its AddressPool states.
//
// The NetResourceSets are authoritative. A block in a node's pool when the node is first
// seen belongs to the node, whether or not an AddressPool contains it. So does a block without
// an owner of which the node reports an address in use. Nothing is allocated before the first
// call of Read, which must come after all NetResourceSets were seen: an operator that starts
// would otherwise allocate the block of another node. Until then the newest version of each
// object counts; after that, only what this provider allocates and releases. A block that an
// earlier operator has announced for a node (IntentAnnotation) is the node's, too. If the block
// is not free, the node does not get it, but this operator keeps it from all others: the write
// that was announced may still arrive. Cool-downs are not stored: for an operator that starts,
// a cooling block is free. A block of two nodes stays with both, and the status of the later
// node reports it; no third node gets it.
//
// If there are pools of both families, a node begins with a block of each, or with none.
// Further blocks are of IPv4, which watermarks count. A node that has blocks of one family
// gets the first of the other as soon as there is one. Until then its status reports that,
// and it gets more of the family that it has.
//
// A CIDR that is removed from its AddressPool provides no more blocks; nodes keep theirs.
// A CIDR that overlaps another is tried again with every Read. A released block, also
// of a deleted node, cools before it is allocated again. Every method may be called from
// any goroutine.
package clusterpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/netresource"
)

var (
	// ErrNoPool is returned if no AddressPool has a CIDR.
	ErrNoPool = errors.New("clusterpool: no AddressPool has a CIDR: create one")
	// ErrNotSynced is returned before the first Read.
	ErrNotSynced = errors.New("clusterpool: not all NetResourceSets are known yet")
)

// Config holds the settings of a Provider.
type Config struct {
	CoolDown time.Duration    // how long a released block stays unused
	Pre      int              // addresses that a node keeps free by default; 0: 8
	Now      func() time.Time // nil: the clock
}

// Provider allocates blocks of AddressPools. Use New.
type Provider struct {
	config Config

	mu        sync.Mutex
	synced    bool
	sets      [2]*blocks.Set // IPv4, IPv6
	pools     map[string]*v1alpha1.AddressPool
	ranges    map[netip.Prefix]*poolRange
	nodes     map[string]*node
	allocated uint64 // blocks so far
	errs      map[string]error
}

// poolRange holds a CIDR of an AddressPool.
type poolRange struct {
	pool    string
	bits    int
	drained bool
}

var _ netresource.Provider = (*Provider)(nil)

// New returns a provider without pools.
func New(c Config) *Provider {
	c.Pre = cmp.Or(c.Pre, 8)
	if c.Now == nil {
		c.Now = time.Now
	}
	policy := blocks.Policy{CoolDown: c.CoolDown}
	return &Provider{
		config: c,
		sets:   [2]*blocks.Set{blocks.New(policy), blocks.New(policy)},
		pools:  map[string]*v1alpha1.AddressPool{},
		ranges: map[netip.Prefix]*poolRange{},
		nodes:  map[string]*node{},
		errs:   map[string]error{},
	}
}

// family returns the index of the set for p.
func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// SetPool adds a pool, or changes it. The error names CIDRs that are not valid or overlap
// another; the rest is used.
func (p *Provider) SetPool(pool *v1alpha1.AddressPool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools[pool.Name] = pool.DeepCopy()
	return p.use(pool)
}

// use applies a pool to the ranges.
func (p *Provider) use(pool *v1alpha1.AddressPool) error {
	named := map[netip.Prefix]bool{}
	for _, c := range pool.Spec.CIDRs {
		if prefix, err := netip.ParsePrefix(c.CIDR); err == nil {
			named[prefix] = true
		}
	}
	p.drain(pool.Name, named) // a removed CIDR may overlap a new one
	var failed []error
	wanted := map[netip.Prefix]bool{}
	for _, c := range pool.Spec.CIDRs {
		prefix, err := p.setRange(pool.Name, c)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		wanted[prefix] = true
	}
	p.drain(pool.Name, wanted)
	p.errs[pool.Name] = errors.Join(failed...)
	if err := p.errs[pool.Name]; err != nil {
		return fmt.Errorf("use AddressPool %s: %w", pool.Name, err)
	}
	return nil
}

func (p *Provider) setRange(pool string, c v1alpha1.AddressPoolCIDR) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(c.CIDR)
	if err != nil || prefix != prefix.Masked() ||
		c.BlockPrefixLen < prefix.Bits() || c.BlockPrefixLen > prefix.Addr().BitLen() {
		return prefix, fmt.Errorf(
			"spec.cidrs: %q with blocks of /%d must be like 10.1.0.0/16 with blocks of /28",
			c.CIDR,
			c.BlockPrefixLen,
		)
	}
	set := p.sets[family(prefix)]
	r := p.ranges[prefix]
	switch {
	case r == nil:
		if err := set.AddRange(blocks.Range{Prefix: prefix, Bits: c.BlockPrefixLen}); err != nil {
			return prefix, fmt.Errorf("spec.cidrs: %s: %w", prefix, err)
		}
		p.ranges[prefix] = &poolRange{pool: pool, bits: c.BlockPrefixLen}
		return prefix, nil
	case r.pool != pool && !r.drained:
		return prefix, fmt.Errorf(
			"spec.cidrs: %s is in AddressPool %s already: a CIDR must be in one only",
			prefix,
			r.pool,
		)
	}
	if r.drained {
		if err := set.ResumeRange(prefix); err != nil {
			return prefix, fmt.Errorf("spec.cidrs: %s: %w", prefix, err)
		}
	}
	if r.bits != c.BlockPrefixLen {
		if err := set.Resize(prefix, c.BlockPrefixLen); err != nil {
			return prefix, fmt.Errorf(
				"spec.cidrs: %s: blocks of /%d instead of /%d: %w",
				prefix,
				c.BlockPrefixLen,
				r.bits,
				err,
			)
		}
	}
	*r = poolRange{pool: pool, bits: c.BlockPrefixLen}
	return prefix, nil
}

// drain stops allocation from the ranges of a pool that are not wanted.
func (p *Provider) drain(pool string, wanted map[netip.Prefix]bool) {
	for prefix, r := range p.ranges {
		if r.pool != pool || wanted[prefix] {
			continue
		}
		set := p.sets[family(prefix)]
		if !r.drained && set.DrainRange(prefix) == nil {
			r.drained = true
		}
		if set.RemoveRange(prefix) == nil {
			delete(p.ranges, prefix)
		}
	}
}

// RemovePool removes a deleted pool.
func (p *Provider) RemovePool(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(name, nil)
	delete(p.pools, name)
	delete(p.errs, name)
}

// Status returns the status of a pool.
func (p *Provider) Status(name string) v1alpha1.AddressPoolStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := v1alpha1.AddressPoolStatus{}
	if err := p.errs[name]; err != nil {
		s.Error = err.Error()
	}
	counted := 1
	for prefix, r := range p.ranges {
		if r.pool == name && family(prefix) == 0 {
			counted = 0
		}
	}
	s.Free = p.free(counted, name)
	return s
}

// free returns the number of free addresses of a family, in the pool of that name, or in
// all pools for "".
func (p *Provider) free(family int, pool string) (n int64) {
	const most = int64(1) << 40
	for _, r := range p.sets[family].Stat(p.config.Now()).Ranges {
		if c := p.ranges[r.Prefix]; r.Draining || c == nil || pool != "" && c.pool != pool {
			continue
		}
		blocks, size := int64(min(r.Free(), uint64(most))), int64(1)<<min(r.Prefix.Addr().BitLen()-r.Bits, 40)
		if blocks > 0 && size > most/blocks {
			return most
		}
		n = min(n+blocks*size, most)
	}
	return n
}

// Traits implements netresource.Provider.
func (p *Provider) Traits() netresource.Traits { return netresource.Traits{ReadsIntents: true} }

// Quotas implements netresource.Provider.
func (p *Provider) Quotas(context.Context) (v1alpha1.PoolQuotaMap, error) {
	p.mu.Lock()
	names := map[string]bool{}
	for _, r := range p.ranges {
		names[r.pool] = true
	}
	p.mu.Unlock()
	quotas := v1alpha1.PoolQuotaMap{}
	for name := range names {
		quotas[v1alpha1.PoolID(name)] = v1alpha1.PoolQuota{AvailableIPs: int(p.Status(name).Free)}
	}
	return quotas, nil
}

// Read implements netresource.Provider. It reads nothing: from the first call on the provider
// itself is authoritative.
func (p *Provider) Read(ctx context.Context) (time.Time, error) {
	if err := ctx.Err(); err != nil {
		return time.Time{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		p.synced = true
		for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
			p.nodes[name].load()
		}
		for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
			p.nodes[name].takeIntents() // once all pools are known
		}
		for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
			p.nodes[name].claimUsed() // once all pools are known
		}
	}
	for prefix, r := range p.ranges {
		if r.drained && p.sets[family(prefix)].RemoveRange(prefix) == nil {
			delete(p.ranges, prefix)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.errs)) {
		if p.errs[name] != nil {
			_ = p.use(p.pools[name]) // Status reports the error
		}
	}
	return p.config.Now(), nil
}

// Forget implements netresource.Provider.
func (p *Provider) Forget(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[name]
	if n == nil {
		return nil
	}
	for prefix := range n.blocks {
		_ = n.drop(prefix) // the node holds it, so this cannot fail
	}
	for prefix, owner := range n.held {
		_ = p.sets[family(prefix)].Return(owner, prefix) // likewise
	}
	delete(p.nodes, name)
	return nil
}
