// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// Default is the name of the cluster's pod network, and of its pool in contiv.conf.
const Default = "default"

// Sources of the first value of a pool.
const (
	originConfig  = "contiv.conf"
	OriginApply   = "apply"
	originNetwork = "network/"
)

// State is the state of a pool.
type State uint8

// States of pools.
const (
	Active   State = iota
	Draining       // keeps its leases; nothing is allocated from it
	Removed        // not in use on any node
)

func states() []string { return []string{"active", "draining", "removed"} }

// String returns the word for the state in pools.yaml.
func (s State) String() string {
	if int(s) < len(states()) {
		return states()[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns that word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Pool holds one pool of the cluster. The zero Pool stands for a missing one.
type Pool struct {
	Name       string  `json:"name"`
	Network    string  `json:"network"`
	Ranges     []Range `json:"ranges"` // one a family at most
	State      State   `json:"state"`
	Generation uint64  `json:"generation"`
	Origin     string  `json:"origin"`
}

// FromMessage reads a stored pool. The error wraps Problems.
func FromMessage(m *kv.Pool) (Pool, error) {
	var ps problems
	p := Pool{Name: m.GetName(), Network: m.GetNetwork(), Generation: m.GetGeneration(), Origin: m.GetOrigin()}
	switch {
	case m.GetRemoved():
		p.State = Removed
	case m.GetDraining():
		p.State = Draining
	}
	ps.checkName("name", p.Name)
	ps.checkName("network", p.Network)
	if p.Generation == 0 {
		ps.add("generation", "0", "is not a generation: the first one is 1")
	}
	for i, r := range m.GetRanges() {
		p.Ranges = append(
			p.Ranges,
			Range{ps.cidr(rangeField("", i)+cidrKey, r.GetCidr()), oneNode(r.GetOneNodePrefixLen())},
		)
	}
	if len(p.Ranges) == 0 {
		ps.add("ranges", "", "is missing: a pool has one or two ranges")
	}
	ps.Mute()
	ps.checkRanges("", p.Ranges)
	if err := ps.err(); err != nil {
		return Pool{}, fmt.Errorf("stored pool %q: %w", m.GetName(), err)
	}
	return p, nil
}

// oneNode converts a stored prefix length without overflow.
func oneNode(n uint32) int { return int(min(n, 1<<16)) }

// Message returns the pool as it is stored.
func (p Pool) Message() *kv.Pool {
	m := &kv.Pool{
		Name:       p.Name,
		Network:    p.Network,
		Generation: p.Generation,
		Origin:     p.Origin,
		// A removed pool is draining too, for readers that know only Draining.
		Draining: p.State != Active,
		Removed:  p.State == Removed,
	}
	for _, r := range p.Ranges {
		m.Ranges = append(m.Ranges, &kv.PoolRange{Cidr: r.CIDR.String(), OneNodePrefixLen: uint32(r.OneNode)})
	}
	return m
}

// FromCluster returns the pool of contiv.conf.
func FromCluster(c addrplan.Cluster) Pool {
	p := Pool{Name: Default, Network: Default, Generation: 1, Origin: originConfig}
	for _, f := range c.Families {
		p.Ranges = append(p.Ranges, Range{f.Pods, f.PodsOneNode})
	}
	return p
}

// FromNetwork returns the first pool of a custom network. Admit checks it against the
// rest of the cluster. The error wraps Problems.
func FromNetwork(m *kv.CustomNetwork) (Pool, error) {
	var ps problems
	p := Pool{Name: m.GetName(), Network: m.GetName(), Generation: 1, Origin: originNetwork + m.GetName()}
	ps.checkName("name", p.Name)
	if p.Name == Default {
		ps.add("name", p.Name, "is the pod network of the cluster: choose another name")
	}
	if strings.TrimSpace(m.GetSubnetCidr()) == "" {
		ps.add(subnetKey, "",
			"is missing: write a network, such as 10.5.0.0/16, or one of each family with a comma between them")
	} else {
		ps.subnets(m, &p)
	}
	if err := ps.err(); err != nil {
		return Pool{}, fmt.Errorf("custom network %q: %w", m.GetName(), err)
	}
	return p, nil
}

// Keys of a custom network.
const (
	subnetKey    = "subnetCIDR"
	subnetLen    = "subnetOneNodePrefixLen"
	subnetLenSix = "subnetOneNodePrefixLenIPv6"
)

// subnets reads the networks of m into p.
func (ps *problems) subnets(m *kv.CustomNetwork, p *Pool) {
	parts := strings.Split(m.GetSubnetCidr(), ",")
	for _, part := range parts {
		r, key := Range{ps.cidr(subnetKey, strings.TrimSpace(part)), oneNode(m.GetSubnetOneNodePrefixLen())}, subnetLen
		if len(parts) > 1 && r.CIDR.Addr().Is6() {
			r.OneNode, key = oneNode(m.GetSubnetOneNodePrefixLenIpv6()), subnetLenSix
		}
		if !r.CIDR.IsValid() {
			continue
		}
		ps.checkRange(subnetKey, key, r)
		if slices.ContainsFunc(p.Ranges, func(o Range) bool { return o.family() == r.family() }) {
			ps.add(subnetKey, m.GetSubnetCidr(),
				"names two networks of one family: write one network, or one IPv4 and one IPv6 network")
		}
		p.Ranges = append(p.Ranges, r)
	}
}

// String returns the pool in one line.
func (p Pool) String() string {
	return fmt.Sprintf("pool %s of network %s: %s, %s, generation %d",
		p.Name, p.Network, listed(p.Ranges), p.State, p.Generation)
}

// Equal reports whether all fields of p and o are equal.
func (p Pool) Equal(o Pool) bool {
	return p.Name == o.Name && p.Network == o.Network && p.State == o.State &&
		p.Generation == o.Generation && p.Origin == o.Origin && slices.Equal(p.Ranges, o.Ranges)
}

// covers reports whether nodes can allocate addresses of the family from p.
func (p Pool) covers(network, family string) bool {
	_, has := p.of(family)
	return has && p.Network == network && p.State == Active
}

// of returns the range of a family.
func (p Pool) of(family string) (Range, bool) {
	i := slices.IndexFunc(p.Ranges, func(r Range) bool { return r.family() == family })
	if i < 0 {
		return Range{}, false
	}
	return p.Ranges[i], true
}

// overlaps returns two ranges of p and o that share addresses.
func (p Pool) overlaps(o Pool) (mine, theirs Range, ok bool) {
	for _, r := range p.Ranges {
		for _, other := range o.Ranges {
			if r.CIDR.Overlaps(other.CIDR) {
				return r, other, true
			}
		}
	}
	return Range{}, Range{}, false
}

// inOrder returns the pools, Default first and then by name.
func inOrder(pools []Pool) []Pool {
	return slices.SortedFunc(slices.Values(pools), func(a, b Pool) int { return compareNames(a.Name, b.Name) })
}

func compareNames(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == Default:
		return -1
	case b == Default:
		return 1
	}
	return cmp.Compare(a, b)
}

// Merge returns the valid one of a pool that a node knows and the stored one, which may be
// missing or older after a loss of the store. That is the one with the higher generation,
// else the stored one; see Conflict. If write is true it must be stored.
func Merge(known, stored Pool) (p Pool, write bool) {
	if known.Generation > stored.Generation {
		return known, true
	}
	return stored, false
}

// Conflict returns an error if known and stored, of one name, cannot come from one
// history: a generation has two contents, or a range has changed. Merge still decides,
// and the same on every node, but an administrator should know.
func Conflict(known, stored Pool) error {
	switch {
	case known.Generation == 0 || stored.Generation == 0:
		return nil
	case known.Generation == stored.Generation && !known.Equal(stored),
		known.Network != stored.Network, !slices.Equal(known.Ranges, stored.Ranges):
		return fmt.Errorf("two pools of one name: known is %s; stored is %s", known, stored)
	}
	return nil
}

// Block holds the block of one node in a range.
type Block struct {
	Pool       string       `json:"pool"`
	Prefix     netip.Prefix `json:"prefix"`
	Generation uint64       `json:"generation"` // of the pool
}

// String returns the pool and the prefix.
func (b Block) String() string { return b.Pool + " " + b.Prefix.String() }

// Blocks returns the blocks of node id in a network: the open ones and the draining ones,
// in the order of the pools, Default first and then by name. It leaves out a pool that id
// does not fit, with an error.
//
// Pools of one cluster are disjoint. If two overlap, a block may have addresses of another
// node, so both drain, with an error. But a custom network does not stop network Default.
func Blocks(pools []Pool, network string, id uint32) (open, draining []Block, errs []error) {
	var ours []Pool
	for i := range pools {
		if pools[i].Network == network && pools[i].State != Removed {
			ours = append(ours, pools[i])
		}
	}
	for _, p := range inOrder(ours) {
		blocks, err := p.blocks(id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if p.State == Active {
			if err = p.rival(pools); err == nil {
				open = append(open, blocks...)
				continue
			}
			errs = append(errs, err)
		}
		draining = append(draining, blocks...)
	}
	return open, draining, errs
}

// blocks returns the blocks of node id in all ranges, or an error.
func (p Pool) blocks(id uint32) ([]Block, error) {
	var all []Block
	for _, r := range p.Ranges {
		prefix, err := r.Block(id)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", p.Name, err)
		}
		all = append(all, Block{p.Name, prefix, p.Generation})
	}
	return all, nil
}

// rival returns an error if another pool keeps nodes from allocating from p.
func (p Pool) rival(pools []Pool) error {
	var err error
	first := ""
	for i := range pools {
		o := &pools[i]
		if o.State == Removed || o.Name == p.Name || p.Network == Default && o.Network != Default {
			continue
		}
		mine, theirs, ok := p.overlaps(*o)
		if ok && (err == nil || compareNames(o.Name, first) < 0) {
			first = o.Name
			err = fmt.Errorf(
				"pool %s: %s overlaps pool %s, %s: nothing is allocated from it until one of them is removed",
				p.Name,
				mine.CIDR,
				o.Name,
				theirs.CIDR,
			)
		}
	}
	return err
}

// Largest returns the largest node ID that has a block in all pools that are not removed.
func Largest(pools []Pool) uint32 {
	most := ^uint32(0)
	for _, p := range pools {
		if p.State == Removed {
			continue
		}
		for _, r := range p.Ranges {
			most = min(most, r.largest())
		}
	}
	return most
}
