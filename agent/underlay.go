// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/southbound/linux"
)

// underlayTimeout bounds one reading of the node's links.
const underlayTimeout = 10 * time.Second

// dataplane returns the configuration of the network that the southbound makes, nil if it
// makes routes at most.
func (a *assembly) dataplane(d dependencies) *ipnet.Dataplane {
	conf := a.conf.Cadastre
	if !conf.Dataplane.MakesLinks() {
		return nil
	}
	return &ipnet.Dataplane{
		NodeName:   a.node.Name,
		Underlay:   d.underlay,
		Vswitch:    a.vswitch(),
		PublicKey:  d.tunnel.public,
		MTU:        a.podMTU(),
		VNI:        conf.VNI,
		PodTable:   conf.PodTable,
		Masquerade: conf.Masquerade,

		MasqueradeUplinks: conf.MasqueradeUplinks,
	}
}

// Contiv-VPP's MTU of the pods' links, and the MTU that it expects of the underlay.
const (
	vswitchPodMTU   = 1450
	vswitchUnderlay = 1500
)

// podMTU returns the MTU of the pods' links, 0 if it follows from the underlay.
func (a *assembly) podMTU() uint32 {
	conf := a.conf.Cadastre
	if conf.MTU == 0 && conf.Dataplane.IsOther() && !conf.Transport.IsTunnel() {
		return vswitchPodMTU
	}
	return uint32(conf.MTU)
}

// vswitch returns the vswitch of the data plane, nil if that is the kernel. The MTU of its
// underlay is not known: a configured MTU of the pods counts.
func (a *assembly) vswitch() *ipnet.Vswitch {
	conf := a.conf.Cadastre
	if !conf.Dataplane.IsOther() {
		return nil
	}
	v := &ipnet.Vswitch{Link: a.conf.VPPNode(a.node.Name).Main, MTU: vswitchUnderlay}
	if conf.MTU > 0 {
		v.MTU = max(v.MTU, uint32(conf.MTU)+ipnet.Overhead)
	}
	for _, f := range a.conf.IPAM.Cluster.Families {
		if f.Service.IsValid() {
			v.Services = append(v.Services, f.Service)
		}
	}
	return v
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
