// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodesync claims this node's ID in the cluster store and tells other
// plugins about the nodes of the cluster.
//
// An ID is claimed before the cluster's state is read for the first time, by the node's
// name and its instance (Claim). It is remembered on the node's disk, and confirmed from
// then on (IDClaimer). A record never disappears: an ID that is released keeps its
// generation, and the one that was released longest ago is the last to be used again. An
// agent loses its ID if the cluster store was wiped or came back older, and another node
// claimed the ID. It keeps its leases, makes no new one, and reports that. So does an
// agent that finds the beats of another process with its identity: a clone of its disk,
// or a second copy of its memory.
//
// The event loop does the rest: each resync rebuilds the plugin's state, and
// KubeStateChange changes it; each change of a node becomes a NodeUpdate event. The
// IDClaimer writes what an event has published after its commit, until it succeeds: no
// event waits for the store.
package nodesync

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/controller"
)

// API is for other plugins. They call it from the loop. A program may implement it for its
// own plugins, so its methods never grow: what a later plugin needs is an optional
// interface of its own.
type API interface {
	// GetNodeID returns the ID of this node, >= 1.
	GetNodeID() uint32
	// GetAllNodes returns all known nodes, with this one, by name.
	GetAllNodes() Nodes
	// PublishNodeIPs tells the cluster the vswitch addresses of this node, each
	// with the length of its network, once the event has committed.
	PublishNodeIPs(addresses []netip.Prefix) error
}

// Disk holds what a node remembers of itself, independent of the cluster store.
type Disk interface {
	Local(name string) (string, error) // "" for nothing
	SetLocal(name, value string) error // durable when it returns
}

// Nodes are nodes by name.
type Nodes map[string]*Node

// Node holds what the cluster knows of one node.
type Node struct {
	ID              uint32 // 0: it has claimed none
	Name            string
	VppIPAddresses  []netip.Prefix
	MgmtIPAddresses []netip.Addr
	// PodCIDRs are those of the Node object; of another node whose blocks have
	// claims, those that it publishes. They are none if one of them cannot be parsed.
	PodCIDRs       []netip.Prefix
	PodCIDRProblem string         // why the podCIDRs cannot be used, "" if they can
	Claims         []netip.Prefix // blocks of the pod network that the node holds claims of
	// Underlay holds the addresses by which other nodes reach this one, as its agent has
	// published them; none: its agent makes no tunnels, or has not found them yet.
	Underlay  []netip.Addr
	PublicKey string // of its WireGuard tunnel, in base64; "": none
}

// String describes the node on one line.
func (n *Node) String() string {
	if n == nil {
		return "<none>"
	}
	s := fmt.Sprintf(
		"ID=%d name=%s vpp=%v mgmt=%v podCIDRs=%v",
		n.ID,
		n.Name,
		n.VppIPAddresses,
		n.MgmtIPAddresses,
		n.PodCIDRs,
	)
	if n.PodCIDRProblem != "" {
		s += fmt.Sprintf(" problem=%q", n.PodCIDRProblem)
	}
	if len(n.Claims) > 0 {
		s += fmt.Sprintf(" claims=%v", n.Claims)
	}
	if len(n.Underlay) > 0 {
		s += fmt.Sprintf(" underlay=%v", n.Underlay)
	}
	return s
}

// Equal compares by value.
func (n *Node) Equal(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.ID == m.ID && n.Name == m.Name && slices.Equal(n.VppIPAddresses, m.VppIPAddresses) &&
		slices.Equal(n.MgmtIPAddresses, m.MgmtIPAddresses) && slices.Equal(n.PodCIDRs, m.PodCIDRs) &&
		n.PodCIDRProblem == m.PodCIDRProblem && slices.Equal(n.Claims, m.Claims) &&
		slices.Equal(n.Underlay, m.Underlay) && n.PublicKey == m.PublicKey
}

// NodeIDChange reports that this node's ID is in doubt, or not any more.
type NodeIDChange struct {
	Held
	Problem string // "": none any more
}

// GetName is "Node ID Change".
func (ev *NodeIDChange) GetName() string { return "Node ID Change" }

func (ev *NodeIDChange) String() string {
	s := fmt.Sprintf("%s\n* node ID: %d, generation %d", ev.GetName(), ev.ID, ev.Generation)
	if ev.Problem == "" {
		return s + "\n* it is this node's"
	}
	return s + "\n* nothing new is allocated: " + ev.Problem
}

// Method is Update.
func (ev *NodeIDChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType is BestEffort.
func (ev *NodeIDChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction is Forward.
func (ev *NodeIDChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking is false.
func (ev *NodeIDChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *NodeIDChange) Done(error) {}

// NodeUpdate reports that a node has joined (PrevState nil), left (NewState nil) or changed.
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
