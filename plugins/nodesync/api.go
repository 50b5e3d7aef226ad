// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodesync claims this node's ID in the cluster store and tells other
// plugins about the nodes of the cluster.
//
// An ID is claimed before the event loop starts (Claim), by the node's name and
// its instance, and found again after every restart. All else happens in the
// loop: the plugin's state is rebuilt by each resync and changed by
// KubeStateChange; whatever changes for a node becomes a NodeUpdate event. What
// is published is written with the commit of the event.
//
// Example:
//
//	id, err := nodesync.Claim(ctx, store, nodesync.Identity{Name: "node-a", Instance: uuid, MaxID: 254})
//	p := nodesync.NewPlugin(nodesync.Deps{ID: id, ...})
//	p.GetNodeID()    // 1 on a new store
package nodesync

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/controller"
)

// API is what other plugins may ask. They call it from the loop.
type API interface {
	// GetNodeID is the ID of this node, >= 1.
	GetNodeID() uint32
	// GetAllNodes are all nodes that are known, this one included, by name.
	GetAllNodes() Nodes
	// PublishNodeIPs tells the cluster the vswitch addresses of this node, each
	// with the length of its network. It is written with the commit of the event.
	PublishNodeIPs(addresses []netip.Prefix) error
}

// Nodes are nodes by name.
type Nodes map[string]*Node

// Node is what the cluster knows of one node.
type Node struct {
	ID              uint32 // 0: it has claimed none
	Name            string
	VppIPAddresses  []netip.Prefix
	MgmtIPAddresses []netip.Addr
	PodCIDRs        []netip.Prefix
}

// String describes the node on one line.
func (n *Node) String() string {
	if n == nil {
		return "<none>"
	}
	return fmt.Sprintf("ID=%d name=%s vpp=%v mgmt=%v podCIDRs=%v", n.ID, n.Name, n.VppIPAddresses, n.MgmtIPAddresses, n.PodCIDRs)
}

// Equal compares by value.
func (n *Node) Equal(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.ID == m.ID && n.Name == m.Name && slices.Equal(n.VppIPAddresses, m.VppIPAddresses) &&
		slices.Equal(n.MgmtIPAddresses, m.MgmtIPAddresses) && slices.Equal(n.PodCIDRs, m.PodCIDRs)
}

// NodeUpdate says that a node has joined (PrevState nil), left (NewState nil) or changed.
type NodeUpdate struct {
	NodeName  string
	PrevState *Node
	NewState  *Node
}

// GetName is "Node Update".
func (ev *NodeUpdate) GetName() string { return "Node Update" }

func (ev *NodeUpdate) String() string {
	return fmt.Sprintf("%s\n* node: %s\n* before: %s\n* now: %s", ev.GetName(), ev.NodeName, ev.PrevState, ev.NewState)
}

// Method is Update.
func (ev *NodeUpdate) Method() controller.EventMethodType { return controller.Update }

// TransactionType is BestEffort.
func (ev *NodeUpdate) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction is Forward.
func (ev *NodeUpdate) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking is false.
func (ev *NodeUpdate) IsBlocking() bool { return false }

// Done does nothing.
func (ev *NodeUpdate) Done(error) {}
