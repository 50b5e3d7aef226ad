// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// validateAddresses reports reserved networks, and single addresses that another part
// of the configuration assigns too. It checks addresses against networks only if the
// networks are sound.
func (c *Config) validateAddresses(p *yamldoc.Collector) {
	sound := len(p.Problems) == 0
	reserved := func(field, text string, n netip.Prefix) {
		if n.IsValid() && !n.Addr().Is4In6() {
			if err := addrspace.CheckUsable(n); err != nil {
				p.Add(RuleReserved, field, text, "%s", err)
			}
		}
	}
	for _, f := range c.IPAM.Cluster.Families {
		for i, n := range networksOf(f) {
			reserved("ipamConfig."+networkNames()[i], n.String(), n)
		}
		if f.Gateway.IsValid() && sound {
			c.validateAddress(p, "ipamConfig.defaultGateway", f.Gateway.String(), f.Gateway)
		}
	}
	for i, b := range c.Cadastre.StaticPodCIDRs {
		reserved("cadastre.staticPodCIDRs["+strconv.Itoa(i)+"]", b.String(), b)
	}
	for i, x := range c.Cadastre.Docker.Pools {
		base, _ := netip.ParsePrefix(x.Base)
		reserved("cadastre.docker.pools["+strconv.Itoa(i)+"].base", x.Base, base)
	}
	first := map[netip.Addr]string{}
	for _, s := range c.statics() {
		if s.kind == gatewayOf && s.addr.Is6() && s.addr.IsLinkLocalUnicast() {
			continue // a router's own address
		}
		reserved(s.field, s.text, netip.PrefixFrom(s.addr, s.addr.BitLen()))
		if sound {
			c.validateAddress(p, s.field, s.text, s.addr)
		}
		if s.kind != mainOf {
			continue // it belongs to a segment that Cadastre does not know
		}
		c.validateOwner(p, s)
		if other, twice := first[s.addr]; twice {
			p.Add(RuleCollision, s.field, s.text, "is the address of %s too: write another one", other)
		} else {
			first[s.addr] = s.field
		}
	}
}

// static holds an address under nodeConfig.
type static struct {
	field, text string
	addr        netip.Addr
	network     netip.Prefix // of the address; the zero Prefix for a gateway
	kind        staticKind
}

type staticKind int

const (
	mainOf staticKind = iota // the address by which other nodes reach the node
	otherOf
	gatewayOf
)

// statics returns the addresses under nodeConfig that can be read.
func (c *Config) statics() (all []static) {
	add := func(field, text string, kind staticKind) {
		n, err := netip.ParsePrefix(text)
		a := n.Addr()
		if err != nil {
			if a, err = netip.ParseAddr(text); err != nil || kind != gatewayOf {
				return
			}
		}
		all = append(all, static{field, text, a.Unmap().WithZone(""), n.Masked(), kind})
	}
	for i, n := range c.NodeConfigs {
		at := "nodeConfig[" + strconv.Itoa(i) + "]."
		add(at+"mainVPPInterface.ip", n.MainVPPInterface.IP, mainOf)
		for j, o := range n.OtherVPPInterfaces {
			add(at+"otherVPPInterfaces["+strconv.Itoa(j)+"].ip", o.IP, otherOf)
		}
		add(at+"gateway", n.Gateway, gatewayOf)
	}
	return all
}

// validateAddress reports an address that pods, VPP-host links, VXLAN interfaces or
// services have.
func (c *Config) validateAddress(p *yamldoc.Collector, field, text string, a netip.Addr) {
	for i, b := range c.Cadastre.StaticPodCIDRs {
		if b.Contains(a) {
			p.Add(
				RuleCollision,
				field,
				text,
				"is an address of cadastre.staticPodCIDRs[%d], %s, which is for pods: write an address outside of it",
				i,
				b,
			)
		}
	}
	limit := c.IPAM.Cluster.MaxNodeID()
	for _, f := range c.IPAM.Cluster.Families {
		for i, n := range networksOf(f) {
			name := networkNames()[i]
			if name == "nodeInterconnectCIDR" || !n.IsValid() || !n.Contains(a) {
				continue
			}
			id, derived := f.NodeWithin(name, a)
			isPods := name == "podSubnetCIDR"
			switch {
			case derived && id <= limit && (!isPods || c.Cadastre.PodBlocks == PodBlocksNodeID):
				p.Add(RuleCollision, field, text,
					"is an address that node ID %d has of %s, %s: write an address outside of it", id, name, n)
			case !c.allows(name, "nodeInterconnectCIDR"):
				p.Add(RuleCollision, field, text,
					"is an address of %s, %s, which is not for nodes: write an address outside of it", name, n)
			}
		}
	}
}

func (c *Config) allows(a, b string) bool {
	allowed := c.Cadastre.AllowOverlap
	return slices.Contains(allowed, NetworkPair{a, b}) || slices.Contains(allowed, NetworkPair{b, a})
}

// validateOwner reports an address of a node that is the gateway's, or not a host's.
func (c *Config) validateOwner(p *yamldoc.Collector, s static) {
	for _, f := range c.IPAM.Cluster.Families {
		if f.Gateway == s.addr {
			p.Add(RuleCollision, s.field, s.text, "is the address of ipamConfig.defaultGateway: write another one")
		}
	}
	last, _ := addrspace.NthLast(s.network, 0)
	switch hostBits := s.addr.BitLen() - s.network.Bits(); {
	case hostBits < 2: // a link of two, or a host route
	case s.addr == s.network.Addr():
		p.Add(RuleCollision, s.field, s.text,
			"is the address of the network %s itself: write another address of it", s.network)
	case s.addr == last && s.addr.Is4():
		p.Add(RuleCollision, s.field, s.text,
			"is the broadcast address of %s: write another address of it", s.network)
	}
}

// DerivedTwice returns a problem for each address under nodeConfig that follows from a
// node ID as well. A running cluster tolerates it: the nodes claim their addresses in
// the store, and the second one waits. A plan should not rely on it.
func (c *Config) DerivedTwice() yamldoc.Problems {
	var p yamldoc.Collector
	limit := c.IPAM.Cluster.MaxNodeID()
	for _, s := range c.statics() {
		for _, f := range c.IPAM.Cluster.Families {
			id, derived := f.NodeWithin("nodeInterconnectCIDR", s.addr)
			switch {
			case !derived || id > limit || id == c.Cadastre.NodeID:
			case s.kind == gatewayOf:
				p.Add(
					RuleCollision,
					s.field,
					s.text,
					"is the address that node ID %d gets from nodeInterconnectCIDR, %s: write it as ipamConfig.defaultGateway, which no node gets",
					id,
					f.Nodes,
				)
			default:
				p.Add(
					RuleCollision,
					s.field,
					s.text,
					"is the address that node ID %d gets from nodeInterconnectCIDR, %s: write an address outside of it, or a longer prefix there",
					id,
					f.Nodes,
				)
			}
		}
	}
	return p.Problems
}
