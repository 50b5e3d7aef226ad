// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package addrplan derives every subnet and address of a node from its node ID. It is
// pure: a Cluster holds the networks of the configuration, a Node the values that follow
// from them for one ID. The same ID always gives the same Node. The networks of two
// different nodes are disjoint.
package addrplan

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// errUndefined is returned for an address on a network that the configuration does not
// have, such as a node interconnect that DHCP numbers.
var errUndefined = errors.New("network is undefined")

// Family holds the cluster-wide networks of one address family.
type Family struct {
	Pods         netip.Prefix // podSubnetCIDR
	PodsOneNode  int          // podSubnetOneNodePrefixLen
	Hosts        netip.Prefix // vppHostSubnetCIDR
	HostsOneNode int          // vppHostSubnetOneNodePrefixLen
	Nodes        netip.Prefix // nodeInterconnectCIDR; the zero Prefix if DHCP numbers the nodes
	Vxlan        netip.Prefix // vxlanCIDR
	Service      netip.Prefix // serviceCIDR
	Gateway      netip.Addr   // of Nodes: no node gets it; the zero Addr for none
}

// Cluster holds the networks of all families, the first one first.
type Cluster struct{ Families []Family }

// Node holds the subnets and addresses of one node in one family.
type Node struct {
	ID          uint32
	PodSubnet   netip.Prefix
	PodGateway  netip.Addr
	NatLoopback netip.Addr
	FirstPod    netip.Addr
	LastPod     netip.Addr
	HostSubnet  netip.Prefix
	HostVPP     netip.Addr
	HostLinux   netip.Addr
	NodeIP      netip.Prefix // the address with the length of its network; zero where undefined
	VxlanIP     netip.Prefix // likewise
}

// PodCapacity returns the number of addresses for pods, at most the largest uint64:
// all but network, gateway, NAT loopback and the last one.
func (n Node) PodCapacity() uint64 { return Capacity(n.PodSubnet) }

// A pod subnet has at least PodHostBits host bits, which it needs for PodSubnetUses.
const (
	PodHostBits   = 3
	PodSubnetUses = "network, gateway, a pod, NAT loopback and the last address"
)

// Capacity returns the number of addresses that pods can have in a pod subnet.
func Capacity(podSubnet netip.Prefix) uint64 {
	size := addrspace.Size(podSubnet)
	if size == ^uint64(0) {
		return size
	}
	return size - min(size, 4)
}

// Node derives all subnets and addresses of node id in this family. The error wraps
// addrspace.ErrNodeID if id does not fit one of the networks.
func (f Family) Node(id uint32) (Node, error) {
	pods, err := addrspace.NodePrefix(f.Pods, f.PodsOneNode, id)
	if err != nil {
		return Node{}, fmt.Errorf("podSubnetCIDR: %w", err)
	}
	return f.NodeWith(id, pods)
}

// NodeWith returns Node with the given pod subnet, the zero Prefix for none.
func (f Family) NodeWith(id uint32, pods netip.Prefix) (Node, error) {
	hosts, err := addrspace.NodePrefix(f.Hosts, f.HostsOneNode, id)
	if err != nil {
		return Node{}, fmt.Errorf("vppHostSubnetCIDR: %w", err)
	}
	n := Node{ID: id}
	if pods.IsValid() {
		if n, err = f.WithPodSubnet(id, pods); err != nil {
			return Node{}, err
		}
	}
	n.HostSubnet = hosts
	n.HostVPP, _ = addrspace.Nth(hosts, 1)
	n.HostLinux, _ = addrspace.Nth(hosts, 2)
	if hosts.Addr().BitLen()-hosts.Bits() < 2 {
		return Node{}, fmt.Errorf("vppHostSubnetCIDR: %s has no room for both ends of the VPP-host link", hosts)
	}
	if f.Nodes.IsValid() {
		if n.NodeIP, err = f.NodeIP(id); err != nil {
			return Node{}, err
		}
	}
	n.VxlanIP, err = f.VxlanIP(id)
	return n, err
}

// WithPodSubnet returns the part of a Node that follows from the given pod subnet.
func (f Family) WithPodSubnet(id uint32, pods netip.Prefix) (Node, error) {
	if Capacity(pods) == 0 {
		return Node{}, fmt.Errorf("pod subnet %s has no room for a pod: at least 3 host bits are needed", pods)
	}
	n := Node{ID: id, PodSubnet: pods}
	n.PodGateway, _ = addrspace.Nth(pods, 1)
	n.FirstPod, _ = addrspace.Nth(pods, 2)
	n.NatLoopback, _ = addrspace.NthLast(pods, 1)
	n.LastPod, _ = addrspace.NthLast(pods, 2)
	return n, nil
}

// NodeIP returns the node interconnect address of node id with its network's length.
func (f Family) NodeIP(id uint32) (netip.Prefix, error) {
	if !f.Nodes.IsValid() {
		return netip.Prefix{}, fmt.Errorf("nodeInterconnectCIDR: %w", errUndefined)
	}
	return nodeAddr("nodeInterconnectCIDR", f.Nodes, id, f.Gateway)
}

// VxlanIP returns the VXLAN address of node id with its network's length.
func (f Family) VxlanIP(id uint32) (netip.Prefix, error) {
	return nodeAddr("vxlanCIDR", f.Vxlan, id, netip.Addr{})
}

func nodeAddr(field string, network netip.Prefix, id uint32, gw netip.Addr) (netip.Prefix, error) {
	a, err := addrspace.NodeAddr(network, id, gw)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%s: %w", field, err)
	}
	return netip.PrefixFrom(a, network.Bits()), nil
}

// NodeWithin returns the ID of the node whose address in the named network is a. All
// addresses of a pod subnet or a VPP-host link belong to the node.
func (f Family) NodeWithin(name string, a netip.Addr) (id uint32, found bool) {
	err := errUndefined
	switch name {
	case "podSubnetCIDR":
		id, err = addrspace.NodeOfPrefix(f.Pods, f.PodsOneNode, a)
	case "vppHostSubnetCIDR":
		id, err = addrspace.NodeOfPrefix(f.Hosts, f.HostsOneNode, a)
	case "nodeInterconnectCIDR":
		if f.Nodes.IsValid() {
			id, err = addrspace.NodeOfAddr(f.Nodes, a, f.Gateway)
		}
	case "vxlanCIDR":
		id, err = addrspace.NodeOfAddr(f.Vxlan, a, netip.Addr{})
	}
	return id, err == nil
}

// MaxNodeID returns the largest ID that fits every network of every family.
func (c Cluster) MaxNodeID() uint32 {
	largest := c.MaxLinkID()
	for _, f := range c.Families {
		largest = min(largest, addrspace.MaxNodePrefix(f.Pods, f.PodsOneNode))
	}
	return largest
}

// MaxLinkID returns the largest ID that fits every network except those of pods.
func (c Cluster) MaxLinkID() uint32 {
	largest := ^uint32(0)
	for _, f := range c.Families {
		largest = min(largest, addrspace.MaxNodePrefix(f.Hosts, f.HostsOneNode),
			addrspace.MaxNodeAddr(f.Vxlan, netip.Addr{}))
		if f.Nodes.IsValid() {
			largest = min(largest, addrspace.MaxNodeAddr(f.Nodes, f.Gateway))
		}
	}
	return largest
}

// Node derives all families of node id, in their order.
func (c Cluster) Node(id uint32) ([]Node, error) {
	var nodes []Node
	for _, f := range c.Families {
		n, err := f.Node(id)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// FromContivCIDR returns the networks of a cluster as parts of one prefix with at least 18
// host bits. Pods have its first block of 16 bits (7 bits a node), VPP-host links the
// second (7 bits a node). Node interconnect and VXLAN have the next two blocks of 9 bits.
func FromContivCIDR(p netip.Prefix) (Family, error) {
	width := p.Addr().BitLen()
	if width-p.Bits() < 18 {
		return Family{}, fmt.Errorf(
			"contivCIDR %s is too small: its network must provide at least 18 bits of space, so /%d or less",
			p,
			width-18,
		)
	}
	var f Family
	f.Pods, _ = addrspace.Sub(p, width-16, 0)
	f.Hosts, _ = addrspace.Sub(p, width-16, 1)
	f.Nodes, _ = addrspace.Sub(p, width-9, 256)
	f.Vxlan, _ = addrspace.Sub(p, width-9, 257)
	f.PodsOneNode, f.HostsOneNode = width-7, width-7
	return f, nil
}
