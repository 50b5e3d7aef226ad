// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"fmt"
	"maps"
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
	said    map[string]map[string]proto.Message // by node name and store key: what is said of a node
	publish []netip.Prefix                      // staged
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
	return &NodeSync{Deps: deps, said: map[string]map[string]proto.Message{}}
}

// Init does nothing: the ID was claimed before.
func (p *NodeSync) Init() error { return nil }

// AfterInit does nothing.
func (p *NodeSync) AfterInit() error { return nil }

// Close does nothing; in particular it does not release the ID.
func (p *NodeSync) Close() error { return nil }

// GetNodeID is this node's ID.
func (p *NodeSync) GetNodeID() uint32 { return p.ID }

// GetAllNodes is what is known of all nodes.
func (p *NodeSync) GetAllNodes() Nodes {
	nodes := make(Nodes, len(p.said))
	for name := range p.said {
		nodes[name] = p.node(name)
	}
	return nodes
}

// PublishNodeIPs stages the addresses for the commit of this event.
func (p *NodeSync) PublishNodeIPs(addresses []netip.Prefix) error {
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
	var published []string
	for _, a := range addresses {
		published = append(published, a.String())
	}
	if slices.Equal(record.IpAddresses, published) {
		return nil
	}
	record.IpAddresses = published
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
	p.said = map[string]map[string]proto.Message{}
	for _, resource := range []string{kubestate.NodeRecords, kubestate.Nodes} {
		for key, m := range state[resource] {
			p.note(key, m)
		}
	}
	return nil
}

// Update applies one change and announces it.
func (p *NodeSync) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	change := event.(*controller.KubeStateChange)
	before := map[string]*Node{}
	for _, m := range []proto.Message{change.Prev, change.New} {
		if m != nil {
			before[nameOf(m)] = p.node(nameOf(m))
		}
	}
	if change.Prev != nil {
		p.forget(change.Key, change.Prev)
	}
	if change.New != nil {
		p.note(change.Key, change.New)
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		prev, now := before[name], p.node(name)
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

func (p *NodeSync) note(key string, m proto.Message) {
	name := nameOf(m)
	if p.said[name] == nil {
		p.said[name] = map[string]proto.Message{}
	}
	p.said[name][key] = m
}

func (p *NodeSync) forget(key string, m proto.Message) {
	name := nameOf(m)
	delete(p.said[name], key)
	if len(p.said[name]) == 0 {
		delete(p.said, name)
	}
}

// node derives a node from what is said of it, nil where nothing is. Of two
// records of one name, which should not be, the newer one counts. What cannot
// be parsed is left out.
func (p *NodeSync) node(name string) *Node {
	if len(p.said[name]) == 0 {
		return nil
	}
	n := &Node{Name: name}
	var newest *kv.NodeRecord
	for _, key := range slices.Sorted(maps.Keys(p.said[name])) {
		switch m := p.said[name][key].(type) {
		case *kv.NodeRecord:
			if newest == nil || m.Generation > newest.Generation {
				newest = m
				n.ID, n.VppIPAddresses = m.Id, parse(m.IpAddresses, netip.ParsePrefix)
			}
		case *kv.Node:
			n.MgmtIPAddresses, n.PodCIDRs = parse(m.Addresses, netip.ParseAddr), parse(m.PodCidrs, netip.ParsePrefix)
		}
	}
	return n
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
