// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/plugins/nodesync"
)

// Vswitch describes a vswitch beside the kernel of the node, such as VPP. Its interface to
// the other nodes has the node's addresses in nodeInterconnectCIDR. The VPP-host link
// connects it with the kernel, which is in the same place for the network as a pod. Other
// nodes have routes to that link's subnet, and the vswitch sends there what only the kernel
// can serve.
type Vswitch struct {
	Link     string         // name of the interface to other nodes; "": it has none
	MTU      uint32         // of the underlay; 0: 1500
	Services []netip.Prefix // networks of the addresses of services
}

func (p *IPNet) isVswitch() bool { return p.Dataplane != nil && p.Dataplane.Vswitch != nil }

// vswitchUnderlay returns the node's own addresses as the underlay. An address that waits
// for its claim is not one of them.
func (p *IPNet) vswitchUnderlay([]netip.Addr) (Underlay, error) {
	v := p.Dataplane.Vswitch
	u := Underlay{Link: v.Link, MTU: v.MTU}
	_, addresses := p.nodeNetwork()
	for _, a := range addresses {
		u.Addresses = append(u.Addresses, a.Addr())
	}
	switch {
	case v.Link == "":
		return Underlay{}, errors.New(
			"the node's vswitch has no link to the other nodes: set cadastre.vpp.interface, " +
				"nodeConfig[].mainVPPInterface.interfaceName, or transport: none",
		)
	case len(u.Addresses) > 0:
		return u, nil
	case len(p.pinned) > 0:
		return u, errors.New("the address of the node (mainVPPInterface.ip) waits for its claim: " +
			"see the claims in cadastre status")
	}
	return u, errors.New("the node has no address for its vswitch: " +
		"set ipamConfig.nodeInterconnectCIDR, or nodeConfig[].mainVPPInterface.ip")
}

// hostDestinations returns what the kernel of the node serves behind the VPP-host link.
func (p *IPNet) hostDestinations() []string {
	all := slices.Clone(p.Dataplane.Vswitch.Services)
	if o := p.observed.Load(); o != nil {
		for _, a := range o.nodeIPs {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return textsOf(all)
}

// hostSubnetsOf returns the subnets of the VPP-host link of another node: pods answer to
// programs of that node there.
func (p *IPNet) hostSubnetsOf(n *nodesync.Node) []netip.Prefix {
	if !p.isVswitch() {
		return nil
	}
	return p.IPAM.HostSubnetsOf(n.ID)
}
