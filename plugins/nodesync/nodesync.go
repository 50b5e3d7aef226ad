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
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	ServiceLabel controller.AgentLabel
	IDClaimer    *IDClaimer
	Claims       ClaimWatcher // nil: this node claims no prefixes
}

// ClaimWatcher learns which changes of the cluster's state may matter to the
// claims of this node.
type ClaimWatcher interface {
	// Changed reports a change of a claim, nil for that of a node record.
	Changed(node string, claim *kv.PrefixClaim)
	Poke()
}

// underlay holds what other nodes need to make a tunnel to this one.
type underlay struct {
	addresses []string // not nil
	publicKey string
}

// NodeSync is the plugin. It belongs to the loop.
type NodeSync struct {
	Deps
	messages map[string]map[string]proto.Message // by node name and store key
	stage
	marked stage // at the savepoint
}

// stage holds what the next commit publishes.
type stage struct {
	publish  []netip.Prefix
	staged   bool           // publish is
	cidrs    []netip.Prefix // nil: nothing
	pools    bool           // they have changed
	underlay *underlay      // nil: nothing
}

var (
	_ API                           = (*NodeSync)(nil)
	_ NodeGetter                    = (*NodeSync)(nil)
	_ UnderlayPublisher             = (*NodeSync)(nil)
	_ BlockPublisher                = (*NodeSync)(nil)
	_ controller.EventHandler       = (*NodeSync)(nil)
	_ controller.SavepointCommitter = (*NodeSync)(nil)
)

// NewPlugin makes the plugin.
func NewPlugin(deps Deps) *NodeSync {
	deps.Name = "nodesync"
	return &NodeSync{Deps: deps, messages: map[string]map[string]proto.Message{}}
}

// Init does nothing: the claimer claims the ID.
func (p *NodeSync) Init() error { return nil }

// AfterInit does nothing.
func (p *NodeSync) AfterInit() error { return nil }

// Close does nothing; in particular it does not release the ID.
func (p *NodeSync) Close() error { return nil }

// GetNodeID is this node's ID.
func (p *NodeSync) GetNodeID() uint32 { return p.IDClaimer.Use() }

// GetAllNodes returns what is known of all nodes.
func (p *NodeSync) GetAllNodes() Nodes {
	nodes := make(Nodes, len(p.messages))
	for name := range p.messages {
		if n := p.node(name); n != nil {
			nodes[name] = n
		}
	}
	return nodes
}

// GetNode returns what is known of one node. Its cost does not depend on the number of
// nodes.
func (p *NodeSync) GetNode(name string) *Node { return p.node(name) }

// PublishNodeIPs stages the addresses for the commit of this event.
func (p *NodeSync) PublishNodeIPs(addresses []netip.Prefix) error {
	p.publish, p.staged = slices.Clone(addresses), true
	return nil
}

// PublishUnderlay stages the addresses and the key for the commit of this event.
func (p *NodeSync) PublishUnderlay(addresses []netip.Addr, publicKey string) {
	p.underlay = &underlay{textsOf(addresses), publicKey}
}

// PublishPodCIDRs stages the subnets for the commit of this event.
func (p *NodeSync) PublishPodCIDRs(cidrs []netip.Prefix) {
	p.cidrs = append([]netip.Prefix{}, cidrs...)
}

// PublishPools stages it for the commit of this event.
func (p *NodeSync) PublishPools() { p.pools = true }

// Commit hands what is staged to the claimer.
func (p *NodeSync) Commit(context.Context) error {
	if p.staged {
		published := textsOf(p.publish)
		p.IDClaimer.publishSoon(func(s *publication) { s.addresses = published })
	}
	if p.cidrs != nil {
		published := textsOf(p.cidrs)
		p.IDClaimer.publishSoon(func(s *publication) { s.blocks = published })
	}
	if u := p.underlay; u != nil {
		p.IDClaimer.publishSoon(func(s *publication) { s.underlay, s.publicKey = u.addresses, u.publicKey })
	}
	if p.pools {
		p.IDClaimer.Poke()
	}
	p.Undo()
	return nil
}

// Staged says whether Commit would tell the cluster something new.
func (p *NodeSync) Staged() (all []string) {
	said := p.IDClaimer.published()
	if p.staged && !slices.Equal(said.addresses, textsOf(p.publish)) {
		all = append(all, fmt.Sprintf("publish the node's addresses %v", p.publish))
	}
	if p.cidrs != nil && !slices.Equal(said.blocks, textsOf(p.cidrs)) {
		all = append(all, fmt.Sprintf("publish the node's pod subnets %v", p.cidrs))
	}
	if u := p.underlay; u != nil && (!slices.Equal(said.underlay, u.addresses) || said.publicKey != u.publicKey) {
		text := fmt.Sprintf("publish the node's underlay addresses %v and public key %q", u.addresses, u.publicKey)
		all = append(all, text)
	}
	return all
}

// Undo drops what is staged.
func (p *NodeSync) Undo() { p.stage = stage{} }

// Mark sets the savepoint.
func (p *NodeSync) Mark() { p.marked = p.stage }

// UndoToMark restores what was staged at the savepoint.
func (p *NodeSync) UndoToMark() { p.stage = p.marked }

// HandlesEvent selects resyncs, changes of nodes and of this node's ID.
func (p *NodeSync) HandlesEvent(event controller.Event) bool {
	if event.Method() != controller.Update {
		return true
	}
	if _, ok := event.(*NodeIDChange); ok {
		return true
	}
	change, ok := event.(*controller.KubeStateChange)
	return ok && slices.Contains(followed(), change.Resource)
}

// followed returns the resources that nodes are derived from.
func followed() []string {
	return []string{kubestate.NodeRecords, kubestate.Nodes, kubestate.PrefixClaims}
}

// Resync rebuilds the nodes from their records and their Kubernetes objects.
func (p *NodeSync) Resync(
	_ controller.Event,
	state controller.KubeStateData,
	_ int,
	_ controller.ResyncOperations,
) error {
	p.messages = map[string]map[string]proto.Message{}
	for _, resource := range followed() {
		for key, m := range state[resource] {
			p.note(key, m)
		}
	}
	p.lookAtOwn()
	if p.Claims != nil {
		p.Claims.Poke()
	}
	return nil
}

// lookAtOwn has the claimer look where the cluster does not know this node as it
// should, and tells it what is in the Node object.
func (p *NodeSync) lookAtOwn() {
	held := p.IDClaimer.Held()
	name := p.ServiceLabel.GetAgentLabel()
	record, _ := p.messages[name][kv.NodeRecordKey(held.ID)].(*kv.NodeRecord)
	if record == nil || record.Generation != held.Generation || record.Released != 0 || record.SupersededBy != 0 {
		p.IDClaimer.Poke()
	}
	if node, _ := p.messages[name][kv.NodeKey(name)].(*kv.Node); node.GetUid() != "" {
		cidrs, mgmt := slices.Clone(node.PodCidrs), slices.Clone(node.Addresses)
		p.IDClaimer.publishSoon(func(s *publication) { s.uid, s.podCIDRs, s.mgmt = node.Uid, cidrs, mgmt })
	}
}

// Update applies one change and announces it.
func (p *NodeSync) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	if id, ok := event.(*NodeIDChange); ok {
		if id.Problem != "" {
			return "nothing new is allocated", nil
		}
		return "allocation goes on", nil
	}
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
	p.tellClaims(change)
	if _, own := before[p.ServiceLabel.GetAgentLabel()]; own {
		p.lookAtOwn()
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

// tellClaims tells the claimer of a claim or a record that has changed.
func (p *NodeSync) tellClaims(change *controller.KubeStateChange) {
	if p.Claims == nil || change.Resource == kubestate.Nodes {
		return
	}
	claim, ok := change.New.(*kv.PrefixClaim)
	if prev, isClaim := change.Prev.(*kv.PrefixClaim); !ok && isClaim { // it is gone: held by no node
		claim = proto.Clone(prev).(*kv.PrefixClaim)
		claim.Held = false
	}
	p.Claims.Changed(p.ServiceLabel.GetAgentLabel(), claim)
}

// Revert does nothing: the changes of the cluster's state are not undone.
func (p *NodeSync) Revert(controller.Event) error { return nil }

func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *kv.NodeRecord:
		return m.Name
	case *kv.Node:
		return m.Name
	case *kv.PrefixClaim:
		return m.Node
	}
	return ""
}

func (p *NodeSync) note(key string, m proto.Message) {
	name := nameOf(m)
	if p.messages[name] == nil {
		p.messages[name] = map[string]proto.Message{}
	}
	p.messages[name][key] = m
}

func (p *NodeSync) forget(key string, m proto.Message) {
	name := nameOf(m)
	delete(p.messages[name], key)
	if len(p.messages[name]) == 0 {
		delete(p.messages, name)
	}
}

// node derives a node from its messages, nil if there are none. An ID that
// is released has no node. Of two records of one name, which is so after a
// node lost its state directory, the one that was not superseded counts, then
// the newer one. What cannot be parsed is left out.
func (p *NodeSync) node(name string) *Node {
	n := &Node{Name: name}
	known, object := false, false
	var newest *kv.NodeRecord
	for _, key := range slices.Sorted(maps.Keys(p.messages[name])) {
		switch m := p.messages[name][key].(type) {
		case *kv.NodeRecord:
			if m.Released == 0 && (newest == nil || newer(m, newest)) {
				newest, known = m, true
				n.ID, n.VppIPAddresses = m.Id, parse(m.IpAddresses, netip.ParsePrefix)
				n.Underlay, n.PublicKey = parse(m.Underlay, netip.ParseAddr), m.PublicKey
			}
		case *kv.Node:
			known, object = true, true
			n.MgmtIPAddresses = parse(m.Addresses, netip.ParseAddr)
			n.PodCIDRs, n.PodCIDRProblem = podCIDRs(m.PodCidrs)
		case *kv.PrefixClaim:
			if t, err := claims.TargetOf(m); err == nil && m.Held && m.Network == kv.PodNetworkClaims {
				n.Claims = append(n.Claims, t.Prefix)
			}
		}
	}
	if !known {
		return nil
	}
	if newest == nil || name == p.ServiceLabel.GetAgentLabel() {
		return n
	}
	if !object { // its Node object is not reflected here: its agent says what is in it
		n.MgmtIPAddresses = parse(newest.MgmtAddresses, netip.ParseAddr)
	}
	if !object || newest.ExplicitBlocks {
		n.PodCIDRs, n.PodCIDRProblem = podCIDRs(newest.PodCidrs)
	}
	return n
}

// podCIDRs parses the podCIDRs of a node: all of them, or none and what is wrong.
func podCIDRs(texts []string) (all []netip.Prefix, problem string) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Sprintf("%q is not a network, such as 10.1.5.0/24", text)
		}
		all = append(all, p)
	}
	return all, ""
}

func newer(a, b *kv.NodeRecord) bool {
	if (a.SupersededBy != 0) != (b.SupersededBy != 0) {
		return b.SupersededBy != 0
	}
	return a.Generation > b.Generation
}

func textsOf[T fmt.Stringer](addresses []T) []string {
	texts := []string{}
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	return texts
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
