// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipnet computes the values of the network: what the southbound has to make true,
// never how. It sets the gateways, the routes and the wire of each attachment in its event,
// and puts the values into the transaction. On node 5 with an attachment of network pods,
// a node 7 and transport vxlan:
//
//	node                 this node: underlay 172.18.0.5, VXLAN address and MAC, MTU of the pods
//	network/default      10.1.0.0/16 in the main table
//	network/blue         10.5.0.0/16 in a table of its own
//	link/blue            the VXLAN link of that network, with a VNI of its own
//	egress               10.1.0.0/16 leaves with the node's address, except to pods
//	uplink/eni-1         table T: 10.0.1.0/24 on the link with MAC 02:..., the rest via 10.0.1.1
//	uplinkaddress/A      packets from A, an address of a pod on eni-1, are looked up in table T
//	pod/pods/4f1c/eth0   10.1.5.2/24, gateway 10.1.5.1, default route, wire cad487b107c49b4
//	tunnel/7             underlay 172.18.0.7, VXLAN address 192.168.30.7, MAC 0a:ca:00:00:00:07
//	tunnel/7/blue        the same through link/blue
//	route/10.1.7.0/24    via 192.168.30.7 through tunnel/7
//	route/T/10.5.7.0/24  in table T of network blue, via 192.168.30.7 through tunnel/7/blue
//
//	pod ......... needs its network
//	route ....... through a tunnel needs the tunnel of its node
//	tunnel ...... needs the node, or the link of its network
//	link ........ needs its network
//	uplinkaddress needs its uplink
//
// Only transport vxlan tells packets of two networks apart on their way to another node.
// With the others, custom networks are in the main table.
//
// A wire is in the value if its attachment is wired; otherwise another plugin makes the
// interface. A node that has not published its underlay, or with WireGuard its key, has no
// tunnel: its routes are pending until it has. Without a data plane (Deps.Dataplane) there
// are only the values pod, node and route. Package southbound/linux makes the values true.
//
// A vswitch beside the kernel (Dataplane.Vswitch) has the node's own addresses as underlay.
// Its values have routes to the VPP-host links of other nodes, and the destinations behind
// its own one (NodeNetwork.host_destinations).
//
// # Derivation
//
// The values follow from the leases, ipam, the nodes and the links of this node alone:
// names, MACs, tables and VNIs are hashes of keys (names.go). So nothing flows back from
// the southbound, and a resync puts exactly the values that the updates before it have put.
//
// # Concurrency
//
// The plugin belongs to the loop, except for Watch, Pending and Notes, which any goroutine
// may call. Its state is what it derives again at each resync: the routes and tunnels that
// other nodes want, the underlay, and the values of the last resync. It puts the same
// message again while what a value follows from is the same.
//
// # Failures
//
// An underlay that cannot be read leaves the one that was found before in use. Without any,
// Pending returns the reason, and with transport vxlan the node has no VXLAN link and no
// tunnels, so that its routes are pending, until an UnderlayChange. A configured MTU that does not fit the underlay is not used,
// and Notes says so.
package ipnet

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
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
	// Transport selects the way to the pods of other nodes; "": TransportHostGW.
	Transport contivconf.Transport
	// Dataplane configures the network that the southbound makes; nil: routes alone.
	Dataplane *Dataplane
	// Claims claims a MainIP that does not follow from the node ID; nil: it needs no
	// claim.
	Claims Claims
}

// Dataplane holds the configuration of the network that the southbound makes.
type Dataplane struct {
	// NodeName is the name of this node.
	NodeName string
	// Underlay reads the underlay of a node with these addresses in its Node object; nil:
	// it is not known. The loop and Watch call it.
	Underlay func(nodeIPs []netip.Addr) (Underlay, error)
	// Vswitch describes the vswitch beside the kernel that makes the network, instead of
	// Underlay; nil: the kernel makes it.
	Vswitch *Vswitch
	// PublicKey is that of the node's WireGuard tunnel, in base64.
	PublicKey string
	// MTU is that of the pods' links if it fits the underlay; 0: the largest that fits.
	MTU uint32
	// VNI is that of the nodes' VXLAN links.
	VNI uint32
	// PodTable is the routing table of the default network; 0: the main table.
	PodTable uint32
	// Masquerade lets pods leave the cluster with the node's address.
	Masquerade bool
	// MasqueradeUplinks lets pods with an address of an uplink leave the cloud network with
	// that of the interface; otherwise they leave with their own.
	MasqueradeUplinks bool
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
	// NodesWithin returns the names of the nodes whose BlocksOf may change with a claim
	// of another node that overlaps one of prefixes.
	NodesWithin(prefixes []netip.Prefix) []string
	// BlockGateway returns the gateway of the pods in a block of this node.
	BlockGateway(block netip.Prefix) netip.Addr
	// OpenBlocks returns the blocks of this node, by network.
	OpenBlocks() map[string][]netip.Prefix
	// HostSubnetsOf returns the VPP-host subnets of a node, one of each family at most.
	HostSubnetsOf(nodeID uint32) []netip.Prefix
	// VxlanAddressesOf returns the VXLAN addresses of a node, one of each family at most.
	VxlanAddressesOf(nodeID uint32) []netip.Prefix
	// NetworkRanges returns the ranges of each pod network in the whole cluster, by name.
	NetworkRanges() map[string][]netip.Prefix
	// Uplinks returns the network interfaces of this node that have blocks of its pods.
	Uplinks() []ipam.Uplink
	// UplinkOf returns the ID of the interface that an address is of.
	UplinkOf(netip.Addr) (iface string, ok bool)
}

// Leases returns the leases. The ledger implements it.
type Leases interface {
	All() iter.Seq[*ledger.Lease]
	ByKey(ledger.Key) []ledger.Lease
}

// IPNet is the plugin.
type IPNet struct {
	Deps
	routed   routed          // the routes that are wanted to other nodes
	pinned   []claims.Target // the node addresses that do not follow from the ID
	asking   bool            // a claim of one of them is not requested yet: the published addresses stay
	plan     *plan           // never nil
	tunnels  tunnels         // the tunnels that are wanted to other nodes
	shared   shared
	observed atomic.Pointer[observation] // nil before the first resync, and without a data plane
	rendered rendered
}

var (
	_ controller.EventHandler       = (*IPNet)(nil)
	_ controller.SavepointCommitter = (*IPNet)(nil)
)

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *IPNet {
	deps.Name = "ipnet"
	return &IPNet{
		Deps:    deps,
		routed:  newRouted(),
		plan:    newPlan(nil, Dataplane{}, 0, false, nil),
		tunnels: newTunnels(),
	}
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
	case *podmanager.AddPod, *podmanager.DeletePod, *nodesync.NodeUpdate, *ipam.PodNetworkChange, *nodesync.ClaimChange,
		*UnderlayChange:
		return true
	}
	return event.Method() != controller.Update
}

// podKey returns the key of the PodNetwork of an attachment.
func podKey(k ledger.Key) string { return kv.SinkPodPrefix + k.String() }

// Resync puts the node's network and those of all held leases.
func (p *IPNet) Resync(_ controller.Event, _ controller.KubeStateData, _ int, txn controller.ResyncOperations) error {
	if p.Dataplane != nil {
		p.readUnderlay(nodeIPsOf(nodesync.GetNode(p.NodeSync, p.Dataplane.NodeName)))
	}
	p.derivePlan()
	addresses := p.putShared(txn)
	p.putPods(txn)
	p.putUplinkAddresses(txn)
	p.putRoutes(txn)
	return p.publish(addresses)
}

// Update sets the routes of an AddPod, and deletes the values of a DeletePod.
func (p *IPNet) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	switch ev := event.(type) {
	case *podmanager.AddPod:
		n := p.networkOf(endpoint{
			key:       ev.Key,
			pod:       ledger.Pod{Namespace: ev.Pod.Namespace, Name: ev.Pod.Name, UID: ev.UID},
			pool:      ev.Pool,
			addresses: ev.Addresses,
			wiring:    wiring{ev.Netns, ev.NetNSID, ev.Wired, ev.MAC},
		})
		ev.Gateways, ev.Routes, ev.Wire = n.gateways, n.routes, n.value.Wire
		have, _ := txn.Get(podKey(ev.Key)).(*kv.PodNetwork)
		p.followAddresses(have, n.value, txn)
		if have != nil && proto.Equal(have, n.value) {
			return "", nil
		}
		txn.Put(podKey(ev.Key), n.value)
		return fmt.Sprintf("%d routes", len(ev.Routes)), nil
	case *podmanager.DeletePod:
		value, _ := txn.Get(podKey(ev.Key)).(*kv.PodNetwork)
		if ev.Void() {
			break
		}
		if have := p.Ledger.ByKey(ev.Key); ev.Generation != 0 && len(have) > 0 && have[0].Generation != ev.Generation {
			break // the key has a newer lease
		}
		txn.Delete(podKey(ev.Key)) // also without a value: a wire whose lease was lost may have stayed
		if value == nil {
			break
		}
		p.followAddresses(value, nil, txn)
		return "routes removed", nil
	case *nodesync.NodeUpdate:
		return p.updateNode(ev, txn)
	case *UnderlayChange:
		o := p.observed.Load()
		if o == nil {
			break
		}
		p.readUnderlay(o.nodeIPs)
		return p.underlayText(), p.updateOwn(txn)
	case *ipam.PodNetworkChange:
		err := p.updateOwn(txn)
		p.refreshUplinkAddresses(txn)
		return p.replaceRoutes(txn), err
	case *nodesync.ClaimChange:
		switch {
		case len(p.pinned) > 0 && p.isVswitch():
			p.readUnderlay(p.observed.Load().nodeIPs)
			return p.underlayText(), p.updateOwn(txn)
		case len(p.pinned) > 0:
			return "", p.publish(p.updateShared(txn))
		}
	}
	return "", nil
}

// updateNode follows one node. A change of the addresses of this node's own object may
// change its underlay.
func (p *IPNet) updateNode(ev *nodesync.NodeUpdate, txn controller.UpdateOperations) (string, error) {
	text := p.updateRoutes(ev, txn)
	if p.Dataplane == nil || ev.NodeName != p.Dataplane.NodeName {
		return text, nil
	}
	now, o := nodeIPsOf(nodesync.GetNode(p.NodeSync, ev.NodeName)), p.observed.Load()
	if o == nil || slices.Equal(o.nodeIPs, now) {
		return text, nil
	}
	p.readUnderlay(now)
	return p.underlayText(), p.updateOwn(txn)
}

// updateOwn follows a change of the underlay, of the blocks or of the networks: of the
// node's own values and of all pods.
func (p *IPNet) updateOwn(txn controller.UpdateOperations) error {
	if p.derivePlan() {
		p.refreshPods(txn)
	}
	addresses := p.updateShared(txn)
	if nodes := p.NodeSync.GetAllNodes(); !p.waits() && p.Transport.IsTunnel() && len(p.tunnels.byName) == 0 {
		p.updateTunnels(slices.Collect(maps.Keys(nodes)), nil, txn) // they may have waited for the underlay
	}
	return p.publish(addresses)
}

// underlayText describes the underlay for the event history.
func (p *IPNet) underlayText() string {
	o := p.observed.Load()
	return fmt.Sprintf("underlay %v on %s, MTU of the pods %d", o.Addresses, o.Link, p.plan.mtu)
}

// nodeIPsOf returns the addresses of the Node object of a node.
func nodeIPsOf(n *nodesync.Node) []netip.Addr {
	if n == nil {
		return nil
	}
	return n.MgmtIPAddresses
}

// derivePlan derives the plan again, and reports whether it has changed.
func (p *IPNet) derivePlan() (changed bool) {
	var d Dataplane
	if p.Dataplane != nil {
		d = *p.Dataplane
	}
	var u Underlay
	if o := p.observed.Load(); o != nil {
		u = o.Underlay
	}
	mtu, _ := p.podMTU(u)
	var uplinks []ipam.Uplink
	if p.Dataplane != nil {
		uplinks = p.IPAM.Uplinks()
	}
	next := newPlan(p.IPAM.NetworkRanges(), d, mtu, p.Transport == contivconf.TransportVXLAN, uplinks)
	next.closed = p.makesRoutes()
	if changed = !next.equal(p.plan); changed {
		p.plan = next
		if d.PodTable != 0 && len(uplinks) > 0 {
			p.Log.Warn(
				"podVRFID is not used: pods with addresses of interfaces leave by the interfaces' routing tables",
				"podVRFID",
				d.PodTable,
				"interfaces",
				len(uplinks),
			)
		}
	}
	return changed
}

// Revert does nothing: the transaction was not committed.
func (p *IPNet) Revert(controller.Event) error { return nil }

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
// in the node record stay. An upgraded agent, or one that must wait before its first
// claim, still has the address that it had.
func (p *IPNet) publish(addresses []netip.Prefix) error {
	p.publishUnderlay()
	if p.asking {
		return nil
	}
	return p.NodeSync.PublishNodeIPs(addresses)
}

// publishUnderlay publishes the addresses by which other nodes reach this one. An underlay
// that is not found now keeps what was published before.
func (p *IPNet) publishUnderlay() {
	publisher, ok := p.NodeSync.(nodesync.UnderlayPublisher)
	if !ok {
		return
	}
	switch o := p.observed.Load(); {
	case p.Dataplane == nil:
		publisher.PublishUnderlay(nil, "")
	case o.found() && p.Transport == contivconf.TransportWireGuard:
		publisher.PublishUnderlay(o.Addresses, p.Dataplane.PublicKey)
	case o.found():
		publisher.PublishUnderlay(o.Addresses, "")
	}
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
