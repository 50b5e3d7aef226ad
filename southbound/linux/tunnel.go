// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// tunnelPeers makes the ways to other nodes over one transport.
type tunnelPeers interface {
	validate(value *kv.NodeTunnel) error
	// set makes value. before is the value of the same key that was made, nil if there is
	// none; after an error it remains.
	set(key string, before, value *kv.NodeTunnel) error
	// remove removes a value. A missing one is not an error.
	remove(key string, value *kv.NodeTunnel) error
	// retrieve returns the values of the transport that are made.
	retrieve(wanted []controller.Value) ([]controller.Value, error)
	// forget drops what is known of the link, which another program may have changed.
	forget()
}

// tunnels makes the values below "tunnel/".
type tunnels struct {
	host     *tunnelHost
	peers    map[kv.Transport]tunnelPeers
	networks *networkPeers // of the links of networks; nil: there are none
}

// kind returns the kind of tunnels.
func (t *tunnels) kind() southbound.Kind[tunnel] {
	return southbound.Kind[tunnel]{
		Name:     "linux tunnel",
		Prefix:   kv.SinkTunnelPrefix,
		Read:     t.read,
		Needs:    tunnel.link,
		Prepare:  t.prepare,
		Create:   t.create,
		Update:   t.update,
		Delete:   t.remove,
		Retrieve: t.retrieve,
		Watch:    t.watch,
	}
}

// tunnel is a value, with those who make the ways of its transport.
type tunnel struct {
	*kv.NodeTunnel
	peers tunnelPeers
}

// link returns the key of the value with the link.
func (w tunnel) link() []string {
	if w.GetNetwork() != "" {
		return []string{kv.SinkLinkPrefix + w.GetNetwork()}
	}
	return []string{kv.SinkNode}
}

// read reads a value.
func (t *tunnels) read(_ string, value proto.Message) (tunnel, error) {
	w, err := t.of(value)
	if err != nil {
		return w, err
	}
	return w, w.peers.validate(w.NodeTunnel)
}

// of returns a value, or what is there, with the peers of its transport.
func (t *tunnels) of(value proto.Message) (tunnel, error) {
	m, err := message[*kv.NodeTunnel](value)
	if err != nil {
		return tunnel{}, err
	}
	if m.GetVni() != 0 {
		if t.networks == nil || m.GetTransport() != kv.Transport_VXLAN {
			return tunnel{}, fmt.Errorf("transport %s of network %q: want VXLAN", m.GetTransport(), m.GetNetwork())
		}
		return tunnel{m, t.networks.of(m.GetVni())}, nil
	}
	peers := t.peers[m.GetTransport()]
	if peers == nil {
		return tunnel{}, fmt.Errorf("transport %s: want VXLAN or WIREGUARD", m.GetTransport())
	}
	return tunnel{m, peers}, nil
}

func (t *tunnels) prepare(context.Context, []string) error {
	for _, peers := range t.peers {
		peers.forget()
	}
	for _, peers := range t.networks.all() {
		peers.forget()
	}
	return nil
}

func (t *tunnels) create(_ context.Context, key string, want tunnel) error {
	return want.peers.set(key, nil, want.NodeTunnel)
}

func (t *tunnels) update(_ context.Context, key string, was southbound.Made[tunnel], want tunnel) error {
	before, err := t.of(was.Message)
	if err != nil {
		return err
	}
	if before.peers == want.peers {
		return want.peers.set(key, before.NodeTunnel, want.NodeTunnel)
	}
	if err := want.peers.set(key, nil, want.NodeTunnel); err != nil {
		return err
	}
	return before.peers.remove(key, before.NodeTunnel)
}

func (t *tunnels) remove(_ context.Context, key string, was southbound.Made[tunnel]) error {
	before, err := t.of(was.Message)
	if err != nil {
		return err
	}
	return before.peers.remove(key, before.NodeTunnel)
}

// retrieve returns a wanted tunnel once, also if another transport has something of it:
// that has a key of its own, and is removed.
func (t *tunnels) retrieve(_ context.Context, all []southbound.Wanted[tunnel]) ([]controller.Value, error) {
	var wanted []controller.Value
	for _, w := range all {
		wanted = append(wanted, controller.Value{Key: w.Key, Message: w.Message})
	}
	return t.found(wanted)
}

// found returns the tunnels that are made.
func (t *tunnels) found(wanted []controller.Value) ([]controller.Value, error) {
	var all []controller.Value
	for transport, peers := range t.peers {
		found, err := peers.retrieve(wanted)
		if err != nil {
			return nil, fmt.Errorf("retrieve tunnels of %s: %w", transport, err)
		}
		all = append(all, found...)
	}
	networks, err := t.networks.present(wanted)
	if err != nil {
		return nil, err
	}
	for _, peers := range networks {
		found, err := peers.retrieve(wanted)
		if err != nil {
			return nil, fmt.Errorf("retrieve tunnels of link %s: %w", peers.link.label(), err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// watch calls changed for each tunnel whose forwarding entry or neighbours another program
// has changed. The peers of WireGuard can be changed by this process alone, or go with
// their link.
func (t *tunnels) watch(ctx context.Context, changed func(key string)) error {
	return t.host.monitor.follow(ctx, changed, watch{damaged: t.damaged})
}

func (t *tunnels) damaged(a announcement) (key string, is bool) {
	peers, ok := t.peers[kv.Transport_VXLAN].(*vxlanPeers)
	if !ok || a.kind != unix.RTM_NEWNEIGH && a.kind != unix.RTM_DELNEIGH {
		return "", false
	}
	for _, p := range append(t.networks.all(), peers) {
		if key, is := p.damaged(a); is {
			return key, true
		}
	}
	return "", false
}
