// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// tunnels holds the tunnels that are wanted to other nodes, so that the change of one node
// looks only at its own.
type tunnels struct {
	byID   map[uint32]map[string]*kv.NodeTunnel // two names have one ID while it changes hands
	byName map[string]uint32
	keys   map[uint32][]string // of the values that are put, by node ID
}

func newTunnels() tunnels {
	return tunnels{
		byID:   map[uint32]map[string]*kv.NodeTunnel{},
		byName: map[string]uint32{},
		keys:   map[uint32][]string{},
	}
}

// replace replaces the tunnel to a node, nil for none, and adds the IDs of the tunnels
// before and after to touched.
func (t *tunnels) replace(name string, m *kv.NodeTunnel, touched map[uint32]bool) {
	if id, ok := t.byName[name]; ok {
		touched[id] = true
		delete(t.byName, name)
		delete(t.byID[id], name)
		if len(t.byID[id]) == 0 {
			delete(t.byID, id)
		}
	}
	if m == nil {
		return
	}
	touched[m.NodeId], t.byName[name] = true, m.NodeId
	if t.byID[m.NodeId] == nil {
		t.byID[m.NodeId] = map[string]*kv.NodeTunnel{}
	}
	t.byID[m.NodeId][name] = m
}

// get returns the tunnel to a node ID, nil for none.
func (t *tunnels) get(id uint32) *kv.NodeTunnel {
	all := t.byID[id]
	if len(all) == 0 {
		return nil
	}
	return all[slices.Min(slices.Collect(maps.Keys(all)))]
}

// linkAddresses returns the addresses of a node on the links of networks, one of each
// family. That of IPv6 is link-local: the kernel refuses a gateway that it reaches through
// the node's own link.
func (p *IPNet) linkAddresses(n *nodesync.Node) (all []netip.Addr) {
	for _, a := range p.IPAM.VxlanAddressesOf(n.ID) {
		if a.Addr().Is4() {
			all = append(all, a.Addr())
		}
	}
	return append(all, linkLocalOf(n.ID))
}

// tunnelsOf returns the tunnel to a node ID through the node's own link, and with it those
// through the links of networks, by key.
func (p *IPNet) tunnelsOf(id uint32) map[string]*kv.NodeTunnel {
	m := p.tunnels.get(id)
	if m == nil {
		return nil
	}
	all := map[string]*kv.NodeTunnel{kv.SinkTunnelKey(id, ""): m}
	for _, name := range p.plan.linked() {
		of := &kv.NodeTunnel{
			NodeId:    id,
			NodeName:  m.NodeName,
			Transport: m.Transport,
			Underlay:  m.Underlay,
			Mac:       m.Mac,
			Network:   name,
			Vni:       p.plan.networks[name].vni,
		}
		for _, a := range p.linkAddresses(&nodesync.Node{ID: id}) {
			of.VxlanIps = append(of.VxlanIps, a.String())
		}
		all[kv.SinkTunnelKey(id, name)] = of
	}
	return all
}

// tunnelTo returns the tunnel to a node. It returns nil without a transport that needs one,
// while this node's own underlay is not found, and for a node that has not published what a
// tunnel needs. The routes to that node are pending until then.
func (p *IPNet) tunnelTo(n *nodesync.Node) *kv.NodeTunnel {
	if !p.Transport.IsTunnel() || p.waits() || n == nil || n.ID == 0 || n.ID == p.NodeSync.GetNodeID() ||
		len(n.Underlay) == 0 {
		return nil
	}
	m := &kv.NodeTunnel{NodeId: n.ID, NodeName: n.Name, Transport: p.transport()}
	if m.Transport == kv.Transport_WIREGUARD {
		if n.PublicKey == "" {
			return nil
		}
		m.PublicKey = n.PublicKey
	} else {
		m.Mac = vxlanMACOf(n.ID)
	}
	for _, a := range n.Underlay {
		m.Underlay = append(m.Underlay, a.String())
	}
	for _, a := range p.IPAM.VxlanAddressesOf(n.ID) {
		m.VxlanIps = append(m.VxlanIps, a.Addr().String())
	}
	for _, key := range p.routed.byNode[n.Name] {
		if r := p.leading(key); r != nil && r.NodeName == n.Name {
			m.Subnets = append(m.Subnets, r.Dst)
		}
	}
	slices.Sort(m.Subnets)
	return m
}

// putTunnels puts the tunnels to all nodes. Their routes must be put before.
func (p *IPNet) putTunnels(txn controller.ResyncOperations, nodes nodesync.Nodes) {
	p.tunnels = newTunnels()
	touched := map[uint32]bool{}
	for name, n := range nodes {
		p.tunnels.replace(name, p.tunnelTo(n), touched)
	}
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		all := p.tunnelsOf(id)
		p.tunnels.keys[id] = sortedKeys(all)
		for _, key := range p.tunnels.keys[id] {
			txn.Put(key, all[key])
		}
	}
}

// updateTunnels follows the nodes with the given names, and those that have a claim to the
// destination of a touched route. The subnets of a tunnel are those that lead to its node.
func (p *IPNet) updateTunnels(names []string, routes map[string]bool, txn controller.UpdateOperations) {
	if !p.Transport.IsTunnel() {
		return
	}
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	for key := range routes {
		for _, r := range p.routed.byKey[key] {
			all[r.NodeName] = true
		}
	}
	touched := map[uint32]bool{}
	for name := range all {
		p.tunnels.replace(name, p.tunnelTo(nodesync.GetNode(p.NodeSync, name)), touched)
	}
	for _, id := range slices.Sorted(maps.Keys(touched)) {
		next := p.tunnelsOf(id)
		for _, key := range p.tunnels.keys[id] {
			if next[key] == nil && txn.Get(key) != nil {
				txn.Delete(key)
			}
		}
		p.tunnels.keys[id] = sortedKeys(next)
		if len(next) == 0 {
			delete(p.tunnels.keys, id)
		}
		for key, m := range next {
			if have := txn.Get(key); have == nil || !proto.Equal(m, have) {
				txn.Put(key, m)
			}
		}
	}
}
