// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// Deps is what the plugin is given.
type Deps struct {
	controller.PluginDeps
	ServiceLabel controller.AgentLabel
	Store        kvdb.Store
	ID           uint32 // claimed
	Instance     string
}

// NodeSync is the plugin. It belongs to the loop.
type NodeSync struct {
	Deps
	nodes   Nodes
	publish []netip.Prefix // staged
	staged  bool
}

var (
	_ API                     = (*NodeSync)(nil)
	_ controller.EventHandler = (*NodeSync)(nil)
	_ controller.Committer    = (*NodeSync)(nil)
)

// NewPlugin makes the plugin for a node that has its ID.
func NewPlugin(deps Deps) *NodeSync {
	deps.Name = "nodesync"
	return &NodeSync{Deps: deps, nodes: Nodes{}}
}

// Init does nothing: the ID was claimed before.
func (p *NodeSync) Init() error { return nil }

// AfterInit does nothing.
func (p *NodeSync) AfterInit() error { return nil }

// Close does nothing; in particular it does not release the ID.
func (p *NodeSync) Close() error { return nil }

// GetNodeID is this node's ID.
func (p *NodeSync) GetNodeID() uint32 { return p.ID }

// GetAllNodes is a copy of what is known of all nodes.
func (p *NodeSync) GetAllNodes() Nodes {
	nodes := make(Nodes, len(p.nodes))
	for name, n := range p.nodes {
		c := *n
		nodes[name] = &c
	}
	return nodes
}

// PublishNodeIPs stages the addresses for the commit of this event.
func (p *NodeSync) PublishNodeIPs(addresses []netip.Prefix) error {
	own := p.nodes[p.ServiceLabel.GetAgentLabel()]
	if own != nil && slices.Equal(own.VppIPAddresses, addresses) {
		return nil
	}
	p.publish, p.staged = slices.Clone(addresses), true
	return nil
}

// Commit writes what is staged into this node's record.
func (p *NodeSync) Commit(ctx context.Context) error {
	if !p.staged {
		return nil
	}
	addresses := p.publish
	p.Undo()
	key := kv.NodeRecordKey(p.ID)
	have, found, err := p.Store.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("publish the addresses of node %d: %w", p.ID, err)
	}
	record := &kv.NodeRecord{}
	if !found || proto.Unmarshal(have.Value, record) != nil || record.Instance != p.Instance {
		return fmt.Errorf("publish the addresses of node %d: its record is not of this instance any more", p.ID)
	}
	record.IpAddresses = nil
	for _, a := range addresses {
		record.IpAddresses = append(record.IpAddresses, a.String())
	}
	value, err := proto.Marshal(record)
	if err != nil {
		return err
	}
	if _, err := p.Store.Txn(ctx, []kvdb.Cond{kvdb.AtRevision(key, have.ModRevision)}, []kvdb.Op{kvdb.Put(key, value)}); err != nil {
		return fmt.Errorf("publish the addresses of node %d: %w", p.ID, err)
	}
	return nil
}

// Undo drops what is staged.
func (p *NodeSync) Undo() { p.publish, p.staged = nil, false }

// HandlesEvent selects resyncs and changes of nodes.
func (p *NodeSync) HandlesEvent(event controller.Event) bool {
	if event.Method() != controller.Update {
		return true
	}
	change, ok := event.(*controller.KubeStateChange)
	return ok && (change.Resource == kubestate.NodeRecords || change.Resource == kubestate.Nodes)
}

// Resync rebuilds the nodes from their records and their Kubernetes objects.
func (p *NodeSync) Resync(_ controller.Event, state controller.KubeStateData, _ int, _ controller.ResyncOperations) error {
	p.nodes = Nodes{}
	for _, resource := range []string{kubestate.NodeRecords, kubestate.Nodes} {
		state.Sorted(resource, func(_ string, m proto.Message) bool {
			p.apply(m)
			return true
		})
	}
	return nil
}

// Update applies one change and announces it.
func (p *NodeSync) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	change := event.(*controller.KubeStateChange)
	names := map[string]bool{}
	for _, m := range []proto.Message{change.Prev, change.New} {
		if m != nil {
			names[nameOf(m)] = true
		}
	}
	before := p.GetAllNodes()
	if change.Prev != nil {
		p.retract(change.Prev)
	}
	if change.New != nil {
		p.apply(change.New)
	}
	for name := range names {
		prev, now := before[name], p.GetAllNodes()[name]
		if prev.Equal(now) {
			continue
		}
		if err := txn.FollowUp(&NodeUpdate{NodeName: name, PrevState: prev, NewState: now}); err != nil {
			return "", err
		}
	}
	return "", nil
}

// Revert does nothing: the changes of the cluster's state are not undone.
func (p *NodeSync) Revert(controller.Event) error { return nil }

func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *kv.NodeRecord:
		return m.Name
	case *kv.Node:
		return m.Name
	}
	return ""
}

func (p *NodeSync) node(name string) *Node {
	n := p.nodes[name]
	if n == nil {
		n = &Node{Name: name}
		p.nodes[name] = n
	}
	return n
}

// apply notes what m says of its node. What cannot be parsed is left out.
func (p *NodeSync) apply(m proto.Message) {
	n := p.node(nameOf(m))
	switch m := m.(type) {
	case *kv.NodeRecord:
		n.ID, n.VppIPAddresses = m.Id, parse(m.IpAddresses, netip.ParsePrefix)
	case *kv.Node:
		n.MgmtIPAddresses, n.PodCIDRs = parse(m.Addresses, netip.ParseAddr), parse(m.PodCidrs, netip.ParsePrefix)
	}
}

// retract takes back what m said of its node.
func (p *NodeSync) retract(m proto.Message) {
	n := p.node(nameOf(m))
	switch m.(type) {
	case *kv.NodeRecord:
		n.ID, n.VppIPAddresses = 0, nil
	case *kv.Node:
		n.MgmtIPAddresses, n.PodCIDRs = nil, nil
	}
	if n.Equal(&Node{Name: n.Name}) {
		delete(p.nodes, n.Name)
	}
}

func parse[T any](texts []string, f func(string) (T, error)) []T {
	var all []T
	for _, s := range texts {
		if x, err := f(s); err == nil {
			all = append(all, x)
		}
	}
	return all
}
