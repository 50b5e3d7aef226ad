// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// The index answers as a walk over all nodes does, and nothing remains in it of nodes
// that have left.
func TestTheIndexOfNeighboursAnswersAsAWalkDoes(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			g, rnd := NewWithT(t), rand.New(rand.NewPCG(seed, 45))
			prefixes := func() (all []netip.Prefix) {
				for range rnd.IntN(4) {
					a := netip.AddrFrom4([4]byte{10, byte(rnd.IntN(2)), byte(rnd.IntN(16)), byte(rnd.IntN(256))})
					p := netip.PrefixFrom(a, []int{8, 20, 24, 24, 25, 32}[rnd.IntN(6)])
					if rnd.IntN(5) == 0 {
						p = netip.PrefixFrom(netip.MustParseAddr(fmt.Sprintf("fd00:0:0:%x::1", rnd.IntN(8))), 60+rnd.IntN(6))
					}
					all = append(all, p)
				}
				return append(all, all[:rnd.IntN(len(all)+1)]...) // some of them twice
			}
			nodes, index := nodesync.Nodes{}, newNeighbours(nil)
			for range 400 {
				i := rnd.IntN(20)
				name := fmt.Sprint("node-", i)
				delete(nodes, name)
				if rnd.IntN(3) > 0 {
					id := uint32(i)
					if rnd.IntN(4) == 0 { // an ID changes hands, and the former holder is not gone yet
						id = uint32(rnd.IntN(20))
					}
					nodes[name] = &nodesync.Node{ID: id, Name: name, PodCIDRs: prefixes(), Claims: prefixes()}
				}
				index.set(name, nodes[name])

				asked := prefixes()
				var within []string
				for _, n := range nodes {
					var free []netip.Prefix
					for _, p := range n.PodCIDRs {
						if !claimedByOther(nodes, p, n.Name) {
							free = append(free, p)
						}
						if slices.ContainsFunc(asked, p.Overlaps) {
							within = append(within, n.Name)
						}
					}
					g.Expect(index.subnetsOf(n)).To(Equal(free))
					if n.ID != 0 && holderOf(nodes, n.ID) == n.Name {
						g.Expect(index.subnetsOfID(n.ID)).To(Equal(free))
					}
				}
				slices.Sort(within)
				within = slices.Compact(within)
				g.Expect(index.within(asked)).To(Equal(within))
				g.Expect(newNeighbours(nodes).within(asked)).To(Equal(within))
			}
			for name := range nodes {
				index.set(name, nil)
			}
			g.Expect([]int{
				len(index.nodes), len(index.byID), index.claims.table.Size(), index.subnets.table.Size(),
			}).To(HaveEach(0))
		})
	}
}

// claimedByOther reports whether another node than name has a claim that overlaps p.
func claimedByOther(nodes nodesync.Nodes, p netip.Prefix, name string) bool {
	for _, n := range nodes {
		if n.Name != name && slices.ContainsFunc(n.Claims, p.Overlaps) {
			return true
		}
	}
	return false
}

// holderOf returns the name of the node with an ID, the first one of several.
func holderOf(nodes nodesync.Nodes, id uint32) string {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if nodes[name].ID == id {
			return name
		}
	}
	return ""
}
