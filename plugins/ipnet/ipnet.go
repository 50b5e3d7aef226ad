// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipnet is what an address means for the network: it fills the gateway
// and the routes of each attachment into its event, and puts what the
// southbound has to make true into the transaction: one PodNetwork an
// attachment, one NodeNetwork for the node, one NodeRoute for each pod subnet of
// another node. Package linuxsink makes the routes true in Linux.
//
// All of it is derived from the leases, from ipam and from the nodes, so that a
// resync puts exactly what the updates before it have put. The plugin belongs
// to the loop; all that it keeps is which routes it has put.
//
// Example: after an ADD for container 4f1c of network pods the transaction has
//
//	pod/pods/4f1c/eth0 -> addresses 10.1.5.2/24, route 0.0.0.0/0 via 10.1.5.1
//	route/10.1.7.0/24  -> via 192.168.16.7, node 7
package ipnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// Deps is what the plugin is given.
type Deps struct {
	controller.PluginDeps
	NodeSync nodesync.API
	IPAM     Addresses
	Ledger   Leases
	// MainIP is the node's address where it does not follow from the node ID,
	// the zero Prefix where it does; may be nil.
	MainIP func() netip.Prefix
	// NodeIPs has routes lead to the addresses of the other nodes' Node objects,
	// for nodes without a vswitch, rather than to those that follow from their IDs.
	NodeIPs bool
	// Claims claims a MainIP that does not follow from the node ID; nil: it is
	// this node's.
	Claims Claims
}

// Claims claims node addresses.
type Claims interface {
	Hold(claims.Target) claims.Standing
	Want(network string, targets []claims.Target)
}

// Addresses is what the plugin asks of ipam.
type Addresses interface {
	Nodes() []addrplan.Node
	// BlocksOf are all pod subnets of another node.
	BlocksOf(*nodesync.Node) []netip.Prefix
	// BlockGateway is the gateway of the pods in a block of this node.
	BlockGateway(block netip.Prefix) netip.Addr
}

// Leases is what it reads of the ledger.
type Leases interface {
	Leases() []ledger.Lease
	ByKey(ledger.Key) []ledger.Lease
}

// IPNet is the plugin.
type IPNet struct {
	Deps
	routed map[string]uint32 // keys of the routes that are wanted, and the node of each
	pinned []claims.Target   // the node addresses that do not follow from the ID
	asking bool              // a claim of one of them was not asked for yet: what is published stays
}

var (
	_ controller.EventHandler = (*IPNet)(nil)
	_ controller.Committer    = (*IPNet)(nil)
)

// NewPlugin makes the plugin.
func NewPlugin(deps Deps) *IPNet {
	deps.Name = "ipnet"
	return &IPNet{Deps: deps, routed: map[string]uint32{}}
}

// Init does nothing.
func (p *IPNet) Init() error { return nil }

// AfterInit does nothing.
func (p *IPNet) AfterInit() error { return nil }

// Close does nothing.
func (p *IPNet) Close() error { return nil }

// HandlesEvent selects resyncs, AddPod, DeletePod and what moves pod subnets.
func (p *IPNet) HandlesEvent(event controller.Event) bool {
	switch event.(type) {
	case *podmanager.AddPod, *podmanager.DeletePod, *nodesync.NodeUpdate, *ipam.PodNetworkChange, *nodesync.ClaimChange:
		return true
	}
	return event.Method() != controller.Update
}

// Key is where the PodNetwork of an attachment is put.
func Key(k ledger.Key) string { return kv.SinkPodPrefix + k.String() }

// NodeKey is where the NodeNetwork is put.
const NodeKey = kv.SinkNode

// Resync puts the node's network and those of all leases that are held.
func (p *IPNet) Resync(_ controller.Event, _ controller.KubeStateData, _ int, txn controller.ResyncOperations) error {
	node, addresses := p.nodeNetwork()
	txn.Put(NodeKey, node)
	byKey := map[ledger.Key][]ledger.Lease{}
	for _, l := range p.Ledger.Leases() {
		if l.Purpose == ledger.ForPod && l.State == ledger.Held && !l.Key.OfAPI() { // which is no attachment
			byKey[l.Key] = append(byKey[l.Key], l)
		}
	}
	for k, leases := range byKey {
		var prefixes []netip.Prefix
		for _, l := range leases {
			prefixes = append(prefixes, l.Prefix())
		}
		_, routes := p.routes(leases[0].Pool, prefixes)
		txn.Put(Key(k), podNetwork(k, leases[0].Pod, prefixes, routes))
	}
	p.putRoutes(txn)
	return p.publish(addresses)
}

// Update fills in an AddPod, and takes away what a DeletePod ends.
func (p *IPNet) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	switch ev := event.(type) {
	case *podmanager.AddPod:
		ev.Gateways, ev.Routes = p.routes(ev.Pool, ev.Addresses)
		pod := ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.UID}
		m := podNetwork(ev.Key, pod, ev.Addresses, ev.Routes)
		if have := txn.Get(Key(ev.Key)); have != nil && proto.Equal(have, m) {
			return "", nil
		}
		txn.Put(Key(ev.Key), m)
		return fmt.Sprintf("%d routes", len(ev.Routes)), nil
	case *podmanager.DeletePod:
		if ev.Void() || txn.Get(Key(ev.Key)) == nil {
			break
		}
		if have := p.Ledger.ByKey(ev.Key); ev.Generation != 0 && len(have) > 0 && have[0].Generation != ev.Generation {
			break // it is another attachment by now
		}
		txn.Delete(Key(ev.Key))
		return "routes removed", nil
	case *nodesync.NodeUpdate:
		return p.updateRoutes(ev, txn), nil
	case *ipam.PodNetworkChange:
		node, addresses := p.nodeNetwork()
		txn.Put(NodeKey, node)
		return p.replaceRoutes(txn), p.publish(addresses)
	case *nodesync.ClaimChange:
		if len(p.pinned) == 0 {
			break
		}
		node, addresses := p.nodeNetwork()
		if have := txn.Get(NodeKey); have == nil || !proto.Equal(have, node) {
			txn.Put(NodeKey, node)
		}
		return "", p.publish(addresses)
	}
	return "", nil
}

// Revert does nothing: the transaction was not committed.
func (p *IPNet) Revert(controller.Event) error { return nil }

// routes returns the gateway of each address, that of its block, also of one that
// drains; and for addresses of the pods' own pool one default route per family. An
// interface in another network would take over the egress of the pod, which goes
// through the first one.
func (p *IPNet) routes(pool string, addresses []netip.Prefix) (gateways []netip.Addr, routes []podmanager.Route) {
	seen := map[bool]bool{}
	for _, a := range addresses {
		gw := p.IPAM.BlockGateway(a)
		gateways = append(gateways, gw)
		if is4 := gw.Is4(); pool == ipam.PodPool && !seen[is4] {
			seen[is4] = true
			any := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			if is4 {
				any = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			}
			routes = append(routes, podmanager.Route{Dst: any, GW: gw})
		}
	}
	return gateways, routes
}

func podNetwork(k ledger.Key, pod ledger.Pod, addresses []netip.Prefix, routes []podmanager.Route) *kv.PodNetwork {
	m := &kv.PodNetwork{
		Namespace: pod.Namespace, Name: pod.Name, Network: k.Network, ContainerId: k.ContainerID, IfName: k.IfName,
	}
	for _, a := range slices.SortedFunc(slices.Values(addresses), netip.Prefix.Compare) {
		m.Addresses = append(m.Addresses, a.String())
	}
	for _, r := range slices.SortedFunc(slices.Values(routes), func(x, y podmanager.Route) int { return x.Dst.Compare(y.Dst) }) {
		m.Routes = append(m.Routes, &kv.Route{Dst: r.Dst.String(), Gateway: r.GW.String()})
	}
	return m
}

// Commit has the node addresses claimed that do not follow from the node ID.
func (p *IPNet) Commit(context.Context) error {
	if p.Claims != nil {
		p.Claims.Want(kv.NodeNetworkClaims, p.pinned)
	}
	return nil
}

// Undo does nothing: what is wanted follows from the configuration alone.
func (p *IPNet) Undo() {}

// pin returns the node address instead of derived: main, if this node holds its
// claim, and none while it waits for it. An address that the ID derives needs none.
func (p *IPNet) pin(main, derived netip.Prefix) netip.Prefix {
	if p.Claims == nil || main.Addr() == derived.Addr() {
		return main
	}
	t := claims.NodeAddress(main.Addr())
	p.pinned = append(p.pinned, t)
	standing := p.Claims.Hold(t)
	if !standing.Held && standing.Blocker == nil {
		p.asking = true
	}
	if !standing.Held {
		return netip.Prefix{}
	}
	return main
}

// publish has the other nodes reach this one by addresses. While a claim was not
// asked for yet they go on by what the record says: an agent that is upgraded, or
// must wait before it may ask, still has the address that it had.
func (p *IPNet) publish(addresses []netip.Prefix) error {
	if p.asking {
		return nil
	}
	return p.NodeSync.PublishNodeIPs(addresses)
}

// nodeNetwork is what this node holds, and the addresses that other nodes
// reach it by.
func (p *IPNet) nodeNetwork() (*kv.NodeNetwork, []netip.Prefix) {
	m := &kv.NodeNetwork{Id: p.NodeSync.GetNodeID()}
	var addresses []netip.Prefix
	put := func(list *[]string, s fmt.Stringer, ok bool) {
		if ok {
			*list = append(*list, s.String())
		}
	}
	var main netip.Prefix
	if p.MainIP != nil {
		main = p.MainIP()
	}
	p.pinned, p.asking = nil, false
	for _, n := range p.IPAM.Nodes() {
		if main.IsValid() && main.Addr().Is4() == n.HostSubnet.Addr().Is4() {
			n.NodeIP = p.pin(main, n.NodeIP)
		}
		put(&m.PodSubnets, n.PodSubnet, n.PodSubnet.IsValid())
		put(&m.PodGateways, n.PodGateway, n.PodGateway.IsValid())
		put(&m.NatLoopbacks, n.NatLoopback, n.NatLoopback.IsValid())
		put(&m.HostInterconnectVpp, n.HostVPP, n.HostVPP.IsValid())
		put(&m.HostInterconnectLinux, n.HostLinux, n.HostLinux.IsValid())
		put(&m.NodeIps, n.NodeIP, n.NodeIP.IsValid())
		put(&m.VxlanIps, n.VxlanIP, n.VxlanIP.IsValid())
		if n.NodeIP.IsValid() {
			addresses = append(addresses, n.NodeIP)
		}
	}
	return m, addresses
}
