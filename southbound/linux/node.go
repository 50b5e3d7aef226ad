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
	// wanted reports whether a value has the part.
	wanted(value *kv.NodeNetwork) bool
	// validate returns the reason why a value with the part can never be made.
	validate(value *kv.NodeNetwork) error
	// create makes the part, or repairs it.
	create(value *kv.NodeNetwork) error
	// replaces reports whether value needs the present link of the part to be removed: the
	// kernel then removes the tunnels and the routes through it.
	replaces(value *kv.NodeNetwork) bool
	// remove removes the part. A missing part is not an error.
	remove() error
	// retrieve compares the part with the wanted value. If there is a difference, it sets
	// the fields of the part in into.
	retrieve(into, wanted *kv.NodeNetwork) (partState, error)
}

// partState tells how a part of a NodeNetwork compares with the wanted value.
type partState int

const (
	partAbsent    partState = iota // there is nothing of the part
	partDifferent                  // another value, or an incomplete one
	partComplete
)

// nodeDescriptor is the descriptor of the value "node".
type nodeDescriptor struct {
	host    *tunnelHost
	parts   []nodePart
	notes   func() []string // nil: there are none
	closers []func() error
}

var (
	_ southbound.Descriptor = (*nodeDescriptor)(nil)
	_ southbound.Recreator  = (*nodeDescriptor)(nil)
	_ southbound.Watcher    = (*nodeDescriptor)(nil)
)

// Notes returns what the administrator should know about the node, although it is not a
// failure of the value. Any goroutine may call it.
func (n *nodeDescriptor) Notes() []string {
	if n.notes == nil {
		return nil
	}
	return n.notes()
}

// Close ends what the value has in this process. What the kernel has stays.
func (n *nodeDescriptor) Close() error {
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

func (n *nodeDescriptor) Name() string { return "linux node" }

func (n *nodeDescriptor) Handles(key string) bool { return key == kv.SinkNode }

func (n *nodeDescriptor) Validate(_ string, value proto.Message) error {
	network, err := message[*kv.NodeNetwork](value)
	if err != nil {
		return err
	}
	for _, p := range n.parts {
		if p.wanted(network) {
			err = errors.Join(err, p.validate(network))
		}
	}
	return err
}

func (n *nodeDescriptor) Dependencies(string, proto.Message) []string { return nil }

func (n *nodeDescriptor) Create(_ context.Context, _ string, value proto.Message) error {
	network, err := message[*kv.NodeNetwork](value)
	if err != nil {
		return err
	}
	return n.apply(network)
}

// apply removes the parts that value does not have, and makes the others.
func (n *nodeDescriptor) apply(value *kv.NodeNetwork) error {
	for _, p := range n.parts {
		if p.wanted(value) {
			continue
		}
		if err := p.remove(); err != nil {
			return err
		}
	}
	for _, p := range n.parts {
		if !p.wanted(value) {
			continue
		}
		if err := p.create(value); err != nil {
			return err
		}
	}
	return nil
}

func (n *nodeDescriptor) Update(ctx context.Context, key string, _, value proto.Message) error {
	return n.Create(ctx, key, value)
}

// Recreate reports whether a link of the node has to go or to be made again. It asks the
// kernel, because a value does not show all of the link's form.
func (n *nodeDescriptor) Recreate(_ string, _, value proto.Message) bool {
	network, ok := value.(*kv.NodeNetwork)
	return ok && slices.ContainsFunc(n.parts, func(p nodePart) bool { return p.replaces(network) })
}

func (n *nodeDescriptor) Delete(context.Context, string, proto.Message) error {
	var err error
	for _, p := range n.parts {
		err = errors.Join(err, p.remove())
	}
	return err
}

// Retrieve returns the wanted value if all parts are as it says.
func (n *nodeDescriptor) Retrieve(_ context.Context, wanted []controller.Value) ([]controller.Value, error) {
	want := &kv.NodeNetwork{}
	for _, w := range wanted {
		if network, ok := w.Message.(*kv.NodeNetwork); ok {
			want = network
		}
	}
	have := proto.CloneOf(want)
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
	if different && proto.Equal(have, want) {
		have = &kv.NodeNetwork{} // the difference is one that the value does not show
	}
	return []controller.Value{{Key: kv.SinkNode, Message: have}}, nil
}

// Watch calls changed when one of the node's own links, its addresses, or a firewall's
// chain FORWARD change. The tables of iptables-legacy announce nothing: their changes are
// found by the next resync.
func (n *nodeDescriptor) Watch(ctx context.Context, changed func(key string)) error {
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
