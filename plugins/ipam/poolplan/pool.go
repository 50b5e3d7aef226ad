// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// Default names the pod network of the cluster, and the pool of it that
// contiv.conf describes.
const Default = "default"

// Who gave a pool its first value; of a custom network it is "network/NAME".
const (
	OriginConfig  = "contiv.conf"
	OriginApply   = "apply"
	originNetwork = "network/"
)

// State is where a pool is in its life.
type State uint8

// States of pools.
const (
	Active   State = iota
	Draining       // keeps its leases, lends nothing
	Removed        // nothing of it is in use anywhere
)

func states() []string { return []string{"active", "draining", "removed"} }

// String is the word that pools.yaml has for the state.
func (s State) String() string {
	if int(s) < len(states()) {
		return states()[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText writes the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Pool is one pool of the cluster. The zero Pool stands for one that is not there.
type Pool struct {
	Name       string  `json:"name"`
	Network    string  `json:"network"`
	Ranges     []Range `json:"ranges"` // one a family at most
	State      State   `json:"state"`
	Generation uint64  `json:"generation"`
	Origin     string  `json:"origin"`
}

// FromMessage reads a stored pool. The error is made of Problems.
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
		ps.add("generation", "0", "is none: the first one is 1")
	}
	for i, r := range m.GetRanges() {
		p.Ranges = append(p.Ranges, Range{ps.cidr(rangeField("", i)+cidrKey, r.GetCidr()), oneNode(r.GetOneNodePrefixLen())})
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

// oneNode is a stored prefix length, kept from wrapping around.
func oneNode(n uint32) int { return int(min(n, 1<<16)) }

// Message is the pool as it is stored.
func (p Pool) Message() *kv.Pool {
	m := &kv.Pool{
		Name: p.Name, Network: p.Network, Generation: p.Generation, Origin: p.Origin,
		Draining: p.State != Active, Removed: p.State == Removed, // whoever knows only of draining lends nothing of a removed one
	}
	for _, r := range p.Ranges {
		m.Ranges = append(m.Ranges, &kv.PoolRange{Cidr: r.CIDR.String(), OneNodePrefixLen: uint32(r.OneNode)})
	}
	return m
}

// FromCluster is the pool that contiv.conf describes.
func FromCluster(c addrplan.Cluster) Pool {
	p := Pool{Name: Default, Network: Default, Generation: 1, Origin: OriginConfig}
	for _, f := range c.Families {
		p.Ranges = append(p.Ranges, Range{f.Pods, f.PodsOneNode})
	}
	return p
}

// FromNetwork is the pool that a custom network begins with. It is not checked
// against the rest of the cluster: that is what Admit is for. The error is made
// of Problems.
func FromNetwork(m *kv.CustomNetwork) (Pool, error) {
	var ps problems
	p := Pool{Name: m.GetName(), Network: m.GetName(), Generation: 1, Origin: originNetwork + m.GetName()}
	ps.checkName("name", p.Name)
	if p.Name == Default {
		ps.add("name", p.Name, "is the pod network of the cluster: choose another name")
	}
	if strings.TrimSpace(m.GetSubnetCidr()) == "" {
		ps.add(subnetKey, "", "is missing: write a network, such as 10.5.0.0/16, or one of each family with a comma between them")
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
			ps.add(subnetKey, m.GetSubnetCidr(), "names two networks of one family: write one network, or one IPv4 and one IPv6 network")
		}
		p.Ranges = append(p.Ranges, r)
	}
}

// String is the pool in one line.
func (p Pool) String() string {
	return fmt.Sprintf("pool %s of network %s: %s, %s, generation %d", p.Name, p.Network, listed(p.Ranges), p.State, p.Generation)
}

// Equal is true where p and o say the same in everything.
func (p Pool) Equal(o Pool) bool {
	return p.Name == o.Name && p.Network == o.Network && p.State == o.State && p.Generation == o.Generation && p.Origin == o.Origin &&
		slices.Equal(p.Ranges, o.Ranges)
}

// covers is true where nodes can lend addresses of the family from p.
func (p Pool) covers(network, family string) bool {
	_, has := p.of(family)
	return has && p.Network == network && p.State == Active
}

// of is the range of a family.
func (p Pool) of(family string) (Range, bool) {
	i := slices.IndexFunc(p.Ranges, func(r Range) bool { return r.family() == family })
	if i < 0 {
		return Range{}, false
	}
	return p.Ranges[i], true
}

// overlaps are two ranges of p and o that share addresses.
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

// inOrder are the pools, Default first and then by name.
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

// Merge is what is right of what a node knows of a pool and what is stored of
// it, where the store may have come back empty or older: the higher generation,
// else the stored one; see Conflict. Where write is true, it is to be stored.
func Merge(known, stored Pool) (p Pool, write bool) {
	if known.Generation > stored.Generation {
		return known, true
	}
	return stored, false
}

// ErrConflict is wrapped by what Conflict returns.
var ErrConflict = errors.New("two pools of one name")

// Conflict says why known and stored, of one name, cannot both come from one
// history: a generation has two contents, or a range has changed. Merge decides
// all the same, and the same on every node; somebody should be told.
func Conflict(known, stored Pool) error {
	switch {
	case known.Generation == 0 || stored.Generation == 0:
		return nil
	case known.Generation == stored.Generation && !known.Equal(stored),
		known.Network != stored.Network, !slices.Equal(known.Ranges, stored.Ranges):
		return fmt.Errorf("%w: known is %s; stored is %s", ErrConflict, known, stored)
	}
	return nil
}

// Block is what one node has of a range.
type Block struct {
	Pool       string       `json:"pool"`
	Prefix     netip.Prefix `json:"prefix"`
	Generation uint64       `json:"generation"` // of the pool
}

// String is the pool and the prefix.
func (b Block) String() string { return b.Pool + " " + b.Prefix.String() }

// Blocks are the blocks that node id has in a network: those that it lends from
// and those that keep their leases only, in the order of the pools, Default
// first and then by name. A pool that id does not fit is left out, with an error.
//
// Pools of one cluster are disjoint. Where two are not, addresses of a block may
// be another node's too, so both drain, with an error; but a custom network does
// not stop network Default.
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

// blocks are node id's of all ranges, or none.
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

// rival is an error where p must not lend because of another pool.
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
			err = fmt.Errorf("pool %s: %s overlaps pool %s, %s: nothing is lent of it until one of them is removed", p.Name, mine.CIDR, o.Name, theirs.CIDR)
		}
	}
	return err
}

// Largest is the largest node ID that has a block in all pools that are not removed.
func Largest(pools []Pool) uint32 {
	most := ^uint32(0)
	for _, p := range pools {
		if p.State == Removed {
			continue
		}
		for _, r := range p.Ranges {
			most = min(most, r.Largest())
		}
	}
	return most
}
