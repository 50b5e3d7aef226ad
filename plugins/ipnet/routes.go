// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// routesTo returns the routes to the pod subnets of another node. If the node has no
// address of a subnet's family, a direct route has no gateway: packets to it must not leave
// by the default route. The cloud routes to the addresses of interfaces, so they have none.
func (p *IPNet) routesTo(n *nodesync.Node) (routes []*kv.NodeRoute) {
	if n == nil || n.ID == 0 || n.ID == p.NodeSync.GetNodeID() || !p.makesRoutes() {
		return nil
	}
	gateways := p.gatewaysOf(n)
	for _, dst := range slices.Concat(p.IPAM.BlocksOf(n), p.hostSubnetsOf(n)) {
		r := &kv.NodeRoute{Dst: dst.String(), NodeId: n.ID, NodeName: n.Name, Transport: p.transport()}
		through := gateways
		if p.Dataplane != nil {
			name := p.plan.networkOf(dst)
			if name == ipam.PodPool && p.plan.cloudRoutes(dst) {
				continue
			}
			network := p.plan.networks[name]
			if r.Table = network.table; network.vni != 0 {
				r.Network, r.Vni = name, network.vni
				through = p.linkAddresses(n)
			}
		}
		for _, a := range through {
			if a.Is4() == dst.Addr().Is4() {
				r.Gateway = a.String()
				break
			}
		}
		routes = append(routes, r)
	}
	return routes
}

// gatewaysOf returns the addresses that routes to another node lead to, the preferred one
// of each family first. The agent of a node without a data plane publishes no underlay:
// then the addresses of its Node object count.
func (p *IPNet) gatewaysOf(n *nodesync.Node) (all []netip.Addr) {
	switch p.Transport {
	case contivconf.TransportWireGuard: // its tunnel selects the peer by the destination
		return nil
	case contivconf.TransportNodeIP:
		return slices.Concat(n.Underlay, n.MgmtIPAddresses)
	case contivconf.TransportVXLAN:
		for _, a := range p.IPAM.VxlanAddressesOf(n.ID) {
			all = append(all, a.Addr())
		}
		return all
	}
	for _, a := range n.VppIPAddresses {
		all = append(all, a.Addr())
	}
	return all
}

// own reports whether dst is a pod subnet of this node, which needs no route.
func (p *IPNet) own(dst string) bool {
	for _, n := range p.IPAM.Nodes() {
		if n.PodSubnet.IsValid() && n.PodSubnet.String() == dst {
			return true
		}
	}
	return false
}

// routed holds the routes that are wanted to other nodes, so that the change of one node
// looks only at the routes of its own subnets.
type routed struct {
	byKey  map[string][]*kv.NodeRoute // the one that is put first, which has the smallest node ID
	byNode map[string][]string        // keys of the routes to each node, by name
}

func newRouted() routed {
	return routed{byKey: map[string][]*kv.NodeRoute{}, byNode: map[string][]string{}}
}

// replace replaces the routes to a node, and adds the keys of the routes before and after
// to touched.
func (r *routed) replace(name string, routes []*kv.NodeRoute, touched map[string]bool) {
	for _, key := range r.byNode[name] {
		touched[key] = true
		rest := slices.DeleteFunc(r.byKey[key], func(x *kv.NodeRoute) bool { return x.NodeName == name })
		if r.byKey[key] = rest; len(rest) == 0 {
			delete(r.byKey, key)
		}
	}
	delete(r.byNode, name)
	if len(routes) == 0 {
		return
	}
	keys := make([]string, 0, len(routes))
	for _, x := range routes {
		key := kv.SinkRouteKey(x.Dst, x.Table)
		if slices.Contains(keys, key) {
			continue
		}
		touched[key] = true
		keys = append(keys, key)
		at, _ := slices.BinarySearchFunc(r.byKey[key], x, compareNodes)
		r.byKey[key] = slices.Insert(r.byKey[key], at, x)
	}
	r.byNode[name] = keys
}

func compareNodes(x, y *kv.NodeRoute) int {
	return cmp.Or(cmp.Compare(x.NodeId, y.NodeId), cmp.Compare(x.NodeName, y.NodeName))
}

// leading returns the route of a key, nil if there is none or it leads to a subnet of this
// node. If two nodes claim one subnet, the one with the smaller ID has it.
func (p *IPNet) leading(key string) *kv.NodeRoute {
	all := p.routed.byKey[key]
	if len(all) == 0 || p.own(all[0].Dst) {
		return nil
	}
	return all[0]
}

// route returns the route of a key, nil if it is not wanted or leads to a subnet of this
// node. If two nodes claim one subnet, the route leads to the one with the smaller ID.
func (p *IPNet) route(key string) *kv.NodeRoute {
	all := p.routed.byKey[key]
	if len(all) == 0 {
		return nil
	}
	own := p.own(all[0].Dst)
	for i, r := range all {
		if own || i > 0 {
			p.Log.Error("a pod subnet is claimed by two nodes", "subnet", r.Dst, "node", r.NodeName)
		}
	}
	if own {
		return nil
	}
	return all[0]
}

// putRoutes puts the routes to all nodes, and returns their keys.
func (p *IPNet) putRoutes(txn controller.ResyncOperations) (put map[string]bool) {
	p.routed, put = newRouted(), map[string]bool{}
	keys := map[string]bool{}
	nodes := p.NodeSync.GetAllNodes()
	for name, n := range nodes {
		p.routed.replace(name, p.routesTo(n), keys)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if r := p.route(key); r != nil {
			txn.Put(key, r)
			put[key] = true
		}
	}
	p.putTunnels(txn, nodes)
	return put
}

func claimsOf(n *nodesync.Node) []netip.Prefix {
	if n == nil {
		return nil
	}
	return n.Claims
}

// replaceRoutes puts all routes again and deletes the former ones.
func (p *IPNet) replaceRoutes(txn controller.UpdateOperations) string {
	was, tunnels := p.routed.byKey, p.tunnels.keys
	put := p.putRoutes(txn)
	for _, id := range slices.Sorted(maps.Keys(tunnels)) {
		for _, key := range tunnels[id] {
			if !slices.Contains(p.tunnels.keys[id], key) {
				txn.Delete(key)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if !put[key] {
			txn.Delete(key)
		}
	}
	return fmt.Sprintf("%d routes to other nodes", len(put))
}

// updateRoutes follows one node. If its claims change, it also looks at the nodes that have
// subnets there. NodeSync may know more than this event tells, so a node's present state
// counts.
func (p *IPNet) updateRoutes(ev *nodesync.NodeUpdate, txn controller.UpdateOperations) string {
	nodes := p.IPAM.NodesWithin(difference(claimsOf(ev.PrevState), claimsOf(ev.NewState)))
	if !slices.Contains(nodes, ev.NodeName) {
		nodes = append(nodes, ev.NodeName)
	}
	touched := map[string]bool{}
	for _, name := range nodes {
		p.routed.replace(name, p.routesTo(nodesync.GetNode(p.NodeSync, name)), touched)
	}
	for _, key := range slices.Sorted(maps.Keys(touched)) {
		have, _ := txn.Get(key).(*kv.NodeRoute)
		switch r := p.route(key); {
		case r == nil && have != nil:
			txn.Delete(key)
		case r != nil && (r.NodeName == ev.NodeName || !proto.Equal(r, have)):
			txn.Put(key, r)
		}
	}
	p.updateTunnels(nodes, touched, txn)
	return fmt.Sprintf("%d routes to node %s", len(p.routed.byNode[ev.NodeName]), ev.NodeName)
}

// difference returns the prefixes that are in one of two lists only.
func difference(xs, ys []netip.Prefix) (all []netip.Prefix) {
	for _, p := range xs {
		if !slices.Contains(ys, p) {
			all = append(all, p)
		}
	}
	for _, p := range ys {
		if !slices.Contains(xs, p) {
			all = append(all, p)
		}
	}
	return all
}
