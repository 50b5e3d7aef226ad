// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/witness"
)

// Options holds the dependencies of a Reader. Status is needed unless Embedded is set.
type Options struct {
	Node     string                  // this node's name
	Embedded bool                    // the cluster store is on this node, and other nodes do not use it
	Status   func() kubestate.Status // of the source of the loop's state
	Now      func() time.Time        // nil: time.Now
}

// Reader reads the cluster witness. Add it to the event loop's handlers.
type Reader struct {
	options  Options
	snapshot atomic.Pointer[snapshot]
}

// snapshot holds what the loop has last said. It is immutable.
type snapshot struct {
	local    bool // the state is this node's mirror of the store
	revision int64
	pods     table[*witness.ClusterPod]
	nodes    table[*witness.ClusterNode]
}

var _ controller.EventHandler = (*Reader)(nil)

// New returns a Reader that has not seen the cluster's state yet.
func New(options Options) *Reader {
	if options.Now == nil {
		options.Now = time.Now
	}
	return &Reader{options: options}
}

// Read returns the pods of this node and the nodes, both in the order of their names.
func (r *Reader) Read(context.Context) (*witness.ClusterView, error) {
	if r.options.Embedded {
		return nil, fmt.Errorf("%w: the cluster store is embedded, so there is no cluster", witness.ErrNotApplicable)
	}
	status, s := r.options.Status(), r.snapshot.Load()
	switch {
	case s == nil && status.Error != "":
		return nil, fmt.Errorf("the state of the cluster has not been read yet: %s", status.Error)
	case s == nil:
		return nil, errors.New("the state of the cluster has not been read yet")
	case !status.Connected && status.Error != "":
		return nil, fmt.Errorf("the cluster store does not answer: %s", status.Error)
	case s.local || !status.Connected:
		return nil, errors.New(
			"the state of the cluster is from this node's mirror: the cluster store has not answered yet",
		)
	case len(status.Hidden) > 0:
		return nil, fmt.Errorf("the value of %s in the cluster store cannot be read", status.Hidden[0])
	}
	view := &witness.ClusterView{
		Taken:    r.options.Now(),
		Revision: s.revision,
		Pods:     values(s.pods),
		Nodes:    values(s.nodes),
	}
	if len(view.Nodes) == 0 {
		return nil, fmt.Errorf(
			"%w: the cluster store has no Nodes: Kubernetes is not used, or cadastre-operator does not reflect it (controller ksr)",
			witness.ErrNotApplicable,
		)
	}
	if !slices.ContainsFunc(view.Nodes, func(n witness.ClusterNode) bool { return n.Name == r.options.Node }) {
		return nil, fmt.Errorf(
			"the cluster has no Node %q: want the name of this machine's Node, which the agent's --node-name must give",
			r.options.Node,
		)
	}
	return view, nil
}

// values returns the entries of a table in the order of their keys.
func values[V any](t table[*V]) []V {
	all := t.all()
	list := make([]V, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, *all[key])
	}
	return list
}

// String returns the name of the handler.
func (r *Reader) String() string { return "cluster-witness" }

// HandlesEvent selects resyncs and changes of Nodes and pods.
func (r *Reader) HandlesEvent(event controller.Event) bool {
	if event.Method() != controller.Update {
		return true
	}
	c, ok := event.(*controller.KubeStateChange)
	return ok && (c.Resource == kubestate.Pods || c.Resource == kubestate.Nodes)
}

// Resync replaces the snapshot.
func (r *Reader) Resync(
	event controller.Event,
	state controller.KubeStateData,
	_ int,
	_ controller.ResyncOperations,
) error {
	now := &snapshot{}
	if was := r.snapshot.Load(); was != nil {
		now.local, now.revision = was.local, was.revision
	}
	if ev, ok := event.(*controller.DBResync); ok {
		now.local, now.revision = ev.Local, ev.Revision
	}
	now.pods.base = make(map[string]*witness.ClusterPod, len(state[kubestate.Pods]))
	for key, m := range state[kubestate.Pods] {
		if p := r.pod(m); p != nil {
			now.pods.base[key] = p
		}
	}
	now.nodes.base = make(map[string]*witness.ClusterNode, len(state[kubestate.Nodes]))
	for key, m := range state[kubestate.Nodes] {
		if n := nodeOf(m); n != nil {
			now.nodes.base[key] = n
		}
	}
	r.snapshot.Store(now)
	return nil
}

// Update applies a change to the snapshot.
func (r *Reader) Update(event controller.Event, _ controller.UpdateOperations) (string, error) {
	c, was := event.(*controller.KubeStateChange), r.snapshot.Load()
	if was == nil {
		return "", nil // the first event of a loop is a resync
	}
	now := *was
	now.revision = max(now.revision, c.Revision)
	if c.Resource == kubestate.Pods {
		p := r.pod(c.New)
		now.pods = now.pods.with(c.Key, p, p == nil)
	} else {
		n := nodeOf(c.New)
		now.nodes = now.nodes.with(c.Key, n, n == nil)
	}
	r.snapshot.Store(&now)
	return "", nil
}

// Revert does nothing: changes of the cluster's state are not reverted.
func (r *Reader) Revert(controller.Event) error { return nil }

// pod returns a pod of this node, nil if m is another message or of another node.
func (r *Reader) pod(m proto.Message) *witness.ClusterPod {
	p, ok := m.(*kv.Pod)
	if !ok || p == nil || p.Node != r.options.Node {
		return nil
	}
	return &witness.ClusterPod{
		Namespace: p.Namespace,
		Name:      p.Name,
		UID:       p.Uid,
		HostNet:   p.HostNetwork,
		Finished:  p.Phase == "Succeeded" || p.Phase == "Failed",
		Addrs:     witness.ParseAddrs(p.IpAddresses),
	}
}

// nodeOf returns a Node, nil if m is another message.
func nodeOf(m proto.Message) *witness.ClusterNode {
	n, ok := m.(*kv.Node)
	if !ok || n == nil {
		return nil
	}
	return &witness.ClusterNode{
		Name:  n.Name,
		Addrs: witness.ParseAddrs(n.Addresses),
		Pods:  witness.ParsePrefixes(n.PodCidrs),
	}
}
