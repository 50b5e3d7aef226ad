// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// endpoint holds what the values of an attachment are made of: its lease, or its AddPod.
type endpoint struct {
	key       ledger.Key
	pod       ledger.Pod
	pool      string
	addresses []netip.Prefix // each with the length of its block
	wiring    wiring
}

// wiring holds what a CNI request has said about the wire of an attachment.
type wiring struct {
	netns string
	id    kv.NetNSID // of the namespace at netns then
	wired bool
	mac   string // "": derived from the key
}

// exists reports whether the southbound makes a wire. A lease of the Go API, and one from
// before leases had a network namespace, has none.
func (w wiring) exists() bool { return w.wired && w.netns != "" }

// network holds what follows from an endpoint.
type network struct {
	gateways []netip.Addr // one for each address
	routes   []podmanager.Route
	value    *kv.PodNetwork
}

// networkOf derives the value of an attachment. The gateway of each address is that of
// its block. In the default network there is one default route for each family. In a
// custom network a default route would take over the egress of the pod. There a wired pod
// has routes to the ranges of the network, and one whose interface another plugin makes
// has none.
func (p *IPNet) networkOf(e endpoint) network {
	var n network
	for _, a := range e.addresses {
		n.gateways = append(n.gateways, p.IPAM.BlockGateway(a))
	}
	for _, dst := range p.destinations(e) {
		sameFamily := func(gw netip.Addr) bool { return gw.Is4() == dst.Addr().Is4() }
		if i := slices.IndexFunc(n.gateways, sameFamily); i >= 0 {
			n.routes = append(n.routes, podmanager.Route{Dst: dst, GW: n.gateways[i]})
		}
	}
	n.value = p.podNetwork(e, n)
	return n
}

// destinations returns the destinations of the routes of a pod, those of the family of its
// first address first.
func (p *IPNet) destinations(e endpoint) (all []netip.Prefix) {
	if e.pool == ipam.PodPool {
		all = []netip.Prefix{
			netip.PrefixFrom(netip.IPv4Unspecified(), 0),
			netip.PrefixFrom(netip.IPv6Unspecified(), 0),
		}
	} else if e.wiring.exists() {
		all = slices.Clone(p.plan.networks[e.pool].ranges)
	}
	if len(e.addresses) > 0 && !e.addresses[0].Addr().Is4() {
		slices.SortStableFunc(all, func(x, y netip.Prefix) int { return y.Addr().BitLen() - x.Addr().BitLen() })
	}
	return all
}

// podNetwork returns the value, in an order that does not depend on that of the addresses.
func (p *IPNet) podNetwork(e endpoint, n network) *kv.PodNetwork {
	m := &kv.PodNetwork{
		Namespace:   e.pod.Namespace,
		Name:        e.pod.Name,
		Network:     e.key.Network,
		ContainerId: e.key.ContainerID,
		IfName:      e.key.IfName,
		Wire:        p.wire(e),
	}
	order := make([]int, len(e.addresses))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return e.addresses[i].Compare(e.addresses[j]) })
	for _, i := range order {
		m.Addresses = append(m.Addresses, e.addresses[i].String())
		m.Gateways = append(m.Gateways, textOf(n.gateways[i]))
	}
	byDst := func(x, y podmanager.Route) int { return x.Dst.Compare(y.Dst) }
	for _, r := range slices.SortedFunc(slices.Values(n.routes), byDst) {
		m.Routes = append(m.Routes, &kv.Route{Dst: r.Dst.String(), Gateway: r.GW.String()})
	}
	return m
}

// wire returns the wire of an attachment, nil if another plugin makes its interface.
func (p *IPNet) wire(e endpoint) *kv.Wire {
	if !e.wiring.exists() {
		return nil
	}
	names := wireNamesOf(podKey(e.key))
	return &kv.Wire{
		Netns:      e.wiring.netns,
		Namespace:  e.wiring.id.Message(),
		HostIfName: names.hostIf,
		Mtu:        p.plan.mtu,
		HostMac:    names.hostMAC,
		PodMac:     cmp.Or(e.wiring.mac, names.podMAC),
		Pool:       e.pool,
		Table:      p.plan.networks[e.pool].table,
	}
}

// textOf writes an address, "" for none.
func textOf(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
