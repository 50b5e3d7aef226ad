// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

func (c *Config) validateNetworks(p *yamldoc.Collector) {
	families := c.IPAM.Cluster.Families
	if len(families) == 0 || len(families) > 2 {
		p.Add(
			yamldoc.RuleMissing,
			"ipamConfig.podSubnetCIDR",
			"",
			"%d families of networks are configured: write one network, or one IPv4 and one IPv6 network",
			len(families),
		)
		return
	}
	if len(families) == 2 && familyOf(families[0].Pods.Addr()) == familyOf(families[1].Pods.Addr()) {
		p.Add(
			RuleSameFamily,
			"ipamConfig.podSubnetCIDR",
			families[1].Pods.String(),
			"is of the same family as %s",
			families[0].Pods,
		)
		return
	}
	for i, f := range families {
		if !c.validateFamily(p, f) {
			continue
		}
		p.CheckOneNode(yamldoc.OneNode{
			Network:      f.Pods,
			Name:         "podSubnetCIDR, " + f.Pods.String(),
			NetworkField: "ipamConfig.podSubnetCIDR",
			Bits:         f.PodsOneNode,
			BitsField:    oneNodeKey(podLen, i),
			HostBits:     addrplan.PodHostBits,
			Uses:         addrplan.PodSubnetUses,
		})
		p.CheckOneNode(yamldoc.OneNode{
			Network:      f.Hosts,
			Name:         "vppHostSubnetCIDR, " + f.Hosts.String(),
			NetworkField: "ipamConfig.vppHostSubnetCIDR",
			Bits:         f.HostsOneNode,
			BitsField:    oneNodeKey(hostLen, i),
			HostBits:     2,
			Uses:         "both ends of the VPP-host link",
		})
		checkRoom(p, "vxlanCIDR", f.Vxlan, netip.Addr{})
		if f.Nodes.IsValid() {
			checkGateway(p, f)
			checkRoom(p, "nodeInterconnectCIDR", f.Nodes, f.Gateway)
		}
		c.validateOverlaps(p, f)
	}
	c.validateNodeID(p)
}

// validateFamily reports values that are not networks of the family. It returns false
// if there is one.
func (c *Config) validateFamily(p *yamldoc.Collector, f addrplan.Family) bool {
	sound := true
	for i, n := range networksOf(f) {
		name := networkNames()[i]
		if name == "nodeInterconnectCIDR" && c.IPAM.NodeInterconnectDHCP && !n.IsValid() {
			continue
		}
		rule, problem := checkPrefix(n)
		if problem == "" && familyOf(n.Addr()) != familyOf(f.Pods.Addr()) {
			rule, problem = RuleFamily, "is not of the same family as podSubnetCIDR ("+f.Pods.String()+")"
		}
		if problem != "" {
			value := ""
			if n.IsValid() {
				value = n.String()
			}
			p.Add(rule, "ipamConfig."+name, value, "%s", problem)
			sound = false
		}
	}
	return sound
}

// checkRoom reports a network that all nodes share and that has no address for a node.
func checkRoom(p *yamldoc.Collector, name string, network netip.Prefix, gateway netip.Addr) {
	if addrspace.MaxNodeAddr(network, gateway) == 0 {
		p.Add(RuleNoRoom, "ipamConfig."+name, network.String(),
			"has no room for a node: write /%d or less", network.Addr().BitLen()-2)
	}
}

func checkGateway(p *yamldoc.Collector, f addrplan.Family) {
	const field = "ipamConfig.defaultGateway"
	gw := f.Gateway
	if !gw.IsValid() {
		return
	}
	if !f.Nodes.Contains(gw) {
		p.Add(RuleGateway, field, gw.String(),
			"is outside nodeInterconnectCIDR, %s: write an address of it, or remove the key", f.Nodes)
		return
	}
	last, _ := addrspace.NthLast(f.Nodes, 0)
	switch {
	case gw == f.Nodes.Addr():
		p.Add(RuleGateway, field, gw.String(),
			"is the network address of nodeInterconnectCIDR, %s: write another address of it", f.Nodes)
	case gw == last && gw.Is4():
		p.Add(RuleGateway, field, gw.String(),
			"is the broadcast address of nodeInterconnectCIDR, %s: write another address of it", f.Nodes)
	}
}

func (c *Config) validateOverlaps(p *yamldoc.Collector, f addrplan.Family) {
	names, networks := networkNames(), networksOf(f)
	for i := range names {
		for j := i + 1; j < len(names); j++ {
			a, b, pair := networks[i], networks[j], NetworkPair{names[i], names[j]}
			if !a.IsValid() || !b.IsValid() || !a.Overlaps(b) || slices.Contains(c.Cadastre.AllowOverlap, pair) {
				continue
			}
			p.Add(RuleOverlap, "ipamConfig."+pair.A, a.String(),
				"overlaps %s, %s: give each its own addresses, or list %q in cadastre.allowOverlap",
				pair.B, b, pair)
		}
	}
}

// validateNodeID reports a pinned ID that is too large for the smallest network.
func (c *Config) validateNodeID(p *yamldoc.Collector) {
	largest, limit := ^uint32(0), ""
	for _, f := range c.IPAM.Cluster.Families {
		rooms := []uint32{
			addrspace.MaxNodePrefix(f.Pods, f.PodsOneNode), addrspace.MaxNodePrefix(f.Hosts, f.HostsOneNode),
			addrspace.MaxNodeAddr(f.Nodes, f.Gateway), addrspace.MaxNodeAddr(f.Vxlan, netip.Addr{}),
		}
		for i, room := range rooms {
			network := networksOf(f)[i]
			if network.IsValid() && room < largest {
				largest, limit = room, networkNames()[i]+" ("+network.String()+")"
			}
		}
	}
	if largest > 0 && c.Cadastre.NodeID > largest {
		p.Add(RuleNodeID, "cadastre.nodeID", strconv.FormatUint(uint64(c.Cadastre.NodeID), 10),
			"is out of range: %s has room for the IDs 1 to %d (0 claims one)", limit, largest)
	}
}

func (c *Config) validateStatic(p *yamldoc.Collector) {
	const field = "cadastre.staticPodCIDRs"
	blocks, static := c.Cadastre.StaticPodCIDRs, c.Cadastre.PodBlocks == PodBlocksStatic
	if !static {
		if len(blocks) > 0 {
			p.Add(
				RuleStaticBlocks,
				field,
				blocks[0].String(),
				"would not be used, as podBlocks is %s: write \"podBlocks: static\", or remove them",
				c.Cadastre.PodBlocks,
			)
		}
		return
	}
	for _, f := range c.IPAM.Cluster.Families {
		family := familyOf(f.Pods.Addr())
		sameFamily := func(b netip.Prefix) bool { return !b.IsValid() || familyOf(b.Addr()) == family }
		if !slices.ContainsFunc(blocks, sameFamily) {
			p.Add(RuleStaticBlocks, field, "",
				"has no %s block, but podBlocks is static: write a list, such as [\"10.9.0.0/24\"]", family)
		}
	}
	for i := range blocks {
		c.validateBlock(p, field+"["+strconv.Itoa(i)+"]", i)
	}
}

// validateBlock checks static block number i against the networks and the blocks before it.
func (c *Config) validateBlock(p *yamldoc.Collector, field string, i int) {
	b := c.Cadastre.StaticPodCIDRs[i]
	if rule, problem := checkPrefix(b); problem != "" {
		p.Add(rule, field, b.String(), "%s", problem)
		return
	}
	if addrplan.Capacity(b) == 0 {
		p.Add(RuleStaticBlocks, field, b.String(), "has no room for a pod: write /%d or less", b.Addr().BitLen()-3)
	}
	families := c.IPAM.Cluster.Families
	known := func(f addrplan.Family) bool { return familyOf(f.Pods.Addr()) == familyOf(b.Addr()) }
	if len(families) > 0 && !slices.ContainsFunc(families, known) {
		p.Add(
			RuleStaticBlocks,
			field,
			b.String(),
			"is %s, but ipamConfig.podSubnetCIDR names no %s network",
			familyOf(b.Addr()),
			familyOf(b.Addr()),
		)
	}
	for j, other := range c.Cadastre.StaticPodCIDRs[:i] {
		if b.Overlaps(other) {
			p.Add(RuleStaticBlocks, field, b.String(), "overlaps staticPodCIDRs[%d], %s", j, other)
		}
	}
	for _, f := range families {
		for k, n := range networksOf(f)[1:] { // podSubnetCIDR may contain them
			if n.IsValid() && b.Overlaps(n) {
				p.Add(
					RuleStaticBlocks,
					field,
					b.String(),
					"overlaps %s, %s: give each its own addresses",
					networkNames()[k+1],
					n,
				)
			}
		}
	}
}
