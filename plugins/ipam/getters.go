// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// toIP converts to net.IP. An invalid address is nil.
func toIP(a netip.Addr) net.IP {
	if !a.IsValid() {
		return nil
	}
	return a.AsSlice()
}

// toNet converts to *net.IPNet and keeps the host bits of p: 10.1.5.1/24 stays that. An
// invalid prefix is nil.
func toNet(p netip.Prefix) *net.IPNet {
	if !p.IsValid() {
		return nil
	}
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func each[S, T any](xs []S, f func(S) T) []T {
	all := make([]T, 0, len(xs))
	for _, x := range xs {
		all = append(all, f(x))
	}
	return all
}

func tryEach[S, T any](xs []S, f func(S) (T, error)) ([]T, error) {
	all := make([]T, 0, len(xs))
	for _, x := range xs {
		y, err := f(x)
		if err != nil {
			return nil, err
		}
		all = append(all, y)
	}
	return all, nil
}

func first[T any](xs []T) (zero T) {
	if len(xs) == 0 {
		return zero
	}
	return xs[0]
}

func (i *IPAM) families() []addrplan.Family { return i.state.Load().families }
func (i *IPAM) nodes() []addrplan.Node      { return i.state.Load().nodes }

// NodeIPAddresses returns the addresses of a node, each with its network's length.
func (i *IPAM) NodeIPAddresses(nodeID uint32) ([]*net.IPNet, error) {
	return tryEach(i.families(), func(f addrplan.Family) (*net.IPNet, error) {
		p, err := f.NodeIP(nodeID)
		return toNet(p), err
	})
}

// NodeIPAddress computes IP address of the node based on the provided node ID.
func (i *IPAM) NodeIPAddress(nodeID uint32) (net.IP, *net.IPNet, error) {
	return addressAndNetwork(i.NodeIPAddresses(nodeID))
}

// VxlanIPAddresses returns the VXLAN addresses of a node, each with its network's length.
func (i *IPAM) VxlanIPAddresses(nodeID uint32) ([]*net.IPNet, error) {
	return tryEach(i.families(), func(f addrplan.Family) (*net.IPNet, error) {
		p, err := f.VxlanIP(nodeID)
		return toNet(p), err
	})
}

// VxlanIPAddress computes IP address of the VXLAN interface based on the provided node ID.
func (i *IPAM) VxlanIPAddress(nodeID uint32) (net.IP, *net.IPNet, error) {
	return addressAndNetwork(i.VxlanIPAddresses(nodeID))
}

func addressAndNetwork(all []*net.IPNet, err error) (net.IP, *net.IPNet, error) {
	if err != nil {
		return nil, nil, err
	}
	p := first(all)
	if p == nil {
		return nil, nil, errNotSynced
	}
	return p.IP, &net.IPNet{IP: p.IP.Mask(p.Mask), Mask: p.Mask}, nil
}

func firstNet(all []*net.IPNet, err error) (*net.IPNet, error) {
	if err == nil && len(all) == 0 {
		err = errNotSynced
	}
	return first(all), err
}

var errNotSynced = fmt.Errorf("ipam: no resync yet: the node's networks are not known")

// HostInterconnectIPsInVPP returns the VPP ends of the VPP-to-host link.
func (i *IPAM) HostInterconnectIPsInVPP() []net.IP {
	return each(i.nodes(), func(n addrplan.Node) net.IP { return toIP(n.HostVPP) })
}

// HostInterconnectIPInVPP provides the address of the VPP-end of the VPP to host interconnect.
func (i *IPAM) HostInterconnectIPInVPP() net.IP { return first(i.HostInterconnectIPsInVPP()) }

// HostInterconnectIPsInLinux returns the Linux ends of the VPP-to-host link.
func (i *IPAM) HostInterconnectIPsInLinux() []net.IP {
	return each(i.nodes(), func(n addrplan.Node) net.IP { return toIP(n.HostLinux) })
}

// HostInterconnectIPInLinux provides the address of the host(Linux)-end of the VPP to host interconnect.
func (i *IPAM) HostInterconnectIPInLinux() net.IP { return first(i.HostInterconnectIPsInLinux()) }

// HostInterconnectSubnetsThisNode returns the networks of the VPP-to-host link of this node.
func (i *IPAM) HostInterconnectSubnetsThisNode() []*net.IPNet {
	return each(i.nodes(), func(n addrplan.Node) *net.IPNet { return toNet(n.HostSubnet) })
}

// HostInterconnectSubnetThisNode returns the network used to connect VPP to its host Linux stack on this node.
func (i *IPAM) HostInterconnectSubnetThisNode() *net.IPNet {
	return first(i.HostInterconnectSubnetsThisNode())
}

// HostInterconnectSubnetsAllNodes returns the networks that contain the VPP-to-host links of all nodes.
func (i *IPAM) HostInterconnectSubnetsAllNodes() []*net.IPNet {
	return each(i.families(), func(f addrplan.Family) *net.IPNet { return toNet(f.Hosts) })
}

// HostInterconnectSubnetAllNodes returns the base subnet used to connect VPP to its host Linux stack on all nodes.
func (i *IPAM) HostInterconnectSubnetAllNodes() *net.IPNet {
	return first(i.HostInterconnectSubnetsAllNodes())
}

// HostInterconnectSubnetsOtherNode returns the networks of another node's link.
func (i *IPAM) HostInterconnectSubnetsOtherNode(nodeID uint32) ([]*net.IPNet, error) {
	return tryEach(i.families(), func(f addrplan.Family) (*net.IPNet, error) {
		p, err := addrspace.NodePrefix(f.Hosts, f.HostsOneNode, nodeID)
		return toNet(p), err
	})
}

// HostInterconnectSubnetOtherNode returns VPP-host network of another node identified by nodeID.
func (i *IPAM) HostInterconnectSubnetOtherNode(nodeID uint32) (*net.IPNet, error) {
	return firstNet(i.HostInterconnectSubnetsOtherNode(nodeID))
}

// PodSubnetsAllNodes returns the networks that contain the pod networks of all nodes.
func (i *IPAM) PodSubnetsAllNodes() []*net.IPNet {
	return each(i.families(), func(f addrplan.Family) *net.IPNet { return toNet(f.Pods) })
}

// PodSubnetAllNodes returns POD subnet that is a base subnet for all PODs of all nodes.
func (i *IPAM) PodSubnetAllNodes() *net.IPNet { return first(i.PodSubnetsAllNodes()) }

// PodSubnetsThisNode returns the pod networks of this node; none while it has none.
func (i *IPAM) PodSubnetsThisNode() []*net.IPNet {
	var all []*net.IPNet
	for _, n := range i.nodes() {
		if n.PodSubnet.IsValid() {
			all = append(all, toNet(n.PodSubnet))
		}
	}
	return all
}

// PodSubnetThisNode returns POD network for the current node.
func (i *IPAM) PodSubnetThisNode() *net.IPNet { return first(i.PodSubnetsThisNode()) }

// PodSubnetsOtherNode returns the pod networks of another node: with external IPAM those
// in its record, otherwise those that follow from its ID.
func (i *IPAM) PodSubnetsOtherNode(nodeID uint32) ([]*net.IPNet, error) {
	s := i.state.Load()
	if s.neighbours != nil {
		if recorded := s.neighbours.subnetsOfID(nodeID); len(recorded) > 0 {
			return each(recorded, toNet), nil
		}
		return nil, fmt.Errorf("pod subnet of node %d: external IPAM has given it none that is known here", nodeID)
	}
	var all []*net.IPNet
	for _, f := range s.families { // the first of each family as for this node
		p, err := addrspace.NodePrefix(f.Pods, f.PodsOneNode, nodeID)
		if err != nil {
			return nil, err
		}
		all = append(all, toNet(p))
	}
	return all, nil
}

// PodSubnetOtherNode returns the POD network of another node identified by nodeID.
func (i *IPAM) PodSubnetOtherNode(nodeID uint32) (*net.IPNet, error) {
	return firstNet(i.PodSubnetsOtherNode(nodeID))
}

// ServiceNetworks returns the ranges allocated for services.
func (i *IPAM) ServiceNetworks() []*net.IPNet {
	return each(i.families(), func(f addrplan.Family) *net.IPNet { return toNet(f.Service) })
}

// ServiceNetwork returns range allocated for services.
func (i *IPAM) ServiceNetwork() *net.IPNet { return first(i.ServiceNetworks()) }

// PodGatewayIPs returns the gateways of this node's pod networks.
func (i *IPAM) PodGatewayIPs() []net.IP {
	return each(i.nodes(), func(n addrplan.Node) net.IP { return toIP(n.PodGateway) })
}

// PodGatewayIP returns gateway IP address of the POD subnet of this node.
func (i *IPAM) PodGatewayIP() net.IP { return first(i.PodGatewayIPs()) }

// NatLoopbackIPs returns the NAT loopbacks of this node.
func (i *IPAM) NatLoopbackIPs() []net.IP {
	return each(i.nodes(), func(n addrplan.Node) net.IP { return toIP(n.NatLoopback) })
}

// NatLoopbackIP returns the IP address of a virtual loopback. It is used to route traffic
// between clients and services via VPP even if the source and destination are the same IP
// addresses. Such traffic would otherwise be routed locally.
func (i *IPAM) NatLoopbackIP() net.IP { return first(i.NatLoopbackIPs()) }

// Nodes returns the subnets and addresses of this node, by family.
func (i *IPAM) Nodes() []addrplan.Node { return slices.Clone(i.nodes()) }
