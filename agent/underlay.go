// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
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

		MasqueradeUplinks: conf.MasqueradeUplinks,
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
