// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Source holds the addresses of one moment. Its functions read and change nothing.
type Source struct {
	Scope      string // ScopeNode, ScopeCluster
	Node       string // that answers; "": the operator
	Now        time.Time
	Policies   []ledger.Pool
	Ranges     map[string][]netip.Prefix // by pool: the prefixes from which blocks are taken
	Blocks     []Block
	Exclusions []ledger.Exclusion
	Leases     iter.Seq[*ledger.Lease] // of this node's blocks; nil: none
	// Lease returns the lease of one address; nil: Leases is searched.
	Lease func(pool string, a netip.Addr) (ledger.Lease, bool)
}

// Scopes of a Source.
const (
	ScopeNode    = "node"
	ScopeCluster = "cluster"
)

// Block is a prefix of a pool that a node was granted.
type Block struct {
	Pool     string
	Prefix   netip.Prefix
	Node     string
	Own      bool // Leases has its leases
	Draining bool
	Counts   localapi.AddressCounts // of an own block; see BlockOf
	Used     uint64                 // of another node's block: addresses in use
	Known    bool                   // of another node's block: Used is known
}

// BlockOf returns a block of this node with its counts. Excluded addresses count as reserved.
func BlockOf(b *ledger.BlockStat, node string) Block {
	out := Block{
		Pool:     b.Pool,
		Prefix:   b.Block,
		Node:     node,
		Own:      true,
		Draining: b.State == ledger.Draining,
		Counts: localapi.AddressCounts{
			Held:        uint64(b.Held),
			Infra:       uint64(b.Infra),
			Cooling:     uint64(b.Cooling),
			Quarantined: uint64(b.Quarantined),
			Free:        b.Free,
		},
	}
	n := &out.Counts
	rest := b.Size - min(b.Size, n.Held+n.Infra+n.Cooling+n.Quarantined+n.Free)
	if out.Draining {
		n.Reserved = min(rest, b.Reserved)
		n.Draining = rest - n.Reserved
	} else {
		n.Reserved = rest
	}
	return out
}

// leases yields nothing if the source has no leases.
func (s *Source) leases() iter.Seq[*ledger.Lease] {
	if s.Leases == nil {
		return func(func(*ledger.Lease) bool) {}
	}
	return s.Leases
}

// pools returns the names of all pools.
func (s *Source) pools() []string {
	var all []string
	for _, p := range s.Policies {
		all = append(all, p.Name)
	}
	for name := range s.Ranges {
		all = append(all, name)
	}
	for i := range s.Blocks {
		all = append(all, s.Blocks[i].Pool)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *Source) policy(pool string) ledger.Pool {
	for _, p := range s.Policies {
		if p.Name == pool {
			return p
		}
	}
	return ledger.Pool{Name: pool}
}

// roots returns the ranges of a pool, and its blocks outside of these, sorted; none is
// within another.
func (s *Source) roots(pool string) []netip.Prefix {
	all := slices.Clone(s.Ranges[pool])
	for i := range s.Blocks {
		if s.Blocks[i].Pool == pool {
			all = append(all, s.Blocks[i].Prefix)
		}
	}
	return outermost(all)
}

// outermost returns prefixes sorted, without those that another one contains.
func outermost(prefixes []netip.Prefix) (all []netip.Prefix) {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, p := range prefixes {
		if n := len(all); n == 0 || !all[n-1].Overlaps(p) {
			all = append(all, p)
		}
	}
	return all
}

// reserved returns the prefixes of a block that its pool's policy reserves; none is
// within another.
func reserved(policy *ledger.Pool, block netip.Prefix) (all []netip.Prefix) {
	for _, p := range policy.Exclude {
		switch {
		case p.Bits() <= block.Bits() && p.Overlaps(block):
			return []netip.Prefix{block}
		case block.Contains(p.Addr()):
			all = append(all, p.Masked())
		}
	}
	if policy.ReserveEdges && !block.IsSingleIP() {
		for _, a := range []netip.Addr{block.Addr(), lastOf(block)} {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return outermost(all)
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// contains reports whether a sorted list of prefixes, none within another, has a.
func contains(list []netip.Prefix, a netip.Addr) bool {
	i, ok := slices.BinarySearchFunc(list, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return ok || i > 0 && list[i-1].Contains(a)
}

// podOf returns the name of a lease's pod, "" if it has none.
func podOf(l *ledger.Lease) string {
	if l.Purpose != ledger.ForPod {
		return ""
	}
	return strings.Trim(l.Pod.String(), "/")
}
