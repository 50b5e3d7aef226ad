// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"maps"
	"slices"
	"sync"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// networkPeers holds the ways to other nodes through the link of each network. Any goroutine
// may call its methods. nil has none.
type networkPeers struct {
	host *tunnelHost

	mu    sync.Mutex
	byVNI map[uint32]*vxlanPeers
}

func newNetworkPeers(host *tunnelHost) *networkPeers {
	return &networkPeers{host: host, byVNI: map[uint32]*vxlanPeers{}}
}

// of returns the peers of the link with a VNI.
func (n *networkPeers) of(vni uint32) *vxlanPeers {
	n.mu.Lock()
	defer n.mu.Unlock()
	peers := n.byVNI[vni]
	if peers == nil {
		peers = newVXLANPeers(n.host, &vxlan{host: n.host, name: networkLinkName(vni), alias: networkAlias})
		peers.vni = vni
		n.byVNI[vni] = peers
	}
	return peers
}

// all returns the peers of all links that were named.
func (n *networkPeers) all() []*vxlanPeers {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.byVNI))
}

// present returns the peers of the links of networks that wanted values name, or that the
// node has.
func (n *networkPeers) present(wanted []controller.Value) ([]*vxlanPeers, error) {
	if n == nil {
		return nil, nil
	}
	for _, v := range wanted {
		if m, ok := v.Message.(*kv.NodeTunnel); ok && m.GetVni() != 0 {
			n.of(m.GetVni())
		}
	}
	links, err := listLinks(n.host.socket, vxlanKind)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if vni := networkVNI(l.name); vni != 0 {
			n.of(vni)
		}
	}
	return n.all(), nil
}
