// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// tolerable reports whether an agent that has worked with such a configuration goes on
// with it: its leases would not get better by its end. See LoadInUse.
func (r Rule) tolerable() bool { return r == RuleReserved || r == RuleCollision }

// validateAddresses reports reserved networks, and single addresses that another part
// of the configuration gives away too. What follows from networks is known only where
// these are sound.
func (c *Config) validateAddresses(p *problems) {
	sound := len(p.list) == 0
	reserved := func(field, text string, n netip.Prefix) {
		if n.IsValid() && !n.Addr().Is4In6() {
			if err := addrspace.CheckUsable(n); err != nil {
				p.add(RuleReserved, field, text, "%s", err)
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
		reserved("cadastre.staticPodCIDRs["+decimal(i)+"]", b.String(), b)
	}
	for i, x := range c.Cadastre.Docker.Pools {
		base, _ := netip.ParsePrefix(x.Base)
		reserved("cadastre.docker.pools["+decimal(i)+"].base", x.Base, base)
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
			continue // of a segment that Cadastre does not know
		}
		c.validateOwner(p, s)
		if other, twice := first[s.addr]; twice {
			p.add(RuleCollision, s.field, s.text, "is the address of %s too: write another one", other)
		} else {
			first[s.addr] = s.field
		}
	}
}

// static is an address under nodeConfig.
type static struct {
	field, text string
	addr        netip.Addr
	network     netip.Prefix // what the address is of, the zero Prefix for a gateway
	kind        staticKind
}

type staticKind int

const (
	mainOf staticKind = iota // the address by which other nodes reach the node
	otherOf
	gatewayOf
)

// statics are the addresses under nodeConfig that can be read.
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
		at := "nodeConfig[" + decimal(i) + "]."
		add(at+"mainVPPInterface.ip", n.MainVPPInterface.IP, mainOf)
		for j, o := range n.OtherVPPInterfaces {
			add(at+"otherVPPInterfaces["+decimal(j)+"].ip", o.IP, otherOf)
		}
		add(at+"gateway", n.Gateway, gatewayOf)
	}
	return all
}

// validateAddress reports an address that pods, VPP-host links, VXLAN interfaces or
// services have.
func (c *Config) validateAddress(p *problems, field, text string, a netip.Addr) {
	for i, b := range c.Cadastre.StaticPodCIDRs {
		if b.Contains(a) {
			p.add(RuleCollision, field, text, "is an address of cadastre.staticPodCIDRs[%d], %s, which is for pods: write an address outside of it", i, b)
		}
	}
	most := c.IPAM.Cluster.MaxNodeID()
	for _, f := range c.IPAM.Cluster.Families {
		for i, n := range networksOf(f) {
			name := networkNames()[i]
			if name == "nodeInterconnectCIDR" || !n.IsValid() || !n.Contains(a) {
				continue
			}
			id, derived := f.NodeWithin(name, a)
			isPods := name == "podSubnetCIDR"
			switch {
			case derived && id <= most && (!isPods || c.Cadastre.PodBlocks == PodBlocksNodeID):
				p.add(RuleCollision, field, text, "is an address that node ID %d has of %s, %s: write an address outside of it", id, name, n)
			case !c.allows(name, "nodeInterconnectCIDR"):
				p.add(RuleCollision, field, text, "is an address of %s, %s, which is not for nodes: write an address outside of it", name, n)
			}
		}
	}
}

func (c *Config) allows(a, b string) bool {
	return slices.Contains(c.Cadastre.AllowOverlap, NetworkPair{a, b}) || slices.Contains(c.Cadastre.AllowOverlap, NetworkPair{b, a})
}

// validateOwner reports an address of a node that is the gateway's, or no host's.
func (c *Config) validateOwner(p *problems, s static) {
	for _, f := range c.IPAM.Cluster.Families {
		if f.Gateway == s.addr {
			p.add(RuleCollision, s.field, s.text, "is the address of ipamConfig.defaultGateway: write another one")
		}
	}
	last, _ := addrspace.NthLast(s.network, 0)
	switch hostBits := s.addr.BitLen() - s.network.Bits(); {
	case hostBits < 2: // a link of two, or a host route
	case s.addr == s.network.Addr():
		p.add(RuleCollision, s.field, s.text, "is the address of the network %s itself: write another address of it", s.network)
	case s.addr == last && s.addr.Is4():
		p.add(RuleCollision, s.field, s.text, "is the broadcast address of %s: write another address of it", s.network)
	}
}

// DerivedTwice returns a FieldError for each address under nodeConfig that follows from
// a node ID as well. A running cluster copes: the nodes claim their addresses in the
// store, and the one that comes second waits. A plan should not rely on it.
func (c *Config) DerivedTwice() []*FieldError {
	var p problems
	most := c.IPAM.Cluster.MaxNodeID()
	for _, s := range c.statics() {
		for _, f := range c.IPAM.Cluster.Families {
			id, derived := f.NodeWithin("nodeInterconnectCIDR", s.addr)
			switch {
			case !derived || id > most || id == c.Cadastre.NodeID:
			case s.kind == gatewayOf:
				p.add(RuleCollision, s.field, s.text, "is the address that node ID %d gets from nodeInterconnectCIDR, %s: write it as ipamConfig.defaultGateway, which no node gets", id, f.Nodes)
			default:
				p.add(RuleCollision, s.field, s.text, "is the address that node ID %d gets from nodeInterconnectCIDR, %s: write an address outside of it, or a longer prefix there", id, f.Nodes)
			}
		}
	}
	return p.list
}
