// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// network is a range of addresses with its use.
type network struct {
	prefix netip.Prefix
	name   string // such as "pool default"
	pool   string // "": it is not a pool
}

// compareNetworks looks for networks of different purposes that share addresses.
func (c *clusterComparison) compareNetworks() {
	c.comparePools("pool", c.Pools)
	c.comparePools("AddressPool", c.AddressPools)
	pods := index(c.podNetworks())
	for _, s := range c.Services {
		for _, p := range pods.overlaps(s) {
			c.report(numServicesOverlap, Subject{Pool: p.pool, Prefix: p.prefix, Object: "services " + s.String()},
				fmt.Sprintf("the service network %s shares addresses with %s (%s)", s, p.name, p.prefix),
				fmt.Sprintf("%s has %s", p.name, p.prefix))
		}
	}
	for _, n := range c.nodeAddrs() {
		for _, p := range pods.overlaps(n.prefix) {
			c.report(
				numNodeInPods,
				Subject{Node: n.node, Pool: p.pool, Addr: n.prefix.Addr()},
				fmt.Sprintf(
					"address %s of node %s is inside %s (%s)",
					n.prefix.Addr(),
					n.node,
					p.name,
					p.prefix,
				),
				n.String(),
			)
		}
	}
	var services []network
	for _, s := range c.Services {
		services = append(services, network{prefix: s, name: "the service network"})
	}
	c.compareDocker(pods, index(services))
}

// comparePools compares pools of one kind with each other: a pool and an AddressPool may
// well be parts of one network.
func (c *clusterComparison) comparePools(kind string, pools []ClusterPool) {
	var all []network
	for _, p := range pools {
		for _, r := range p.Ranges {
			all = append(all, network{r, kind + " " + p.Name, p.Name})
		}
	}
	sorted := index(all)
	for _, a := range all {
		for _, b := range sorted.overlaps(a.prefix) {
			if a.pool < b.pool {
				c.report(numPoolsOverlap, Subject{Pool: a.pool, Prefix: a.prefix, Object: b.name},
					fmt.Sprintf("%s (%s) shares addresses with %s (%s)", a.name, a.prefix, b.name, b.prefix),
					fmt.Sprintf("%s has %s", a.name, a.prefix), fmt.Sprintf("%s has %s", b.name, b.prefix))
			}
		}
	}
}

// podNetworks returns the ranges of the pools, and the podCIDRs outside of them.
func (c *clusterComparison) podNetworks() (all []network) {
	for _, p := range c.Pools {
		for _, r := range p.Ranges {
			all = append(all, network{r, "pool " + p.Name, p.Name})
		}
	}
	for _, p := range c.AddressPools {
		for _, r := range p.Ranges {
			same := func(n network) bool { return n.prefix.Bits() <= r.Bits() && n.prefix.Overlaps(r) }
			if !slices.ContainsFunc(all, same) {
				all = append(all, network{r, "AddressPool " + p.Name, p.Name})
			}
		}
	}
	ranges := index(all)
	for _, n := range c.Nodes {
		for _, p := range n.Pods {
			if len(ranges.overlaps(p)) == 0 {
				all = append(all, network{p, "the podCIDRs of Node " + n.Name, ""})
			}
		}
	}
	return all
}

// nodeAddrs returns the addresses of the nodes, each once.
func (c *clusterComparison) nodeAddrs() []owned {
	_, addrs := c.owned()
	slices.SortFunc(addrs, func(a, b owned) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), strings.Compare(a.node, b.node))
	})
	return slices.CompactFunc(addrs, func(a, b owned) bool { return a.prefix == b.prefix && a.node == b.node })
}

// compareDocker compares the subnets of Docker's networks with those of pods and
// services. A macvlan network may share the network of the nodes on purpose.
func (c *clusterComparison) compareDocker(pods, services networks) {
	for _, d := range c.Docker {
		for _, n := range slices.Concat(pods.overlaps(d.Prefix), services.overlaps(d.Prefix)) {
			c.report(
				numDockerBesidePods,
				Subject{Node: d.Node, Prefix: d.Prefix, Pool: n.pool, Object: n.name},
				fmt.Sprintf(
					"subnet %s of Docker on node %s shares addresses with %s (%s)",
					d.Prefix,
					d.Node,
					n.name,
					n.prefix,
				),
				fmt.Sprintf(
					"%s has %s",
					n.name,
					n.prefix,
				),
				fmt.Sprintf("the beat of node %s has Docker's subnet %s", d.Node, d.Prefix),
			)
		}
	}
}

// networks holds networks in the order of their addresses.
type networks struct {
	sorted []network
	widest map[bool]int // fewest bits of a prefix, by whether it is of IPv4
}

// index returns networks that can be searched.
func index(all []network) networks {
	n := networks{slices.Clone(all), map[bool]int{}}
	slices.SortFunc(n.sorted, func(a, b network) int {
		return cmp.Or(
			a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()),
			strings.Compare(a.name, b.name),
		)
	})
	for _, x := range n.sorted {
		is4 := x.prefix.Addr().Is4()
		if bits, ok := n.widest[is4]; !ok || x.prefix.Bits() < bits {
			n.widest[is4] = x.prefix.Bits()
		}
	}
	return n
}

// overlaps returns the networks that share addresses with p.
func (n networks) overlaps(p netip.Prefix) (all []network) {
	widest, ok := n.widest[p.Addr().Is4()]
	if !ok {
		return nil
	}
	// A network that shares addresses with p begins inside p or contains it.
	from := netip.PrefixFrom(p.Addr(), min(widest, p.Bits())).Masked().Addr()
	i, _ := slices.BinarySearchFunc(
		n.sorted,
		from,
		func(x network, a netip.Addr) int { return x.prefix.Addr().Compare(a) },
	)
	for ; i < len(n.sorted); i++ {
		x := n.sorted[i].prefix
		if p.Overlaps(x) {
			all = append(all, n.sorted[i])
		} else if x.Addr().Compare(p.Addr()) > 0 {
			break
		}
	}
	return all
}
