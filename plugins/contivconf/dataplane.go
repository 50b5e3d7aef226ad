// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Dataplane selects the program that makes the pods' links.
type Dataplane string

// The dataplanes.
const (
	DataplaneNone  Dataplane = "none"  // the main plugin of the CNI list makes the links
	DataplaneLinux Dataplane = "linux" // the agent makes them in the node's kernel
	DataplaneVPP   Dataplane = "vpp"   // the agent of module vpp/ makes them in VPP
)

// MakesLinks reports whether the agent makes the pods' links.
func (d Dataplane) MakesLinks() bool { return d != DataplaneNone }

// IsOther reports whether a program must bring the data plane.
func (d Dataplane) IsOther() bool { return d != DataplaneNone && d != DataplaneLinux }

// Transport selects the way of packets to the pods of other nodes.
type Transport string

// The transports. VXLAN needs a data plane, WireGuard DataplaneLinux.
const (
	TransportNone      Transport = "none"      // the agent makes no routes to other nodes
	TransportNodeIP    Transport = "nodeip"    // routes via the underlay addresses of the other nodes
	TransportHostGW    Transport = "hostgw"    // routes via the other nodes' addresses in nodeInterconnectCIDR
	TransportVXLAN     Transport = "vxlan"     // VXLAN between the underlay addresses
	TransportWireGuard Transport = "wireguard" // WireGuard between the underlay addresses
)

// IsTunnel reports whether packets between nodes are wrapped.
func (t Transport) IsTunnel() bool { return t == TransportVXLAN || t == TransportWireGuard }

// Underlay selects this node's address in the network that connects the nodes. The zero
// Underlay leaves the choice to the agent: the Node's InternalIP, or the address on the
// link of the default route.
type Underlay struct {
	Interface string         // name of the link with the address
	CIDRs     []netip.Prefix // networks of which one contains the address
}

// CNI configures the CNI list that the agent writes.
type CNI struct {
	ConfDir string `json:"confDir"` // folder of the list; empty: the agent writes no list
	Network string `json:"network"` // name of the network in the list
	BinDir  string `json:"binDir"`  // folder of the runtime's plugins: portmap is in the list if it is there
}

// Limits of the values.
const (
	// defaultVNI is the VNI with which Contiv-VPP connects the pods of all nodes.
	defaultVNI  = 10
	maxVNI      = 1<<24 - 1
	maxMTU      = 65535
	minMTUIPv4  = 576
	minMTUIPv6  = 1280
	maxLinkName = 15
)

// underlay returns the typed underlay.
func (r *reading) underlay() Underlay {
	raw := r.raw.Cadastre.Underlay
	u := Underlay{Interface: raw.Interface}
	for i, s := range raw.CIDRs {
		if p, ok := r.prefix("cadastre.underlay.cidrs["+strconv.Itoa(i)+"]", s); ok {
			u.CIDRs = append(u.CIDRs, p)
		}
	}
	return u
}

// validateDataplane checks the keys of the dataplane one by one and together.
func (c *Config) validateDataplane(p *yamldoc.Collector) {
	d := &c.Cadastre
	oneOf(p, "cadastre.dataplane", d.Dataplane, DataplaneNone, DataplaneLinux, DataplaneVPP)
	oneOf(p, "cadastre.transport", d.Transport,
		TransportNone, TransportNodeIP, TransportHostGW, TransportVXLAN, TransportWireGuard)
	d.Underlay.validate(p)
	d.CNI.validate(p)
	c.validateMTU(p)
	d.validateTable(p)
	checkNumber(p, "cadastre.vni", int(d.VNI), 1, maxVNI)
	d.validateUnusedDataplane(p)
	c.validateVPP(p)
}

// validateUnusedDataplane reports keys that nothing would use.
func (c *Cadastre) validateUnusedDataplane(p *yamldoc.Collector) {
	const linux = "write \"dataplane: linux\", or "
	if c.Dataplane != DataplaneVPP && c.VPP.isGiven() {
		p.Add(RuleDataplane, "cadastre.vpp", "",
			"would not be used, as dataplane is %s: write \"dataplane: vpp\", or remove it", c.Dataplane)
	}
	if c.Underlay.isGiven() && c.Transport == TransportNone && c.Dataplane != DataplaneVPP {
		p.Add(RuleDataplane, "cadastre.underlay", "",
			"would not be used, as transport is none: write \"transport: vxlan\", or remove it")
	}
	if c.VNI != defaultVNI && c.Transport != TransportVXLAN {
		p.Add(RuleDataplane, "cadastre.vni", strconv.FormatUint(uint64(c.VNI), 10),
			"would not be used, as transport is %s: write \"transport: vxlan\", or remove it", c.Transport)
	}
	if c.Dataplane != DataplaneNone {
		return
	}
	if c.Transport.IsTunnel() {
		p.Add(RuleDataplane, "cadastre.transport", string(c.Transport),
			"needs the links of dataplane linux, but dataplane is none: %snodeip, hostgw or none", linux)
	}
	for _, x := range []struct {
		key, value string
		given      bool
	}{
		{"mtu", strconv.Itoa(c.MTU), c.MTU != 0},
		{"allowForward", "true", c.AllowForward},
		{"cni.confDir", c.CNI.ConfDir, c.CNI.ConfDir != ""},
	} {
		if x.given {
			p.Add(
				RuleDataplane,
				"cadastre."+x.key,
				x.value,
				"would not be used, as dataplane is none: %sremove it",
				linux,
			)
		}
	}
}

// validateMTU checks the MTU against the smallest one of each family of the pods.
func (c *Config) validateMTU(p *yamldoc.Collector) {
	least := minMTUIPv4
	for _, f := range c.IPAM.Cluster.Families {
		if f.Pods.Addr().Is6() {
			least = minMTUIPv6
		}
	}
	if mtu := c.Cadastre.MTU; mtu != 0 {
		checkNumber(p, "cadastre.mtu", mtu, least, maxMTU)
	}
}

func (u Underlay) isGiven() bool { return u.Interface != "" || len(u.CIDRs) > 0 }

func (u Underlay) validate(p *yamldoc.Collector) {
	const section = "cadastre.underlay."
	if u.Interface != "" && !isLinkName(u.Interface) {
		p.Add(RuleUnderlay, section+"interface", u.Interface,
			"is not the name of a link: write one of at most %d characters, such as eth0", maxLinkName)
	}
	for i, n := range u.CIDRs {
		field := section + "cidrs[" + strconv.Itoa(i) + "]"
		if rule, problem := checkPrefix(n); problem != "" {
			p.Add(rule, field, n.String(), "%s", problem)
		} else if slices.Contains(u.CIDRs[:i], n) {
			p.Add(RuleUnderlay, field, n.String(), "is given twice: keep one")
		}
	}
}

// isLinkName reports whether Linux accepts s as the name of a link.
func isLinkName(s string) bool {
	return s != "." && s != ".." && len(s) <= maxLinkName && !strings.ContainsAny(s, "/: \t\n\v\f\r")
}

func (c CNI) validate(p *yamldoc.Collector) {
	const section = "cadastre.cni."
	if c.ConfDir != "" && !filepath.IsAbs(c.ConfDir) {
		p.Add(RuleCNI, section+"confDir", c.ConfDir, "is not an absolute path: write one such as /etc/cni/net.d")
	}
	if !filepath.IsAbs(c.BinDir) {
		p.Add(RuleCNI, section+"binDir", c.BinDir, "is not an absolute path: write one such as /opt/cni/bin")
	}
	if !isNetworkName(c.Network) {
		p.Add(RuleCNI, section+"network", c.Network,
			"is not the name of a CNI network: write letters, digits, '.', '_' and '-', such as cadastre")
	}
}

// isNetworkName reports whether CNI accepts s as the name of a network.
func isNetworkName(s string) bool {
	isAlnum := func(r rune) bool { return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
	for i, r := range s {
		if !isAlnum(r) && (i == 0 || !strings.ContainsRune("._-", r)) {
			return false
		}
	}
	return s != ""
}
