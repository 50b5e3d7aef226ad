// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

// newOverlay returns the descriptors of the node's own links, of the ways to other nodes
// and of the masquerade. Closing the first closes what all of them have open.
func newOverlay(opt Options, parts ...nodePart) ([]*southbound.Descriptor, error) {
	opt = opt.withDefaults()
	host, err := newTunnelHost(opt)
	if err != nil {
		return nil, err
	}
	tables, err := openNFT(opt.Namespace)
	if err != nil {
		host.close()
		return nil, err
	}
	networks := newNetworkPeers(host)
	links := &networkLinks{host, networks}
	link := &vxlan{host: host}
	keyed := &wireguard{host: host, private: opt.PrivateKey, log: opt.Log}
	firewall := &forwardRules{
		nft:    tables,
		legacy: &legacyTables{host.within},
		allow:  opt.AllowForward,
		log:    opt.Log,
	}
	own := &ownNode{
		host:    host,
		parts:   append(parts, link, keyed, firewall),
		notes:   firewall.Notes,
		closers: []func() error{keyed.end, tables.close, func() error { host.close(); return nil }},
	}
	peers := &tunnels{host: host, networks: networks, peers: map[kv.Transport]tunnelPeers{
		kv.Transport_VXLAN:     newVXLANPeers(host, link),
		kv.Transport_WIREGUARD: newWireguardPeers(keyed),
	}}
	masquerade := &egress{tables, opt.monitor}
	return []*southbound.Descriptor{
		own.kind().Descriptor(),
		links.kind().Descriptor(),
		peers.kind().Descriptor(),
		masquerade.kind().Descriptor(),
	}, nil
}

// uninstallOverlay removes what the descriptors of newOverlay make, whichever process has
// made it. removed describes each object. Forwarding entries, neighbours and peers go with
// their links.
func uninstallOverlay(ctx context.Context, opt Options) (removed []string, err error) {
	all, err := newOverlay(opt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(all)) }()
	for _, d := range all {
		have, err := d.Retrieve(ctx, nil)
		if err != nil {
			return removed, err
		}
		for _, v := range have {
			if err := d.Delete(ctx, v.Key, v.Message); err != nil {
				return removed, err
			}
			removed = append(removed, d.Name()+" "+v.Key)
		}
	}
	return removed, nil
}
