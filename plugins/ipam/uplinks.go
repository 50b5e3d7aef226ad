// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"github.com/cadastre/cadastre/ipam/nodeset"
)

// Uplink is a network interface of this node whose addresses pods have.
type Uplink = nodeset.Uplink

// Uplinks returns the network interfaces of this node that have blocks of the default
// network, sorted by Interface; none if its addresses are not of interfaces. The loop
// pushes a PodNetworkChange after a change of them.
func (i *IPAM) Uplinks() []Uplink { return i.state.Load().uplinks.All() }

// UplinkOf returns the ID of the interface that an address is of. ok is false if that is
// not an Uplink.
func (i *IPAM) UplinkOf(a netip.Addr) (iface string, ok bool) {
	u, ok := i.state.Load().uplinks.Of(a.Unmap())
	return u.Interface, ok
}
