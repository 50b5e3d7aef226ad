// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// maxVRF is below the tables of custom networks.
const maxVRF = 0x0BFFFFFF

// validateVPP checks what dataplane vpp needs, and reports keys that it cannot use.
func (c *Config) validateVPP(p *yamldoc.Collector) {
	d := &c.Cadastre
	if d.Dataplane != DataplaneVPP {
		return
	}
	d.VPP.validate(p)
	d.validateBesideVPP(p)
	if c.IPAM.NodeInterconnectDHCP {
		p.Add(
			RuleDataplane,
			"ipamConfig.nodeInterconnectDHCP",
			"true",
			"is not possible with dataplane vpp, whose address other nodes must know: remove it, and set nodeInterconnectCIDR",
		)
	}
	for i, n := range c.NodeConfigs {
		c.validateVPPNode(p, "nodeConfig["+strconv.Itoa(i)+"].", n)
	}
}

func (v VPP) validate(p *yamldoc.Collector) {
	const section = "cadastre.vpp."
	checkVPPLink(p, section+"interface", v.Interface)
	if !filepath.IsAbs(v.Socket) {
		p.Add(
			RuleDataplane,
			section+"socket",
			v.Socket,
			"is not an absolute path: write one such as %s",
			defaultVPPSocket,
		)
	}
}

// validateBesideVPP reports values of keys that need the network of the kernel.
func (c *Cadastre) validateBesideVPP(p *yamldoc.Collector) {
	const or = ", or \"dataplane: linux\""
	switch c.Transport {
	case TransportWireGuard:
		p.Add(RuleDataplane, "cadastre.transport", string(c.Transport),
			"needs the network of the kernel, but dataplane is vpp: write vxlan or hostgw"+or)
	case TransportNodeIP:
		p.Add(RuleDataplane, "cadastre.transport", string(c.Transport),
			"needs the network of the kernel, but dataplane is vpp: write hostgw, as VPP has the nodes' addresses in "+
				"nodeInterconnectCIDR"+or)
	}
	if c.PodBlocks == PodBlocksInterfaces {
		p.Add(RuleDataplane, "cadastre.podBlocks", string(c.PodBlocks),
			"needs routing rules of the kernel, but dataplane is vpp: write nodeid or podcidr"+or)
	}
	if c.Underlay.isGiven() {
		p.Add(RuleDataplane, "cadastre.underlay", "",
			"would not be used, as dataplane is vpp: remove it, and name the link in nodeConfig[].mainVPPInterface")
	}
	if c.AllowForward {
		p.Add(RuleDataplane, "cadastre.allowForward", "true",
			"would not be used, as dataplane is vpp, whose packets do not pass the FORWARD chain: remove it")
	}
}

// validateVPPNode checks a node's entry: VPP takes links of the node by their names in the
// kernel.
func (c *Config) validateVPPNode(p *yamldoc.Collector, section string, n NodeConfig) {
	main := n.MainVPPInterface
	if main.UseDHCP && main.IP == "" {
		p.Add(RuleDataplane, section+"mainVPPInterface.useDHCP", "true",
			"is not possible with dataplane vpp, whose address other nodes must know: "+
				"remove it for the address that follows from the node ID, or write mainVPPInterface.ip")
	}
	checkVPPLink(p, section+"mainVPPInterface.interfaceName", main.InterfaceName)
	c.validateVPPGateway(p, section, n)
}

// checkVPPLink reports a name that no link of the kernel has, such as one of DPDK.
func checkVPPLink(p *yamldoc.Collector, field, name string) {
	if name != "" && !isLinkName(name) {
		p.Add(
			RuleDataplane,
			field,
			name,
			"is not the name of a link: VPP takes a link of the node's kernel with AF_PACKET; "+
				"write the name of one, of at most %d characters, such as eth1",
			maxLinkName,
		)
	}
}

// validateVPPGateway checks a gateway against the network of the main interface.
func (c *Config) validateVPPGateway(p *yamldoc.Collector, section string, n NodeConfig) {
	if n.Gateway == "" {
		return
	}
	gw, err := netip.ParseAddr(n.Gateway)
	if err != nil {
		p.Add(RuleGateway, section+"gateway", n.Gateway, "is not an address: write one such as 192.168.16.100")
		return
	}
	var networks []netip.Prefix
	for _, f := range c.IPAM.Cluster.Families {
		if f.Nodes.IsValid() {
			networks = append(networks, f.Nodes)
		}
	}
	if own, err := netip.ParsePrefix(n.MainVPPInterface.IP); err == nil {
		networks = []netip.Prefix{own.Masked()}
	}
	for _, net := range networks {
		if net.Contains(gw) {
			return
		}
	}
	p.Add(RuleGateway, section+"gateway", n.Gateway,
		"is not in the network of the node's main interface (%v): write an address of it", networks)
}
