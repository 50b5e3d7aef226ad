// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// Snapshot returns the assigned addresses as a checkpoint, sorted by address, for the
// export to another program. A key with an address of each family has one entry.
func (ds *DataStore) Snapshot() *CheckpointData {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	d := &CheckpointData{Version: CheckpointFormatVersion, Allocations: []CheckpointEntry{}}
	if ds.failed != nil {
		return d
	}
	leases := slices.DeleteFunc(ds.ledger.Leases(), func(x ledger.Lease) bool {
		return x.State != ledger.Held || ds.subpoolOf(x.Pool, single(x.Addr)) == nil
	})
	slices.SortFunc(leases, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	for _, x := range leases {
		e := CheckpointEntry{
			IPAMKey:             ipamKey(x.Key),
			AllocationTimestamp: x.Since.UnixNano(),
			Metadata:            IPAMMetadata{K8SPodNamespace: x.Pod.Namespace, K8SPodName: x.Pod.Name},
		}
		if x.Addr.Is4() {
			e.IPv4 = x.Addr.String()
		} else {
			e.IPv6 = x.Addr.String()
		}
		d.Allocations = append(d.Allocations, e)
	}
	d.Allocations = perKey(d.Allocations)
	return d
}
