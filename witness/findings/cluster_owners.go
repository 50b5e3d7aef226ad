// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// owned is a prefix that an object says a node has.
type owned struct {
	prefix netip.Prefix
	node   string
	object string // that says so
}

func (o owned) String() string { return fmt.Sprintf("%s: %s has %s", o.node, o.object, o.prefix) }

// compareOwners looks for prefixes of pods and for node addresses that two nodes have.
func (c *clusterComparison) compareOwners() {
	blocks, addrs := c.owned()
	for _, group := range overlapping(blocks) {
		nodes := nodesOf(group)
		c.report(
			numBlockTwice,
			Subject{Prefix: group[0].prefix, Object: shortened(nodes)},
			fmt.Sprintf(
				"addresses of block %s are on %d nodes: %s",
				group[0].prefix,
				len(nodes),
				shortened(nodes),
			),
			statements(group)...)
	}
	for _, group := range overlapping(addrs) {
		nodes := nodesOf(group)
		c.report(
			numNodeAddressTwice,
			Subject{Addr: group[0].prefix.Addr(), Object: shortened(nodes)},
			fmt.Sprintf(
				"address %s is on %d nodes: %s",
				group[0].prefix.Addr(),
				len(nodes),
				shortened(nodes),
			),
			statements(group)...)
	}
}

// owned returns the prefixes of pods and the node addresses that objects give to nodes.
// A pending claim allows nothing, so it is not one.
func (c *clusterComparison) owned() (blocks, addrs []owned) {
	address := func(a netip.Addr, node, object string) {
		if a.IsValid() {
			addrs = append(addrs, owned{netip.PrefixFrom(a, a.BitLen()), node, object})
		}
	}
	for _, n := range c.Nodes {
		for _, p := range n.Pods {
			blocks = append(blocks, owned{p, n.Name, "podCIDRs of the Node"})
		}
		for _, a := range n.Addrs {
			address(a, n.Name, "the Node")
		}
	}
	for _, id := range c.IDs {
		object := fmt.Sprintf("the record of node ID %d", id.ID)
		for _, p := range id.Blocks {
			blocks = append(blocks, owned{p, id.Node, object})
		}
		for _, a := range id.Addrs {
			address(a, id.Node, object)
		}
	}
	for _, claim := range c.Claims {
		switch {
		case !claim.Held:
		case claim.Network == nodeNetwork:
			address(claim.Prefix.Addr(), claim.Node, "a claim")
		default:
			blocks = append(blocks, owned{claim.Prefix, claim.Node, "a claim"})
		}
	}
	for _, set := range c.Sets {
		for _, b := range set.Blocks {
			blocks = append(blocks, owned{b.Prefix, set.Node, "the NetResourceSet"})
		}
	}
	return blocks, addrs
}

// overlapping returns groups of prefixes that share addresses and are of two nodes or
// more. The first prefix of a group contains the others.
func overlapping(all []owned) (groups [][]owned) {
	slices.SortFunc(all, func(a, b owned) int {
		return cmp.Or(
			a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()),
			strings.Compare(a.node, b.node),
			strings.Compare(a.object, b.object),
		)
	})
	for begin := 0; begin < len(all); {
		end, differ := begin+1, false
		for end < len(all) && all[begin].prefix.Overlaps(all[end].prefix) {
			differ = differ || all[end].node != all[begin].node
			end++
		}
		if differ {
			groups = append(groups, all[begin:end])
		}
		begin = end
	}
	return groups
}

func nodesOf(group []owned) []string {
	names := map[string]bool{}
	for _, o := range group {
		names[o.node] = true
	}
	return slices.Sorted(maps.Keys(names))
}

func statements(group []owned) (all []string) {
	for _, o := range group {
		all = append(all, o.String())
	}
	return all
}

// shortened names at most 4 nodes.
func shortened(nodes []string) string {
	const most = 4
	if len(nodes) <= most {
		return strings.Join(nodes, ", ")
	}
	return fmt.Sprintf("%s and %d further ones", strings.Join(nodes[:most], ", "), len(nodes)-most)
}
