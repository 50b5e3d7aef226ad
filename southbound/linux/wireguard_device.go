// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// wireguardName is the name of the node's WireGuard link.
	wireguardName = "cadwg"
	// wireguardKind is the kind of the link if the kernel makes it.
	wireguardKind = "wireguard"
	// wireguardPort is the port of WireGuard on every node.
	wireguardPort = 51820
)

// wireguardDevice holds the keys of the WireGuard link: the kernel's, or that of this
// process.
type wireguardDevice interface {
	// setKey sets the node's private key and the port.
	setKey(private wgtypes.Key, port int) error
	// key returns the private key and the port.
	key() (wgtypes.Key, int, error)
	// peers returns all peers by their public keys.
	peers() (map[wgtypes.Key]wireguardPeer, error)
	// setPeer adds a peer, or changes it.
	setPeer(public wgtypes.Key, before, peer wireguardPeer) error
	// removePeer removes a peer. A missing one is not an error.
	removePeer(public wgtypes.Key) error
	// works reports whether the device still serves the link.
	works() bool
	// close ends what the device has in this process. The link stays.
	close() error
}

// wireguardPeer holds the way to one other node.
type wireguardPeer struct {
	endpoint netip.AddrPort
	allowed  []netip.Prefix // ordered
}

// sameAllowed reports whether a peer accepts the same addresses.
func (p wireguardPeer) sameAllowed(other wireguardPeer) bool {
	return slices.Equal(p.allowed, other.allowed)
}

func comparePrefixes(x, y netip.Prefix) int {
	return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
}
