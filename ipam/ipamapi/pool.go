// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// pool is a pool as the engine knows it. Its prefix is a block of the ledger,
// which it may share with other parts of the same prefix, or a part of the pod
// network's block.
type pool struct {
	id      poolID
	key     string         // id as text
	ledger  string         // name of the ledger's pool
	edges   []netip.Prefix // network and broadcast address, which are not allocated
	request ledger.Request // of any address, without key, purpose and order
	family  ledger.Family  // of the prefix
	alone   []*pool        // this pool only
	life    sync.RWMutex   // read-locked by calls for addresses, locked while the pool ends
	ended   bool           // guarded by life
	unread  atomic.Bool    // addresses that the engine has in it are still to be restored
	used    atomic.Uint64  // counts the requests for it and for its addresses
	again   ledger.Replays // of a pool of the global space that was requested again

	requests int            // guarded by Driver.change, as all that follow
	chosen   bool           // by the Driver
	shared   map[string]int // by gateway: the number of networks that have it, beside the first one
	givenUp  *GivenUp       // nil: no requests are
	kept     int            // requests that are not given up though no network accounts for them
}

func newPool(id poolID, key string) *pool {
	p := &pool{
		id:       id,
		key:      key,
		ledger:   id.ledgerPool(),
		edges:    edges(id.prefix),
		family:   ledger.FamilyOf(id.prefix.Addr()),
		requests: 1,
	}
	p.alone = []*pool{p}
	p.request = ledger.Request{Pool: p.ledger, Families: []ledger.Family{p.family}, More: true}
	if id.sub.IsValid() || p.fromPods() {
		p.request.Within = []netip.Prefix{id.allocates()}
	}
	if p.fromPods() {
		p.request.Except = p.edges
	}
	return p
}

// fromPods reports whether the addresses are those of the pod network.
func (p *pool) fromPods() bool { return p.id.pods != "" }

// edges returns the addresses of p that no endpoint gets: the network and the
// broadcast address, the subnet-router anycast address.
func edges(p netip.Prefix) []netip.Prefix {
	width := p.Addr().BitLen()
	if width-p.Bits() < 2 {
		return nil // RFC 3021, RFC 6164
	}
	all := append(make([]netip.Prefix, 0, 2), netip.PrefixFrom(p.Addr(), width))
	if p.Addr().Is4() {
		last, _ := addrspace.NthLast(p, 0)
		all = append(all, netip.PrefixFrom(last, width))
	}
	return all
}

// reserves reports whether a is an edge.
func (p *pool) reserves(a netip.Addr) bool {
	return slices.ContainsFunc(p.edges, func(x netip.Prefix) bool { return x.Addr() == a })
}

// first returns the lowest address that an endpoint can get.
func (p *pool) first() netip.Addr {
	a := p.id.allocates().Addr()
	if p.reserves(a) {
		return a.Next()
	}
	return a
}

// insert makes p known.
func (d *Driver) insert(p *pool) {
	d.spaces[p.id.space].add(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools[p.key] = p
	delete(d.ended, p.key)
	if p.id.group != "" {
		g := p.id.inGroup()
		d.groups[g] = append(slices.Clone(d.groups[g]), p)
	}
}

// maxEnded bounds the memory of IDs that ended.
const maxEnded = 1 << 16

// remove makes p unknown. Its ID stays known as ended; recorded, if a record says so.
func (d *Driver) remove(p *pool, recorded bool) {
	d.spaces[p.id.space].remove(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pools, p.key)
	if len(d.ended) >= maxEnded {
		for key, recorded := range d.ended {
			if !recorded {
				delete(d.ended, key)
			}
		}
	}
	d.ended[p.key] = recorded
	if p.id.group != "" {
		g := p.id.inGroup()
		d.groups[g] = slices.DeleteFunc(slices.Clone(d.groups[g]), func(m *pool) bool { return m == p })
		if len(d.groups[g]) == 0 {
			delete(d.groups, g)
		}
	}
}

// members returns the pools that serve requests for p: p, then the others of its group.
func (d *Driver) members(p *pool) []*pool {
	if p.id.group == "" {
		return p.alone
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	all := []*pool{p}
	for _, m := range d.groups[p.id.inGroup()] {
		if m != p {
			all = append(all, m)
		}
	}
	return all
}

// memberWith returns the member of p's group whose prefix contains a, nil if there is none.
func (d *Driver) memberWith(p *pool, a netip.Addr) *pool {
	for _, m := range d.members(p) {
		if m.id.prefix.Contains(a) {
			return m
		}
	}
	return nil
}

// with calls f while m cannot end. Its caller holds the life of p already.
func (p *pool) with(m *pool, f func() error) error {
	if m != p {
		m.life.RLock()
		defer m.life.RUnlock()
	}
	if m.ended || m != p && m.unread.Load() {
		return ErrNoAvailableIPs
	}
	return f()
}
