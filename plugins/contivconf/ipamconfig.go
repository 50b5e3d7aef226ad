// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// IPAMConfig holds the section "ipamConfig".
type IPAMConfig struct {
	UseExternalIPAM      bool // the same as PodBlocks being podcidr
	NodeInterconnectDHCP bool // node addresses come from DHCP: no family has Nodes or a Gateway
	// ContivCIDR holds the network of each family that the others are taken from;
	// empty if they are named one by one.
	ContivCIDR []netip.Prefix
	// Cluster holds the networks from which every node's addresses follow.
	Cluster addrplan.Cluster
}

// Defaults of the one-node prefix lengths.
const (
	defaultLenIPv4 = 24
	defaultLenIPv6 = 64
)

func (r *reading) ipam() *IPAMConfig {
	raw := &r.raw.IPAM
	raw.ContivCIDR = strings.TrimSpace(raw.ContivCIDR)
	c := &IPAMConfig{UseExternalIPAM: raw.UseExternalIPAM, NodeInterconnectDHCP: raw.NodeInterconnectDHCP}
	var base listing
	if raw.ContivCIDR == "" {
		base = r.oneByOne(c)
	} else {
		base = r.fromContivCIDR(c)
	}
	families := c.Cluster.Families
	for i, p := range r.lineUp(base, r.networks("serviceCIDR", raw.ServiceCIDR)) {
		families[i].Service = p
	}
	r.nodeNetworks(c, base)
	if len(families) < 2 {
		r.idle("podSubnetOneNodePrefixLenIPv6", "vppHostSubnetOneNodePrefixLenIPv6")
	}
	return c
}

// oneByOne takes the networks from their own keys. The families are those of
// podSubnetCIDR.
func (r *reading) oneByOne(c *IPAMConfig) listing {
	raw := &r.raw.IPAM
	pods := r.networks("podSubnetCIDR", raw.PodSubnetCIDR)
	hosts, vxlan := r.networks("vppHostSubnetCIDR", raw.VPPHostSubnetCIDR), r.networks("vxlanCIDR", raw.VxlanCIDR)
	if pods.bad {
		return pods
	}
	hostNets, vxlanNets := r.lineUp(pods, hosts), r.lineUp(pods, vxlan)
	for i, p := range pods.prefixes {
		c.Cluster.Families = append(c.Cluster.Families, addrplan.Family{
			Pods:        p,
			PodsOneNode: r.oneNode(podLen, i, p, raw.PodSubnetOneNodePrefixLen, raw.PodSubnetOneNodePrefixLenIPv6),
			Hosts:       hostNets[i],
			HostsOneNode: r.oneNode(
				hostLen,
				i,
				p,
				raw.VPPHostSubnetOneNodePrefixLen,
				raw.VPPHostSubnetOneNodePrefixLenIPv6,
			),
			Vxlan: vxlanNets[i],
		})
	}
	return pods
}

const (
	podLen  = "podSubnetOneNodePrefixLen"
	hostLen = "vppHostSubnetOneNodePrefixLen"
)

// oneNodeKey returns the key of the one-node prefix length of family number i.
func oneNodeKey(key string, i int) string {
	if i > 0 {
		key += "IPv6"
	}
	return "ipamConfig." + key
}

// oneNode returns the one-node prefix length of family number i. The default depends
// on the family of p, not on the name of the key.
func (r *reading) oneNode(key string, i int, p netip.Prefix, first, other uint8) int {
	switch {
	case !r.Given[oneNodeKey(key, i)] && p.Addr().Is4():
		return defaultLenIPv4
	case !r.Given[oneNodeKey(key, i)]:
		return defaultLenIPv6
	case i > 0:
		return int(other)
	}
	return int(first)
}

// fromContivCIDR takes the networks from contivCIDR, which overrides the keys that
// name them one by one.
func (r *reading) fromContivCIDR(c *IPAMConfig) listing {
	raw := &r.raw.IPAM
	// Contiv requires these to parse even if it does not use them.
	r.networks("podSubnetCIDR", raw.PodSubnetCIDR)
	r.networks("vppHostSubnetCIDR", raw.VPPHostSubnetCIDR)
	r.networks("vxlanCIDR", raw.VxlanCIDR)
	r.idle("podSubnetCIDR", "vppHostSubnetCIDR", "vxlanCIDR", podLen, hostLen, podLen+"IPv6", hostLen+"IPv6")

	contiv := r.networks("contivCIDR", withoutHostBits(raw.ContivCIDR))
	if contiv.bad {
		return contiv
	}
	for _, p := range contiv.prefixes {
		f, err := addrplan.FromContivCIDR(p)
		if small, ok := fromSmallContivCIDR(p); ok {
			f, err = small, nil
			r.explain(contiv.key, "has the size of September 2018: "+networksText(f))
		}
		if err != nil {
			r.Add(RuleContivCIDR, contiv.key, p.String(),
				"is too small: at least 18 host bits are needed, so /%d or less", p.Addr().BitLen()-18)
			contiv.bad = true
		}
		c.Cluster.Families = append(c.Cluster.Families, f)
	}
	if contiv.bad {
		c.Cluster.Families = nil
		return contiv
	}
	c.ContivCIDR = contiv.prefixes
	return contiv
}

// nodeNetworks sets the node interconnect and its gateways. DHCP precedes
// nodeInterconnectCIDR in the file, which precedes contivCIDR and the default.
func (r *reading) nodeNetworks(c *IPAMConfig, base listing) {
	raw, families := &r.raw.IPAM, c.Cluster.Families
	gateways := r.gateways(raw.DefaultGateway)
	explicit := r.Given["ipamConfig.nodeInterconnectCIDR"] && strings.TrimSpace(raw.NodeInterconnectCIDR) != ""
	if c.NodeInterconnectDHCP {
		if explicit {
			r.networks("nodeInterconnectCIDR", raw.NodeInterconnectCIDR)
		}
		for i := range families {
			families[i].Nodes = netip.Prefix{}
		}
		r.idle("nodeInterconnectCIDR", "defaultGateway")
		return
	}
	if explicit || raw.ContivCIDR == "" {
		for i, p := range r.lineUp(base, r.networks("nodeInterconnectCIDR", raw.NodeInterconnectCIDR)) {
			families[i].Nodes = p
		}
	}
	for _, gw := range gateways {
		i := slices.IndexFunc(families, func(f addrplan.Family) bool {
			return familyOf(f.Pods.Addr()) == familyOf(gw)
		})
		if i >= 0 {
			families[i].Gateway = gw
		} else if len(families) > 0 {
			r.Add(RuleFamily, "ipamConfig.defaultGateway", gw.String(),
				"is an %s address, but %s names no %s network: remove it, or add the network",
				familyOf(gw), base, familyOf(gw))
		}
	}
}

// idle marks keys of ipamConfig that another key overrides as unused.
func (r *reading) idle(keys ...string) {
	for _, key := range keys {
		if key = "ipamConfig." + key; r.Given[key] {
			r.ignore(key, "another key overrides it")
		}
	}
}

// explainDefaults adds to the problems of values that are not in the file where the
// values come from.
func (r *reading) explainDefaults() {
	derived := []string{"podSubnetCIDR", "vppHostSubnetCIDR", "vxlanCIDR", "nodeInterconnectCIDR"}
	for i := range r.Problems {
		e := &r.Problems[i]
		key, ok := strings.CutPrefix(e.Field, "ipamConfig.")
		switch {
		case !ok || e.Value == "" || r.Given[e.Field]:
		case r.raw.IPAM.ContivCIDR == "" || !slices.Contains(derived, key):
			e.Text += " (" + e.Value + " is the default)"
		default:
			e.Text += " (" + e.Value + " is cut from contivCIDR, " + r.raw.IPAM.ContivCIDR + ")"
		}
	}
}

// String returns the listing as messages about another one name it.
func (l listing) String() string {
	if l.isDefault {
		return l.key + " (" + l.text + ", the default)"
	}
	return l.key + " (" + l.text + ")"
}

// lineUp returns the networks of l, one for each of base. If the families do not
// match it reports that and returns zero Prefixes. It returns nil if base is bad.
func (r *reading) lineUp(base, l listing) []netip.Prefix {
	if base.bad {
		return nil
	}
	none := make([]netip.Prefix, len(base.prefixes))
	if l.bad {
		return none
	}
	missing, surplus := lacking(l, base), lacking(base, l)
	switch {
	case missing != "":
		r.Add(RuleFamily, l.key, l.text,
			"has no %s network, but %s has one: name the same families in the same order", missing, base)
		return none
	case surplus != "":
		r.Add(RuleFamily, l.key, l.text,
			"has an %s network, but %s has none: name the same families in the same order", surplus, base)
		return none
	case l.prefixes[0].Addr().Is4() != base.prefixes[0].Addr().Is4():
		r.Add(RuleFamily, l.key, l.text,
			"names the families in another order than %s: write \"%s,%s\"", base, l.prefixes[1], l.prefixes[0])
		return none
	}
	return l.prefixes
}

// lacking returns a family of b that a does not have, "" if there is none.
func lacking(a, b listing) string {
	for _, p := range b.prefixes {
		sameFamily := func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }
		if !slices.ContainsFunc(a.prefixes, sameFamily) {
			return familyOf(p.Addr())
		}
	}
	return ""
}
