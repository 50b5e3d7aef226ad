// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// API defines methods provided by IPAM for use by other plugins. On a node with several
// families they return values of the first one; the plurals of FamilyAPI return those of
// all.
type API interface {
	// NodeIPAddress computes the IP address of a node from its ID, and its network.
	NodeIPAddress(nodeID uint32) (net.IP, *net.IPNet, error)
	// VxlanIPAddress computes the IP address of a node's VXLAN interface, and its network.
	VxlanIPAddress(nodeID uint32) (net.IP, *net.IPNet, error)
	// HostInterconnectIPInVPP returns the address of the VPP end of the VPP-to-host link.
	HostInterconnectIPInVPP() net.IP
	// HostInterconnectIPInLinux returns the address of the Linux end of that link.
	HostInterconnectIPInLinux() net.IP
	// HostInterconnectSubnetThisNode returns the network of that link on this node.
	HostInterconnectSubnetThisNode() *net.IPNet
	// HostInterconnectSubnetAllNodes returns the network that contains these links on
	// all nodes.
	HostInterconnectSubnetAllNodes() *net.IPNet
	// HostInterconnectSubnetOtherNode returns the network of that link on another node.
	HostInterconnectSubnetOtherNode(nodeID uint32) (*net.IPNet, error)
	// PodSubnetAllNodes returns the network that contains the pod networks of all nodes.
	PodSubnetAllNodes() *net.IPNet
	// PodSubnetThisNode returns the pod network of this node, nil while it has none.
	PodSubnetThisNode() *net.IPNet
	// PodSubnetOtherNode returns the pod network of another node.
	PodSubnetOtherNode(nodeID uint32) (*net.IPNet, error)
	// ServiceNetwork returns the range of service addresses.
	ServiceNetwork() *net.IPNet
	// PodGatewayIP returns the gateway of this node's pod network.
	PodGatewayIP() net.IP
	// NatLoopbackIP returns the address of the virtual loopback that routes traffic
	// between clients and services whose source and destination are the same.
	NatLoopbackIP() net.IP
	// AllocatePodIP leases an address for a pod. With external IPAM, ipamData holds the
	// JSON result of the other IPAM plugin; the address is checked and recorded.
	AllocatePodIP(podID kv.PodID, ipamType string, ipamData string) (net.IP, error)
	// GetPodIP returns the address of a pod with the mask of one host, nil if it has none.
	GetPodIP(podID kv.PodID) *net.IPNet
	// ReleasePodIP releases the addresses of a pod. A pod without one is not an error.
	ReleasePodIP(podID kv.PodID) error
}

// FamilyAPI returns for all families of a node what the method of API with the singular of
// the name returns for the first one. The first family comes first. Addresses of nodes
// have the length of their network.
type FamilyAPI interface {
	NodeIPAddresses(nodeID uint32) ([]*net.IPNet, error)
	VxlanIPAddresses(nodeID uint32) ([]*net.IPNet, error)
	HostInterconnectIPsInVPP() []net.IP
	HostInterconnectIPsInLinux() []net.IP
	HostInterconnectSubnetsThisNode() []*net.IPNet
	HostInterconnectSubnetsAllNodes() []*net.IPNet
	HostInterconnectSubnetsOtherNode(nodeID uint32) ([]*net.IPNet, error)
	PodSubnetsAllNodes() []*net.IPNet
	PodSubnetsThisNode() []*net.IPNet
	PodSubnetsOtherNode(nodeID uint32) ([]*net.IPNet, error)
	ServiceNetworks() []*net.IPNet
	PodGatewayIPs() []net.IP
	NatLoopbackIPs() []net.IP
	AllocatePodIPs(podID kv.PodID, ipamType string, ipamData string) ([]net.IP, error)
	GetPodIPs(podID kv.PodID) []*net.IPNet
}

// PodCIDRChange is triggered when the CIDR for pods on the current node
// changes, because external IPAM has updated the node.
type PodCIDRChange struct {
	LocalPodCIDR *net.IPNet // of the first family; nil if there is none any more
	// Node is the state of this node that the change follows from. The resync derives
	// the pod subnets of all families from it; nil: from the state that NodeSync has.
	Node *nodesync.Node
}

// GetName returns the name of the event.
func (ev *PodCIDRChange) GetName() string { return "Pod CIDR Change" }

// String describes the event.
func (ev *PodCIDRChange) String() string {
	cidr := "<none>"
	if ev.LocalPodCIDR != nil {
		cidr = ev.LocalPodCIDR.String()
	}
	return ev.GetName() + "\n* LocalPodCIDR: " + cidr
}

// Method is UpstreamResync.
func (ev *PodCIDRChange) Method() controller.EventMethodType { return controller.UpstreamResync }

// IsBlocking returns false.
func (ev *PodCIDRChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *PodCIDRChange) Done(error) {}
