// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// Uplink is a network interface of this node whose addresses pods have.
type Uplink = nodeset.Uplink

// Uplinks returns the network interfaces of this node that have blocks of the default
// network, sorted by Interface; none if its addresses are not of interfaces. Ranges of a
// family that contiv.conf does not have are left out: the node may have IPv6 disabled. The
// loop pushes a PodNetworkChange after a change of them.
func (i *IPAM) Uplinks() []Uplink {
	s := i.state.Load()
	foreign := func(p netip.Prefix) bool {
		same := func(f addrplan.Family) bool { return f.Hosts.Addr().Is4() == p.Addr().Is4() }
		return !slices.ContainsFunc(s.families, same)
	}
	all := s.uplinks.All()
	for k, u := range all {
		outside := func(r cloud.Range) bool { return foreign(r.CIDR) }
		all[k].Ranges = slices.DeleteFunc(slices.Clone(u.Ranges), outside)
		all[k].VPCCIDRs = slices.DeleteFunc(slices.Clone(u.VPCCIDRs), foreign)
	}
	return all
}

// UplinkOf returns the ID of the interface that an address is of. ok is false if that is
// not an Uplink.
func (i *IPAM) UplinkOf(a netip.Addr) (iface string, ok bool) {
	u, ok := i.state.Load().uplinks.Of(a.Unmap())
	return u.Interface, ok
}

// uplinksRecord is the key of the record of the uplinks.
const uplinksRecord = "uplinks"

// loadUplinks reads the uplinks that an earlier process has recorded. A record that cannot be
// read is replaced by the next one: the NetResourceSet has the same interfaces.
func (i *IPAM) loadUplinks(ctx context.Context) error {
	if i.Records == nil {
		return nil
	}
	return i.Records.Load(ctx, func(key string, value []byte) error {
		if key != uplinksRecord {
			return nil
		}
		if err := json.Unmarshal(value, &i.recorded); err != nil {
			i.Log.Error("the record of the interfaces of pods' addresses cannot be read", "error", err)
		}
		return nil
	})
}

// recordUplinks writes the uplinks if they differ from the recorded ones: a process that
// starts without the NetResourceSet needs them for the pods that run. The plugin of podBlocks
// interfaces has records of its own.
func (i *IPAM) recordUplinks(ctx context.Context, u nodeset.Uplinks) (err error) {
	if i.Records == nil || !i.fromNetResources() || u.Equal(i.recorded) {
		return nil
	}
	put, del := map[string][]byte{}, []string{uplinksRecord}
	if len(u.All()) > 0 {
		del = nil
		if put[uplinksRecord], err = json.Marshal(u); err != nil {
			return fmt.Errorf("record the interfaces of the pods' addresses: %w", err)
		}
	}
	if err := i.Records.Commit(ctx, put, del); err != nil {
		return fmt.Errorf("record the interfaces of the pods' addresses: %w", err)
	}
	i.recorded = u
	return nil
}
