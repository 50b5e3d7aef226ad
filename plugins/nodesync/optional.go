// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import "net/netip"

// NodeGetter is an optional interface of API: it finds one node, whatever the number of nodes.
type NodeGetter interface {
	// GetNode returns a known node, nil if there is none of the name.
	GetNode(name string) *Node
}

// UnderlayPublisher is an optional interface of API. If it is missing, other nodes make no
// tunnel to this one.
type UnderlayPublisher interface {
	// PublishUnderlay tells the cluster the addresses by which other nodes reach this one, one
	// of each family at most. It also tells the public key of this node's WireGuard tunnel, ""
	// for none. It tells both once the event has committed. No address: other nodes make no
	// tunnel to it.
	PublishUnderlay(addresses []netip.Addr, publicKey string)
}

// BlockPublisher is an optional interface of API. If it is missing, the pod subnets of this
// node are for other nodes those of its Node object.
type BlockPublisher interface {
	// PublishPodCIDRs tells the cluster the pod subnets of this node, once the
	// event has committed.
	PublishPodCIDRs(cidrs []netip.Prefix)
	// PublishPools tells the cluster what this node has of each pool, once the
	// event has committed.
	PublishPools()
}

// GetNode returns a node that api knows, nil if there is none of the name.
func GetNode(api API, name string) *Node {
	if getter, ok := api.(NodeGetter); ok {
		return getter.GetNode(name)
	}
	return api.GetAllNodes()[name]
}
