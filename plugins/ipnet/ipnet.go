// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipnet derives network configuration from addresses. It sets the gateway and the
// routes of each attachment in its event, and puts the values for the southbound into the
// transaction: one PodNetwork for each attachment, one NodeNetwork for the node, and one
// NodeRoute for each pod subnet of another node. Package linuxsink applies the routes to
// Linux. With an attachment of network pods and a node 7 a transaction has, for example:
//
//	pod/pods/4f1c/eth0   addresses 10.1.5.2/24, route 0.0.0.0/0 via 10.1.5.1
//	route/10.1.7.0/24    via 192.168.16.7, node 7
//
// The values follow from the leases, ipam and the nodes alone. So a resync puts exactly
// the values that the updates before it have put. The plugin belongs to the loop. Its only
// state is the set of routes that it has put, and the values of the last resync: it puts
// the same message again while the leases of an attachment and their gateways are the same.
package ipnet

import (
	"context"
	"fmt"
	"iter"
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

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	NodeSync nodesync.API
	IPAM     Addresses
	Ledger   Leases
	// MainIP returns the node's address if it does not follow from the node ID,
	// otherwise the zero Prefix; may be nil.
	MainIP func() netip.Prefix
	// NodeIPs selects the addresses of the other nodes' Node objects as gateways, for
	// nodes without a vswitch, instead of those that follow from their IDs.
	NodeIPs bool
	// Claims claims a MainIP that does not follow from the node ID; nil: it needs no
	// claim.
	Claims Claims
}

// Claims claims node addresses.
type Claims interface {
	Hold(claims.Target) claims.Standing
	Want(network string, targets []claims.Target)
}

// Addresses returns this node's addresses and blocks. ipam implements it.
type Addresses interface {
	Nodes() []addrplan.Node
	// BlocksOf returns all pod subnets of another node.
	BlocksOf(*nodesync.Node) []netip.Prefix
	// BlockGateway returns the gateway of the pods in a block of this node.
	BlockGateway(block netip.Prefix) netip.Addr
}

// Leases returns the leases. The ledger implements it.
type Leases interface {
	All() iter.Seq[*ledger.Lease]
	ByKey(ledger.Key) []ledger.Lease
}

// IPNet is the plugin.
type IPNet struct {
	Deps
	routed   map[string]uint32 // node of each route, by key
	pinned   []claims.Target   // the node addresses that do not follow from the ID
	asking   bool              // a claim of one of them is not requested yet: the published addresses stay
	rendered rendered
}

var (
	_ controller.EventHandler       = (*IPNet)(nil)
	_ controller.SavepointCommitter = (*IPNet)(nil)
)

// NewPlugin returns the plugin.
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

// HandlesEvent selects resyncs, AddPod, DeletePod and changes of pod subnets.
func (p *IPNet) HandlesEvent(event controller.Event) bool {
	switch event.(type) {
	case *podmanager.AddPod, *podmanager.DeletePod, *nodesync.NodeUpdate, *ipam.PodNetworkChange, *nodesync.ClaimChange:
		return true
	}
	return event.Method() != controller.Update
}

// podKey returns the key of the PodNetwork of an attachment.
func podKey(k ledger.Key) string { return kv.SinkPodPrefix + k.String() }

// Resync puts the node's network and those of all held leases.
func (p *IPNet) Resync(_ controller.Event, _ controller.KubeStateData, _ int, txn controller.ResyncOperations) error {
	node, addresses := p.nodeNetwork()
	txn.Put(kv.SinkNode, node)
	p.putPods(txn)
	p.putRoutes(txn)
	return p.publish(addresses)
}

// Update sets the routes of an AddPod, and deletes the values of a DeletePod.
func (p *IPNet) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	switch ev := event.(type) {
	case *podmanager.AddPod:
		ev.Gateways, ev.Routes = p.routes(ev.Pool, ev.Addresses)
		pod := ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.UID}
		m := podNetwork(ev.Key, pod, ev.Addresses, ev.Routes)
		if have := txn.Get(podKey(ev.Key)); have != nil && proto.Equal(have, m) {
			return "", nil
		}
		txn.Put(podKey(ev.Key), m)
		return fmt.Sprintf("%d routes", len(ev.Routes)), nil
	case *podmanager.DeletePod:
		if ev.Void() || txn.Get(podKey(ev.Key)) == nil {
			break
		}
		if have := p.Ledger.ByKey(ev.Key); ev.Generation != 0 && len(have) > 0 && have[0].Generation != ev.Generation {
			break // the key has a newer lease
		}
		txn.Delete(podKey(ev.Key))
		return "routes removed", nil
	case *nodesync.NodeUpdate:
		return p.updateRoutes(ev, txn), nil
	case *ipam.PodNetworkChange:
		node, addresses := p.nodeNetwork()
		txn.Put(kv.SinkNode, node)
		return p.replaceRoutes(txn), p.publish(addresses)
	case *nodesync.ClaimChange:
		if len(p.pinned) == 0 {
			break
		}
		node, addresses := p.nodeNetwork()
		if have := txn.Get(kv.SinkNode); have == nil || !proto.Equal(have, node) {
			txn.Put(kv.SinkNode, node)
		}
		return "", p.publish(addresses)
	}
	return "", nil
}

// Revert does nothing: the transaction was not committed.
func (p *IPNet) Revert(controller.Event) error { return nil }

// routes returns the gateway of each address, which is that of its block, and for
// addresses of the default pool one default route per family. With a default route, an
// interface in another network would take over the egress of the pod.
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
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		Network:     k.Network,
		ContainerId: k.ContainerID,
		IfName:      k.IfName,
	}
	for _, a := range slices.SortedFunc(slices.Values(addresses), netip.Prefix.Compare) {
		m.Addresses = append(m.Addresses, a.String())
	}
	byDst := func(x, y podmanager.Route) int { return x.Dst.Compare(y.Dst) }
	for _, r := range slices.SortedFunc(slices.Values(routes), byDst) {
		m.Routes = append(m.Routes, &kv.Route{Dst: r.Dst.String(), Gateway: r.GW.String()})
	}
	return m
}

// Commit claims the node addresses that do not follow from the node ID.
func (p *IPNet) Commit(context.Context) error {
	if p.Claims != nil {
		p.Claims.Want(kv.NodeNetworkClaims, p.pinned)
	}
	return nil
}

// Undo does nothing: the claims follow from the configuration alone.
func (p *IPNet) Undo() {}

// Mark does nothing, as Undo.
func (p *IPNet) Mark() {}

// UndoToMark does nothing, as Undo.
func (p *IPNet) UndoToMark() {}

// pin returns main if this node holds its claim, and the zero Prefix while it waits for
// the claim. The derived address needs none.
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

// publish publishes the addresses of this node. While a claim is not requested yet, those
// in the node record stay: an upgraded agent, or one that must wait before its first
// claim, still has the address that it had.
func (p *IPNet) publish(addresses []netip.Prefix) error {
	if p.asking {
		return nil
	}
	return p.NodeSync.PublishNodeIPs(addresses)
}

// nodeNetwork returns the node's network, and the addresses by which other nodes reach it.
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
