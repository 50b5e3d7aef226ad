// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// tunnels is the descriptor of the values below "tunnel/".
type tunnels struct {
	host     *tunnelHost
	peers    map[kv.Transport]tunnelPeers
	networks *networkPeers // of the links of networks; nil: there are none
}

var (
	_ southbound.Descriptor = (*tunnels)(nil)
	_ southbound.Preparer   = (*tunnels)(nil)
	_ southbound.Watcher    = (*tunnels)(nil)
)

func (t *tunnels) Name() string { return "linux tunnel" }

func (t *tunnels) Handles(key string) bool { return strings.HasPrefix(key, kv.SinkTunnelPrefix) }

// of returns the peers of a value's transport.
func (t *tunnels) of(value proto.Message) (*kv.NodeTunnel, tunnelPeers, error) {
	tunnel, err := message[*kv.NodeTunnel](value)
	if err != nil {
		return nil, nil, err
	}
	if tunnel.GetVni() != 0 {
		if t.networks == nil || tunnel.GetTransport() != kv.Transport_VXLAN {
			return nil, nil, fmt.Errorf(
				"transport %s of network %q: want VXLAN",
				tunnel.GetTransport(),
				tunnel.GetNetwork(),
			)
		}
		return tunnel, t.networks.of(tunnel.GetVni()), nil
	}
	peers := t.peers[tunnel.GetTransport()]
	if peers == nil {
		return nil, nil, fmt.Errorf("transport %s: want VXLAN or WIREGUARD", tunnel.GetTransport())
	}
	return tunnel, peers, nil
}

func (t *tunnels) Validate(_ string, value proto.Message) error {
	tunnel, peers, err := t.of(value)
	if err != nil {
		return err
	}
	return peers.validate(tunnel)
}

// Dependencies returns the key of the value with the link.
func (t *tunnels) Dependencies(_ string, value proto.Message) []string {
	if tunnel, ok := value.(*kv.NodeTunnel); ok && tunnel.GetNetwork() != "" {
		return []string{kv.SinkLinkPrefix + tunnel.GetNetwork()}
	}
	return []string{kv.SinkNode}
}

func (t *tunnels) Prepare(context.Context, []string) error {
	for _, peers := range t.peers {
		peers.forget()
	}
	for _, peers := range t.networks.all() {
		peers.forget()
	}
	return nil
}

func (t *tunnels) Create(_ context.Context, key string, value proto.Message) error {
	tunnel, peers, err := t.of(value)
	if err != nil {
		return err
	}
	return peers.set(key, nil, tunnel)
}

func (t *tunnels) Update(_ context.Context, key string, before, value proto.Message) error {
	old, former, err := t.of(before)
	if err != nil {
		return err
	}
	tunnel, peers, err := t.of(value)
	if err != nil {
		return err
	}
	if former == peers {
		return peers.set(key, old, tunnel)
	}
	if err := peers.set(key, nil, tunnel); err != nil {
		return err
	}
	if err := former.remove(key, old); err != nil {
		return errors.Join(err, peers.remove(key, tunnel))
	}
	return nil
}

func (t *tunnels) Delete(_ context.Context, key string, value proto.Message) error {
	tunnel, peers, err := t.of(value)
	if err != nil {
		return err
	}
	return peers.remove(key, tunnel)
}

// Retrieve returns a wanted tunnel once, also if another transport has something of it:
// that has a key of its own, and is removed.
func (t *tunnels) Retrieve(_ context.Context, wanted []controller.Value) ([]controller.Value, error) {
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

// Watch calls changed for each tunnel whose forwarding entry or neighbours another program
// has changed. The peers of WireGuard can be changed by this process alone, or go with
// their link.
func (t *tunnels) Watch(ctx context.Context, changed func(key string)) error {
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
