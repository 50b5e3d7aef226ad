// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// wireguardPeers makes the ways to other nodes through the WireGuard link: one peer for
// each node, which accepts the node's pod subnets.
type wireguardPeers struct {
	link  *wireguard
	owner map[wgtypes.Key]string // key of the value that has the peer; a missing one is not known
}

func newWireguardPeers(link *wireguard) *wireguardPeers {
	return &wireguardPeers{link, map[wgtypes.Key]string{}}
}

// readWireguardPeer reads a peer from a value. The endpoint is the node's first address on
// the underlay; a peer that answers from another one is followed by WireGuard itself.
func readWireguardPeer(value *kv.NodeTunnel) (public wgtypes.Key, p wireguardPeer, err error) {
	if public, err = wgtypes.ParseKey(value.GetPublicKey()); err != nil {
		return public, p, fmt.Errorf("public_key %q: want 32 bytes in base64", value.GetPublicKey())
	}
	underlay, err := readAddrs("underlay", value.GetUnderlay())
	if err != nil {
		return public, p, err
	}
	if len(underlay) == 0 {
		return public, p, fmt.Errorf("underlay: want an address of node %q", value.GetNodeName())
	}
	p.endpoint = netip.AddrPortFrom(underlay[0], wireguardPort)
	if p.allowed, err = readNetworks("subnets", value.GetSubnets()); err != nil {
		return public, p, err
	}
	slices.SortFunc(p.allowed, comparePrefixes)
	p.allowed = slices.Compact(p.allowed)
	return public, p, nil
}

func (w *wireguardPeers) validate(value *kv.NodeTunnel) error {
	_, _, err := readWireguardPeer(value)
	return err
}

func (w *wireguardPeers) forget() {}

// set makes the peer of value; before is the value that was made, nil if there is none.
func (w *wireguardPeers) set(key string, before, value *kv.NodeTunnel) error {
	public, peer, err := readWireguardPeer(value)
	if err != nil {
		return err
	}
	if w.link.device == nil {
		return fmt.Errorf("link %s is missing", wireguardName)
	}
	var old wgtypes.Key
	var former wireguardPeer
	if before != nil {
		old, former = w.former(before)
	}
	if old != public {
		former = wireguardPeer{}
	}
	if err := w.link.device.setPeer(public, former, peer); err != nil {
		return fmt.Errorf("set peer %s of %s: %w", public, wireguardName, err)
	}
	w.owner[public] = key
	if before == nil || old == public {
		return nil
	}
	return w.erase(key, old)
}

// former returns the peer of a value that was made, or that Retrieve has found.
func (w *wireguardPeers) former(value *kv.NodeTunnel) (wgtypes.Key, wireguardPeer) {
	public, _ := wgtypes.ParseKey(value.GetPublicKey())
	var p wireguardPeer
	for _, text := range value.GetSubnets() {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			p.allowed = append(p.allowed, prefix)
		}
	}
	slices.SortFunc(p.allowed, comparePrefixes)
	if len(value.GetUnderlay()) > 0 {
		a, _ := netip.ParseAddr(value.GetUnderlay()[0])
		p.endpoint = netip.AddrPortFrom(a, wireguardPort)
	}
	return public, p
}

func (w *wireguardPeers) remove(key string, value *kv.NodeTunnel) error {
	if w.link.device == nil {
		return nil // without the device there are no peers
	}
	public, _ := w.former(value)
	return w.erase(key, public)
}

// erase removes a peer unless it has become another value's.
func (w *wireguardPeers) erase(key string, public wgtypes.Key) error {
	if owner, known := w.owner[public]; known && owner != key {
		return nil
	}
	if err := w.link.device.removePeer(public); err != nil {
		return fmt.Errorf("remove peer %s of %s: %w", public, wireguardName, err)
	}
	delete(w.owner, public)
	return nil
}

// retrieve returns the values whose peers are there. Peers that belong to none of the
// wanted values have a key with their public key.
func (w *wireguardPeers) retrieve(wanted []controller.Value) ([]controller.Value, error) {
	link, present, err := w.link.host.own(wireguardName)
	if errors.Is(err, southbound.ErrForeign) || err == nil && !present {
		return nil, nil // a device without its link ends
	}
	if err != nil {
		return nil, err
	}
	if !link.up {
		return nil, nil // the peers are there, but the routes through them went when the link was set down
	}
	if w.link.device == nil || !w.link.device.works() {
		return nil, nil
	}
	found, err := w.link.device.peers()
	if err != nil {
		return nil, err
	}
	var all []controller.Value
	clear(w.owner)
	add := func(key string, public wgtypes.Key, value *kv.NodeTunnel) {
		delete(found, public)
		all = append(all, controller.Value{Key: key, Message: value})
	}
	for _, v := range wanted {
		value, ok := v.Message.(*kv.NodeTunnel)
		if !ok || value.GetTransport() != kv.Transport_WIREGUARD {
			continue
		}
		public, peer, err := readWireguardPeer(value)
		have, present := found[public]
		if err != nil || !present {
			continue
		}
		w.owner[public] = v.Key
		if have.sameAllowed(peer) && w.known(value, have.endpoint) {
			add(v.Key, public, value)
			continue
		}
		add(v.Key, public, describePeer(public, have))
	}
	left := make([]wgtypes.Key, 0, len(found))
	for public := range found {
		left = append(left, public)
	}
	slices.SortFunc(left, func(x, y wgtypes.Key) int { return slices.Compare(x[:], y[:]) })
	for _, public := range left {
		add(kv.SinkTunnelPrefix+hex.EncodeToString(public[:]), public, describePeer(public, found[public]))
	}
	return all, nil
}

// known reports whether an endpoint is one of the addresses of the node: WireGuard changes
// it to the one that the node has last sent from.
func (w *wireguardPeers) known(value *kv.NodeTunnel, endpoint netip.AddrPort) bool {
	return endpoint.Port() == wireguardPort && slices.ContainsFunc(value.GetUnderlay(), func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && a == endpoint.Addr()
	})
}

// describePeer returns a peer as a value.
func describePeer(public wgtypes.Key, p wireguardPeer) *kv.NodeTunnel {
	return &kv.NodeTunnel{
		Transport: kv.Transport_WIREGUARD,
		PublicKey: public.String(),
		Underlay:  []string{p.endpoint.Addr().String()},
		Subnets:   texts(p.allowed),
	}
}
