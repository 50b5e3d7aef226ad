// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// nodePart makes one part of a NodeNetwork true. Its methods are called from one goroutine
// at a time.
type nodePart interface {
	// read reads the part of a value that has it, or returns why it can never be made.
	read(value *kv.NodeNetwork, plan *nodePlan) error
	// wanted reports whether a plan has the part.
	wanted(plan nodePlan) bool
	// create makes the part, or repairs it.
	create(plan nodePlan) error
	// replaces reports whether a plan needs the present link of the part to be removed: the
	// kernel then removes the tunnels and the routes through it.
	replaces(plan nodePlan) bool
	// remove removes the part. A missing part is not an error.
	remove() error
	// retrieve compares the part with a plan. If there is a difference, it sets the fields of
	// the part in into.
	retrieve(into *kv.NodeNetwork, plan nodePlan) (partState, error)
}

// nodePlan is what the parts have read of a value. Without a value nothing is wanted.
type nodePlan struct {
	value     *kv.NodeNetwork
	families  []byte         // of the node's pods
	vxlan     *vxlanLink     // nil: none
	wireguard *wireguardLink // nil: none
}

// partState tells how a part of a NodeNetwork compares with the wanted value.
type partState int

const (
	partAbsent    partState = iota // there is nothing of the part
	partDifferent                  // another value, or an incomplete one
	partComplete
)

// ownNode makes the value "node".
type ownNode struct {
	host    *tunnelHost
	parts   []nodePart
	notes   func() []string // nil: there are none
	closers []func() error
}

// kind returns the kind of the value.
func (n *ownNode) kind() southbound.Kind[nodePlan] {
	return southbound.Kind[nodePlan]{
		Name:      "linux node",
		Prefix:    kv.SinkNode,
		Read:      n.read,
		Create:    n.create,
		Delete:    n.remove,
		Recreates: n.recreates,
		Retrieve:  n.retrieve,
		Notes:     n.notes,
		Watch:     n.watch,
		Close:     n.close,
	}
}

// close ends what the value has in this process. What the kernel has stays.
func (n *ownNode) close() error {
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// read returns the plan of a value, or why one of its parts can never be made.
func (n *ownNode) read(_ string, m proto.Message) (plan nodePlan, err error) {
	if plan.value, err = message[*kv.NodeNetwork](m); err != nil {
		return plan, err
	}
	for _, p := range n.parts {
		err = errors.Join(err, p.read(plan.value, &plan))
	}
	return plan, err
}

// create removes the parts that a plan does not have, and makes the others.
func (n *ownNode) create(_ context.Context, _ string, plan nodePlan) error {
	for _, p := range n.parts {
		if p.wanted(plan) {
			continue
		}
		if err := p.remove(); err != nil {
			return err
		}
	}
	for _, p := range n.parts {
		if !p.wanted(plan) {
			continue
		}
		if err := p.create(plan); err != nil {
			return err
		}
	}
	return nil
}

// recreates reports whether a link of the node has to go or to be made again. It asks the
// kernel, because a value does not show all of the link's form.
func (n *ownNode) recreates(_ string, _ southbound.Made[nodePlan], want nodePlan) bool {
	return slices.ContainsFunc(n.parts, func(p nodePart) bool { return p.replaces(want) })
}

func (n *ownNode) remove(context.Context, string, southbound.Made[nodePlan]) error {
	var err error
	for _, p := range n.parts {
		err = errors.Join(err, p.remove())
	}
	return err
}

// retrieve returns the wanted value if all parts are as it says.
func (n *ownNode) retrieve(_ context.Context, wanted []southbound.Wanted[nodePlan]) ([]controller.Value, error) {
	want := nodePlan{}
	for _, w := range wanted {
		want = w.Plan
	}
	have := &kv.NodeNetwork{}
	if want.value != nil {
		have = proto.CloneOf(want.value)
	}
	present, different := len(wanted) > 0, false
	for _, p := range n.parts {
		state, err := p.retrieve(have, want)
		if err != nil {
			return nil, fmt.Errorf("retrieve %s: %w", kv.SinkNode, err)
		}
		present = present || state != partAbsent
		if p.wanted(want) {
			different = different || state != partComplete
		} else {
			different = different || state != partAbsent
		}
	}
	if !present {
		return nil, nil
	}
	if different && proto.Equal(have, want.value) {
		have = &kv.NodeNetwork{} // the difference is one that the value does not show
	}
	return []controller.Value{{Key: kv.SinkNode, Message: have}}, nil
}

// watch calls changed when one of the node's own links, its addresses, or a firewall's
// chain FORWARD change. The tables of iptables-legacy announce nothing: their changes are
// found by the next resync.
func (n *ownNode) watch(ctx context.Context, changed func(key string)) error {
	return n.host.monitor.follow(ctx, changed, watch{
		families: []int{unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER},
		damaged: func(a announcement) (key string, is bool) {
			return kv.SinkNode, a.link.name == vxlanName || a.link.name == wireguardName || a.chain == forwardChain
		},
		all: kv.SinkNode,
	})
}

// message returns a value as M.
func message[M proto.Message](value proto.Message) (M, error) {
	m, ok := value.(M)
	if !ok {
		return m, fmt.Errorf("value %T: want %T", value, m)
	}
	return m, nil
}
