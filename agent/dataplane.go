// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/southbound/linux"
)

// underlayTimeout bounds one reading of the node's links.
const underlayTimeout = 10 * time.Second

// dataplane returns the configuration of the network that the southbound makes, nil if it
// makes routes at most.
func (a *assembly) dataplane(d dependencies) *ipnet.Dataplane {
	conf := a.conf.Cadastre
	if conf.Dataplane != contivconf.DataplaneLinux {
		return nil
	}
	return &ipnet.Dataplane{
		NodeName:   a.node.Name,
		Underlay:   d.underlay,
		PublicKey:  d.tunnel.public,
		MTU:        uint32(conf.MTU),
		VNI:        conf.VNI,
		PodTable:   conf.PodTable,
		Masquerade: conf.Masquerade,
	}
}

// readUnderlay reads the underlay from the kernel.
func (a *Agent) readUnderlay(nodeIPs []netip.Addr) (ipnet.Underlay, error) {
	ctx, cancel := context.WithTimeout(context.Background(), underlayTimeout)
	defer cancel()
	u, err := linux.ReadUnderlay(ctx, linux.UnderlayOptions{
		Interface: a.conf.Cadastre.Underlay.Interface,
		CIDRs:     a.conf.Cadastre.Underlay.CIDRs,
		NodeIPs:   nodeIPs,
	})
	return ipnet.Underlay{Addresses: u.Addresses, Link: u.Link, MTU: uint32(u.MTU)}, err
}

// tunnelKey holds the keys of this node's WireGuard tunnel, in base64; the zero tunnelKey
// stands for none.
type tunnelKey struct{ private, public string }

// tunnelKeyName names the private key on the disk.
const tunnelKeyName = "wireguard-private-key"

// openTunnelKey returns the keys that the disk remembers. The first call makes them: the
// other nodes know the public key, so a restart must not change it.
func openTunnelKey(disk nodesync.Disk, random io.Reader) (tunnelKey, error) {
	text, err := disk.Local(tunnelKeyName)
	if err != nil {
		return tunnelKey{}, fmt.Errorf("read the WireGuard key of this node: %w", err)
	}
	if text == "" {
		key, err := ecdh.X25519().GenerateKey(random)
		if err == nil {
			text = base64.StdEncoding.EncodeToString(key.Bytes())
			err = disk.SetLocal(tunnelKeyName, text)
		}
		if err != nil {
			return tunnelKey{}, fmt.Errorf("make the WireGuard key of this node: %w", err)
		}
	}
	bytes, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return tunnelKey{}, errBadTunnelKey // err would have the key
	}
	key, err := ecdh.X25519().NewPrivateKey(bytes)
	if err != nil {
		return tunnelKey{}, errBadTunnelKey
	}
	return tunnelKey{text, base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())}, nil
}

var errBadTunnelKey = errors.New("read the WireGuard key of this node: " +
	"the database has no 32 bytes in base64 under " + tunnelKeyName)
