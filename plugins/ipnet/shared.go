// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// shared holds the values that belong to no attachment and no other node, by key.
type shared map[string]proto.Message

// sharedValues derives the node's own network, the pod networks and the egress, and returns
// with them the addresses by which other nodes reach the vswitch.
func (p *IPNet) sharedValues() (shared, []netip.Prefix) {
	node, addresses := p.nodeNetwork()
	values := shared{kv.SinkNode: node}
	d := p.Dataplane
	if d == nil {
		return values, addresses
	}
	node.Transport, node.Mtu = p.transport(), p.plan.mtu
	if o := p.observed.Load(); o.found() {
		for _, a := range o.Addresses {
			node.Underlay = append(node.Underlay, a.String())
		}
	}
	if p.isVswitch() {
		node.HostDestinations = p.hostDestinations()
	}
	if p.waits() {
		node.Transport = kv.Transport_DIRECT // until then there are no tunnels that need the link
	}
	if node.Transport == kv.Transport_VXLAN {
		node.VxlanMac, node.Vni = vxlanMACOf(node.Id), d.VNI
	}
	for key, m := range p.plan.values() {
		values[key] = m
	}
	if len(node.Underlay) > 0 { // otherwise the tunnels and routes of these networks are pending
		for _, name := range p.plan.linked() {
			n := p.plan.networks[name]
			values[kv.SinkLinkPrefix+name] = &kv.NetworkLink{
				Network:  name,
				Vni:      n.vni,
				Table:    n.table,
				Underlay: node.Underlay,
				Mac:      node.VxlanMac,
				Mtu:      node.Mtu,
			}
		}
	}
	if d.Masquerade {
		values[kv.SinkEgress] = p.egress()
	}
	return values, addresses
}

// egress returns what leaves the cluster with the node's address: packets of the pods of
// the default network to all destinations but pods. Packets to another node's own address
// are among them, because routers between the nodes do not know the pods' addresses. The
// cloud's gateway knows those of uplinks: they leave with their own address, or if the
// configuration says so they get that of the interface outside of the cloud network.
func (p *IPNet) egress() *kv.Egress {
	own := p.Dataplane.MasqueradeUplinks
	sources := slices.DeleteFunc(slices.Clone(p.plan.networks[ipam.PodPool].ranges), func(r netip.Prefix) bool {
		return !own && p.plan.meetsCloud(r)
	})
	for _, block := range p.IPAM.OpenBlocks()[ipam.PodPool] {
		if !own && p.uplinkAddress(block.Addr()) != nil {
			continue
		}
		if !slices.ContainsFunc(sources, func(r netip.Prefix) bool { return covers(r, block) }) {
			sources = append(sources, block) // a NetResourceSet may have blocks of any network
		}
	}
	direct := slices.Clone(sources)
	for _, n := range p.plan.networks {
		direct = append(direct, n.ranges...)
	}
	for _, u := range p.plan.uplinks {
		if own {
			direct = append(direct, u.cloud...)
		}
	}
	return &kv.Egress{Sources: textsOf(sources), Direct: textsOf(direct)}
}

// covers reports whether outer contains all addresses of inner.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// textsOf writes prefixes in order, each once.
func textsOf(prefixes []netip.Prefix) (texts []string) {
	prefixes = slices.Clone(prefixes)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	for _, x := range slices.Compact(prefixes) {
		texts = append(texts, x.String())
	}
	return texts
}

// putShared puts all of these values.
func (p *IPNet) putShared(txn controller.ResyncOperations) (addresses []netip.Prefix) {
	p.shared, addresses = p.sharedValues()
	for _, key := range sortedKeys(p.shared) {
		txn.Put(key, p.shared[key])
	}
	return addresses
}

// updateShared puts those that have changed, and deletes those that are gone.
func (p *IPNet) updateShared(txn controller.UpdateOperations) (addresses []netip.Prefix) {
	was := p.shared
	p.shared, addresses = p.sharedValues()
	for _, key := range sortedKeys(p.shared) {
		if have := txn.Get(key); have == nil || !proto.Equal(have, p.shared[key]) {
			txn.Put(key, p.shared[key])
		}
	}
	for _, key := range sortedKeys(was) {
		if _, still := p.shared[key]; !still {
			txn.Delete(key)
		}
	}
	return addresses
}

// makesRoutes reports whether there are routes to other nodes. Without a data plane they
// are values for a southbound that other programs give.
func (p *IPNet) makesRoutes() bool {
	return p.Dataplane == nil || p.Transport != contivconf.TransportNone
}

// waits reports whether the tunnels of this node wait for its underlay: a VXLAN link needs
// an address there. The routes through the tunnels are pending until then.
func (p *IPNet) waits() bool {
	return p.Transport == contivconf.TransportVXLAN && !p.observed.Load().found()
}

// transport returns the way of packets to other nodes.
func (p *IPNet) transport() kv.Transport {
	switch p.Transport {
	case contivconf.TransportVXLAN:
		return kv.Transport_VXLAN
	case contivconf.TransportWireGuard:
		return kv.Transport_WIREGUARD
	}
	return kv.Transport_DIRECT
}

func isIPv6(n addrplan.Node) bool { return n.HostSubnet.Addr().Is6() }
