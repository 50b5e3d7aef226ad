// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// routesTo returns the routes to the pod subnets of another node. If the node has no
// address of a subnet's family, the route has no gateway: packets to it must not leave by
// the default route.
func (p *IPNet) routesTo(n *nodesync.Node) (routes []*kv.NodeRoute) {
	if n == nil || n.ID == 0 || n.ID == p.NodeSync.GetNodeID() {
		return nil
	}
	for _, dst := range p.IPAM.BlocksOf(n) {
		r := &kv.NodeRoute{Dst: dst.String(), NodeId: n.ID, NodeName: n.Name}
		for _, a := range p.addressesOf(n) {
			if a.Is4() == dst.Addr().Is4() {
				r.Gateway = a.String()
				break
			}
		}
		routes = append(routes, r)
	}
	return routes
}

// addressesOf returns the addresses by which another node is reached.
func (p *IPNet) addressesOf(n *nodesync.Node) (all []netip.Addr) {
	if p.NodeIPs {
		return n.MgmtIPAddresses
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

// contested is the node of a route that several nodes want.
const contested = 0

// putRoutes puts the routes to all nodes. If two nodes claim one subnet, the route leads to
// the one with the smaller ID.
func (p *IPNet) putRoutes(txn controller.ResyncOperations) {
	p.routed = map[string]uint32{}
	byID := func(a, b *nodesync.Node) int { return cmp.Compare(a.ID, b.ID) }
	for _, n := range slices.SortedFunc(maps.Values(p.NodeSync.GetAllNodes()), byID) {
		for _, r := range p.routesTo(n) {
			key := kv.SinkRoutePrefix + r.Dst
			owner, taken := p.routed[key]
			switch own := p.own(r.Dst); {
			case !own && !taken:
				p.routed[key] = n.ID
				txn.Put(key, r)
			case own || owner != n.ID:
				p.Log.Error("a pod subnet is claimed by two nodes", "subnet", r.Dst, "node", n.Name)
				if taken {
					p.routed[key] = contested
				}
			}
		}
	}
}

func claimsOf(n *nodesync.Node) []netip.Prefix {
	if n == nil {
		return nil
	}
	return n.Claims
}

// replaceRoutes puts all routes again and deletes the former ones.
func (p *IPNet) replaceRoutes(txn controller.UpdateOperations) string {
	was := p.routed
	p.putRoutes(txn)
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, still := p.routed[key]; !still {
			txn.Delete(key)
		}
	}
	return fmt.Sprintf("%d routes to other nodes", len(p.routed))
}

// updateRoutes follows one node. It replaces all routes if its subnets overlap, or
// overlapped, those of another node, or if its claims change, on which the routes to other
// nodes depend.
func (p *IPNet) updateRoutes(ev *nodesync.NodeUpdate, txn controller.UpdateOperations) string {
	if !slices.Equal(claimsOf(ev.PrevState), claimsOf(ev.NewState)) {
		return p.replaceRoutes(txn)
	}
	now := map[string]*kv.NodeRoute{}
	for _, r := range p.routesTo(ev.NewState) {
		key := kv.SinkRoutePrefix + r.Dst
		if owner, taken := p.routed[key]; taken && owner != r.NodeId || p.own(r.Dst) {
			return p.replaceRoutes(txn)
		}
		now[key] = r
	}
	for _, r := range p.routesTo(ev.PrevState) {
		key := kv.SinkRoutePrefix + r.Dst
		have, _ := txn.Get(key).(*kv.NodeRoute)
		switch {
		case now[key] != nil:
		case p.routed[key] == r.NodeId && have.GetNodeName() == r.NodeName:
			delete(p.routed, key)
			txn.Delete(key)
		default: // another node had it, wants it, or has taken it over with the ID
			return p.replaceRoutes(txn)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		p.routed[key] = now[key].NodeId
		txn.Put(key, now[key])
	}
	return fmt.Sprintf("%d routes to node %s", len(now), ev.NodeName)
}
