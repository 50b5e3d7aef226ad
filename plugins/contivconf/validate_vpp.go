// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Limits of the keys of VPP.
const (
	// maxVRF is below the tables of custom networks.
	maxVRF  = 0x0BFFFFFF
	maxRing = 32768
)

// validateVPP checks what dataplane vpp needs, and reports keys that it cannot use.
func (c *Config) validateVPP(p *yamldoc.Collector) {
	d := &c.Cadastre
	if d.Dataplane != DataplaneVPP {
		return
	}
	d.VPP.validate(p)
	d.validateBesideVPP(p)
	if c.IPAM.NodeInterconnectDHCP {
		p.Add(RuleDataplane, "ipamConfig.nodeInterconnectDHCP", "true",
			"is not possible with dataplane vpp, whose address other nodes must know: remove it, and set nodeInterconnectCIDR")
	}
	for i, n := range c.NodeConfigs {
		c.validateVPPNode(p, "nodeConfig["+strconv.Itoa(i)+"].", n)
	}
}

func (v VPP) validate(p *yamldoc.Collector) {
	const section = "cadastre.vpp."
	oneOf(p, section+"podLink", v.PodLink, VPPLinkAFPacket, VPPLinkMemif)
	oneOf(p, "interfaceRxMode", v.RxMode, VPPRxDefault, VPPRxPolling, VPPRxInterrupt, VPPRxAdaptive)
	for _, f := range []struct{ key, value, such string }{
		{"socket", v.Socket, defaultVPPSocket},
		{"memifDir", v.MemifDir, defaultVPPMemifDir},
	} {
		if !filepath.IsAbs(f.value) {
			p.Add(RuleDataplane, section+f.key, f.value, "is not an absolute path: write one such as %s", f.such)
		}
	}
	for _, f := range []struct {
		key   string
		value int
	}{{"tapv2RxRingSize", v.RxRing}, {"tapv2TxRingSize", v.TxRing}} {
		if n := f.value; n > maxRing || n&(n-1) != 0 {
			p.Add(RuleRange, f.key, strconv.Itoa(n),
				"is not a size of a ring: write a power of two up to %d, or 0 for VPP's default", maxRing)
		}
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
	main := InterfaceConfig(n.MainVPPInterface)
	if main.UseDHCP && main.IP == "" {
		p.Add(RuleDataplane, section+"mainVPPInterface.useDHCP", "true",
			"is not possible with dataplane vpp, whose address other nodes must know: "+
				"remove it for the address that follows from the node ID, or write mainVPPInterface.ip")
	}
	checkVPPLink(p, section+"mainVPPInterface.interfaceName", main.InterfaceName, false)
	for i, o := range n.OtherVPPInterfaces {
		field := section + "otherVPPInterfaces[" + strconv.Itoa(i) + "]."
		checkVPPLink(p, field+"interfaceName", o.InterfaceName, true)
		if o.InterfaceName != "" && o.InterfaceName == main.InterfaceName {
			p.Add(RuleDataplane, field+"interfaceName", o.InterfaceName, "is mainVPPInterface as well: remove one of the two")
		}
		if o.UseDHCP {
			p.Add(RuleDataplane, field+"useDHCP", "true", "is not possible with dataplane vpp: remove it, and write ip")
		}
		if _, err := netip.ParsePrefix(o.IP); err != nil && o.IP != "" {
			p.Add(yamldoc.RuleCIDR, field+"ip", o.IP,
				"is not an address with the length of its network: write one such as 10.3.0.1/24")
		}
	}
	c.validateVPPGateway(p, section, n)
}

func checkVPPLink(p *yamldoc.Collector, field, name string, needed bool) {
	switch {
	case name == "" && needed:
		p.Add(yamldoc.RuleMissing, field, "", "is empty: write the name of a link of the node, such as eth1")
	case name != "" && !isLinkName(name):
		p.Add(RuleDataplane, field, name, "is not the name of a link: VPP takes links of the node's kernel with AF_PACKET; "+
			"write the name of one, of at most %d characters, such as eth1", maxLinkName)
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
