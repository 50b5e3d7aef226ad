// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package clusterpool is the provider of clusters without a cloud: it cuts blocks
// from AddressPools and gives them to nodes, as many as their watermarks want. A
// block is a key of the node's pool, a CIDR, and has the size that its
// AddressPool says.
//
// The book is the NetResourceSets: what stands in a node's pool when the node is
// first seen is the node's, whether or not an AddressPool has it; so is a block that
// nobody has and of which the node reports an address in use. Nothing is
// given before Resync is called for the first time, which must be when all
// NetResourceSets that there are have been seen: an operator that starts would
// otherwise give away what another node has. Until then the newest version of
// each counts; after that, only what is given and released here. That a block
// cools is not written down: to an operator that starts it is free. What two nodes claim is left to
// both, and told in the status of the later one; nobody else gets it.
//
// Where there are pools of both families a node begins with a block of each, or
// with none at all; more blocks are then of IPv4, which is what is counted. A node
// that has blocks of one family gets the first of the other as soon as there is
// one; until then its status tells, and it gets more of what it has.
//
// A CIDR that is taken from its AddressPool gives no more blocks; nodes keep what
// they have. One that cannot be used because another is in the way is tried again
// with every Resync. A block that comes back, also from a node that is gone, cools
// before it is given again. Every method may be called from any goroutine.
//
// Example:
//
//	p := clusterpool.New(clusterpool.Config{CoolDown: time.Minute})
//	err := p.SetPool(&v1alpha1.AddressPool{...}) // for each, and whenever one changes
//	m, err := netresource.New(netresource.Config{Instances: p, ...})
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
	// ErrNoPool is returned where no AddressPool has a CIDR.
	ErrNoPool = errors.New("clusterpool: no AddressPool has a CIDR to give blocks of: make one")
	// ErrNotSynced is returned before the first Resync.
	ErrNotSynced = errors.New("clusterpool: not all NetResourceSets are known yet")
)

// Config is what a provider works with.
type Config struct {
	CoolDown time.Duration    // how long a block rests that came back
	Pre      int              // addresses that nodes want free if they do not say; 0: 8
	Now      func() time.Time // nil: the clock
}

// Provider is the provider. Use New.
type Provider struct {
	config Config

	mu     sync.Mutex
	synced bool
	sets   [2]*blocks.Set // IPv4, IPv6
	pools  map[string]*v1alpha1.AddressPool
	ranges map[netip.Prefix]*cut
	nodes  map[string]*node
	given  uint64 // blocks, ever
	errs   map[string]error
}

// cut is a CIDR of an AddressPool.
type cut struct {
	pool    string
	bits    int
	drained bool
}

var (
	_ netresource.AllocationImplementation = (*Provider)(nil)
	_ netresource.Forgetter                = (*Provider)(nil)
)

// New makes a provider without pools.
func New(c Config) *Provider {
	c.Pre = cmp.Or(c.Pre, 8)
	if c.Now == nil {
		c.Now = time.Now
	}
	policy := blocks.Policy{CoolDown: c.CoolDown}
	return &Provider{
		config: c, sets: [2]*blocks.Set{blocks.New(policy), blocks.New(policy)}, pools: map[string]*v1alpha1.AddressPool{},
		ranges: map[netip.Prefix]*cut{}, nodes: map[string]*node{}, errs: map[string]error{},
	}
}

// family is which of the sets has p.
func family(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// SetPool adds a pool, or changes it. CIDRs that make no sense, or overlap others,
// are left out and told of; the rest is used.
func (p *Provider) SetPool(pool *v1alpha1.AddressPool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools[pool.Name] = pool.DeepCopy()
	return p.use(pool)
}

// use has the ranges be as a pool says.
func (p *Provider) use(pool *v1alpha1.AddressPool) error {
	named := map[netip.Prefix]bool{}
	for _, c := range pool.Spec.CIDRs {
		if prefix, err := netip.ParsePrefix(c.CIDR); err == nil {
			named[prefix] = true
		}
	}
	p.drain(pool.Name, named) // what is not named any more may be in the way
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
	if err != nil || prefix != prefix.Masked() || c.BlockPrefixLen < prefix.Bits() || c.BlockPrefixLen > prefix.Addr().BitLen() {
		return prefix, fmt.Errorf("spec.cidrs: %q with blocks of /%d must be like 10.1.0.0/16 with blocks of /28", c.CIDR, c.BlockPrefixLen)
	}
	set := p.sets[family(prefix)]
	r := p.ranges[prefix]
	switch {
	case r == nil:
		if err := set.AddRange(blocks.Range{Prefix: prefix, Bits: c.BlockPrefixLen}); err != nil {
			return prefix, fmt.Errorf("spec.cidrs: %s: %w", prefix, err)
		}
		p.ranges[prefix] = &cut{pool: pool, bits: c.BlockPrefixLen}
		return prefix, nil
	case r.pool != pool && !r.drained:
		return prefix, fmt.Errorf("spec.cidrs: %s is in AddressPool %s already: a CIDR must be in one only", prefix, r.pool)
	}
	if r.drained {
		if err := set.ResumeRange(prefix); err != nil {
			return prefix, fmt.Errorf("spec.cidrs: %s: %w", prefix, err)
		}
	}
	if r.bits != c.BlockPrefixLen {
		if err := set.Resize(prefix, c.BlockPrefixLen); err != nil {
			return prefix, fmt.Errorf("spec.cidrs: %s: blocks of /%d instead of /%d: %w", prefix, c.BlockPrefixLen, r.bits, err)
		}
	}
	*r = cut{pool: pool, bits: c.BlockPrefixLen}
	return prefix, nil
}

// drain has the ranges of a pool give nothing more that are not wanted.
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

// RemovePool is called when a pool was deleted.
func (p *Provider) RemovePool(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(name, nil)
	delete(p.pools, name)
	delete(p.errs, name)
}

// Status is how a pool stands.
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

// free is how many addresses are left of a family, in the pool of that name or,
// for "", in all.
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

// GetPoolQuota implements netresource.AllocationImplementation.
func (p *Provider) GetPoolQuota() v1alpha1.PoolQuotaMap {
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
	return quotas
}

// Resync implements netresource.AllocationImplementation. There is nothing to
// read: the provider is its own truth from the first one on.
func (p *Provider) Resync(ctx context.Context) time.Time {
	if ctx.Err() != nil {
		return time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		p.synced = true
		for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
			p.nodes[name].load()
		}
		for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
			p.nodes[name].claim() // once all pools are known
		}
	}
	for prefix, r := range p.ranges {
		if r.drained && p.sets[family(prefix)].RemoveRange(prefix) == nil {
			delete(p.ranges, prefix)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.errs)) {
		if p.errs[name] != nil {
			_ = p.use(p.pools[name]) // Status tells
		}
	}
	return p.config.Now()
}

// CreateNetResource implements netresource.AllocationImplementation.
func (p *Provider) CreateNetResource(obj *v1alpha1.NetResourceSet, _ *netresource.NetResource) netresource.NetResourceOperations {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[obj.Name]
	if n == nil {
		n = &node{provider: p, name: obj.Name, blocks: map[netip.Prefix]blocks.Owner{}}
		p.nodes[obj.Name] = n
	}
	n.see(obj)
	if p.synced {
		n.load()
		n.claim()
	}
	return n
}

// Forget implements netresource.Forgetter.
func (p *Provider) Forget(nodeName string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[nodeName]
	if n == nil {
		return
	}
	for prefix := range n.blocks {
		_ = n.drop(prefix) // it is held: it can be released
	}
	n.gone = true
	delete(p.nodes, nodeName)
}
