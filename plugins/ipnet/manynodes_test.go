// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// wantedRoutes derives the routes of external IPAM from all nodes at once, in the simplest
// way. A subnet that overlaps a claim of another node is not routed, and of two nodes with
// one subnet the smaller ID counts. Blocks of this node are in own.
func wantedRoutes(nodes nodesync.Nodes, self uint32, own ...string) []string {
	holds := func(other *nodesync.Node, p netip.Prefix) bool {
		return slices.ContainsFunc(other.Claims, p.Overlaps)
	}
	byDst := map[string]string{}
	byID := func(a, b *nodesync.Node) int { return cmp.Compare(a.ID, b.ID) }
	for _, n := range slices.SortedFunc(maps.Values(nodes), byID) {
		for _, p := range n.PodCIDRs {
			taken := false
			for name, other := range nodes {
				taken = taken || name != n.Name && holds(other, p)
			}
			dst := p.Masked().String()
			if n.ID == 0 || n.ID == self || taken || byDst[dst] != "" || slices.Contains(own, dst) {
				continue
			}
			gateway := ""
			for _, a := range n.VppIPAddresses {
				if gateway == "" && a.Addr().Is4() == p.Addr().Is4() {
					gateway = a.Addr().String()
				}
			}
			byDst[dst] = fmt.Sprintf("%s via %s to %d %s", dst, gateway, n.ID, n.Name)
		}
	}
	return slices.AppendSeq([]string{}, maps.Values(byDst))
}

// crowd is a world of many nodes whose subnets and claims overlap.
type crowd struct {
	*world
	rnd   *rand.Rand
	nodes int
}

// prefix returns a subnet of one of several lengths among few: most overlap others.
func (c *crowd) prefix() string {
	if c.rnd.IntN(4) == 0 {
		bits := 62 + c.rnd.IntN(4)
		return netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:1:0:%x::", c.rnd.IntN(64))), bits).Masked().String()
	}
	bits := []int{20, 22, 23, 24, 24, 24, 24, 25, 26, 32}[c.rnd.IntN(10)]
	a := netip.AddrFrom4([4]byte{10, 1, byte(c.rnd.IntN(c.nodes)), byte(64 * c.rnd.IntN(4))})
	p := netip.PrefixFrom(a, bits)
	if c.rnd.IntN(3) > 0 {
		p = p.Masked() // otherwise with host bits, as some controllers write them
	}
	return p.String()
}

func (c *crowd) prefixes() (all []string) {
	for range c.rnd.IntN(4) {
		all = append(all, c.prefix())
	}
	if len(all) > 1 && c.rnd.IntN(5) == 0 {
		all[1] = all[0]
	}
	return all
}

// change makes one random change of a node: it joins, leaves, gets another ID or name, other
// subnets, claims a prefix or gives one back.
func (c *crowd) change() {
	i := c.rnd.IntN(c.nodes)
	name, id := fmt.Sprint("node-", i), uint32(10+i)
	switch c.rnd.IntN(12) {
	case 0, 1:
		c.record(id, name, fmt.Sprintf("192.168.16.%d/24", id), "fd00:3::7/64")
	case 2: // the ID of another name
		c.record(id, fmt.Sprint("node-", c.rnd.IntN(c.nodes)), fmt.Sprintf("192.168.17.%d/24", id))
	case 3:
		c.set(kv.NodeRecordKey(id), nil)
	case 4, 5, 6:
		c.podCIDRs(name, c.prefixes()...)
	case 7:
		c.set(kv.NodeKey(name), nil)
	case 8, 9, 10:
		p := netip.MustParsePrefix(c.prefix()).Masked()
		if c.rnd.IntN(10) == 0 {
			name = c.own
		}
		c.set(kv.PrefixClaimKey(kv.PodNetworkClaims, p, name), &kv.PrefixClaim{
			Network: kv.PodNetworkClaims, Prefix: p.String(), Node: name, Held: c.rnd.IntN(4) > 0,
		})
	default:
		claims := slices.Sorted(maps.Keys(c.kube[kv.PrefixClaimResource]))
		if len(claims) > 0 {
			c.set(claims[c.rnd.IntN(len(claims))], nil)
		}
	}
}

// However many nodes come, go, overlap each other and claim prefixes, the routes after
// each change are those of the simple derivation, and those of one resync.
func TestRoutesOfManyOverlappingNodes(t *testing.T) {
	const netresource = "ipamConfig: {podSubnetCIDR: \"10.1.0.0/16,fd00:1::/48\", podSubnetOneNodePrefixLenIPv6: 64, " +
		"vppHostSubnetCIDR: \"172.30.0.0/16,fd00:2::/48\", vppHostSubnetOneNodePrefixLenIPv6: 64, " +
		"nodeInterconnectCIDR: \"192.168.16.0/24,fd00:3::/64\", vxlanCIDR: \"192.168.30.0/24,fd00:4::/64\", serviceCIDR: \"10.96.0.0/12,fd00:5::/112\"}\n" +
		"cadastre: {podBlocks: netresource, kvdb: {type: kubernetes}}"
	for _, conf := range []struct {
		name, text string
		own        []string
	}{
		{"podcidr", external, []string{"10.1.55.0/24"}},
		{"netresource", netresource, nil},
	} {
		for seed := range uint64(16) {
			t.Run(fmt.Sprint(conf.name, " ", seed), func(t *testing.T) {
				inWorld(t, conf.text, func(w *world) {
					c := &crowd{world: w, rnd: rand.New(rand.NewPCG(seed, 45)), nodes: 12 + int(seed)*5}
					w.record(5, w.own, "192.168.16.5/24")
					w.podCIDRs(w.own, conf.own...)
					for range 300 {
						c.change()
						w.g.Expect(w.routes()).To(ConsistOf(wantedRoutes(w.sync.GetAllNodes(), 5, conf.own...)))
						if c.rnd.IntN(40) == 0 {
							w.has(w.routes()...)
						}
					}
					w.has(w.routes()...)
				})
			})
		}
	}
}
