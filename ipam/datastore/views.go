// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// Stats counts addresses. An address is assigned, cooling or free.
type Stats struct {
	Total        int
	Assigned     int
	Cooling      int
	Prefixes     int
	FreePrefixes int // prefixes without an assigned or cooling address
}

// Free returns the number of free addresses. Those of the other mode and of
// excluded interfaces are included.
func (s Stats) Free() int { return s.Total - s.Assigned - s.Cooling }

func (s Stats) plus(x Stats) Stats {
	return Stats{
		Total:        s.Total + x.Total,
		Assigned:     s.Assigned + x.Assigned,
		Cooling:      s.Cooling + x.Cooling,
		Prefixes:     s.Prefixes + x.Prefixes,
		FreePrefixes: s.FreePrefixes + x.FreePrefixes,
	}
}

// stats counts the addresses of the subpools that want selects, by interface.
// ds.mu is locked.
func (ds *DataStore) stats(want func(*subpool) bool) map[*attachment]Stats {
	all := map[*attachment]Stats{}
	if ds.failed != nil {
		return all
	}
	for _, b := range ds.ledger.Stats() {
		of := ds.subpools[b.Pool]
		if of == nil || !want(of) {
			continue
		}
		used := b.Held + b.Quarantined
		if b.State != ledger.Active {
			all[of.of] = all[of.of].plus(Stats{Total: used, Assigned: used}) // nothing there is free
			continue
		}
		s := Stats{Total: int(min(b.Size-b.Reserved, math.MaxInt)), Assigned: used, Cooling: b.Cooling}
		if of.prefixes {
			s.Prefixes = 1
			if used+b.Cooling == 0 {
				s.FreePrefixes = 1
			}
		}
		all[of.of] = all[of.of].plus(s)
	}
	return all
}

func sum(all map[*attachment]Stats) (s Stats) {
	for _, x := range all {
		s = s.plus(x)
	}
	return s
}

// GetStats returns the number of addresses of all interfaces, and how many of
// them are assigned.
func (ds *DataStore) GetStats() (int, int) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	s := sum(ds.stats(func(*subpool) bool { return true }))
	return s.Total, s.Assigned
}

// GetIPStats returns the counts of one family.
func (ds *DataStore) GetIPStats(f ledger.Family) Stats {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return sum(ds.stats(func(s *subpool) bool { return s.family == f }))
}

// GetENIs returns the number of interfaces.
func (ds *DataStore) GetENIs() int {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return len(ds.attached)
}

// GetTrunkENI returns the ID of the trunk interface, "" if there is none.
func (ds *DataStore) GetTrunkENI() string {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	for _, a := range ds.sorted() {
		if a.Trunk {
			return a.ID
		}
	}
	return ""
}

// GetENIPool returns a copy of all interfaces with their addresses.
func (ds *DataStore) GetENIPool() ENIPool {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.pool(func(*attachment) bool { return true })
}

// pool copies the interfaces that want selects. ds.mu is locked.
func (ds *DataStore) pool(want func(*attachment) bool) ENIPool {
	p := ENIPool{}
	for _, a := range ds.attached {
		if !want(a) {
			continue
		}
		p[a.ID] = &ENI{
			ID:            a.ID,
			IsPrimary:     a.Primary,
			IsTrunk:       a.Trunk,
			DeviceNumber:  a.Device,
			IPv4Addresses: map[string]*AddressInfo{},
			IPv6Addresses: map[string]*AddressInfo{},
		}
	}
	if len(p) == 0 {
		return p
	}
	for _, b := range ds.blocks {
		e := p[b.of.of.ID]
		switch a := b.prefix.Addr(); {
		case e == nil:
		case b.of.prefixes:
			e.Prefixes = append(e.Prefixes, b.prefix.String())
		default:
			e.addresses(a)[a.String()] = &AddressInfo{Address: a.String()}
		}
	}
	for _, e := range p {
		slices.Sort(e.Prefixes)
	}
	for _, x := range ds.ledger.Leases() {
		s := ds.subpools[x.Pool]
		if s == nil || !want(s.of) {
			continue
		}
		info := &AddressInfo{Address: x.Addr.String()}
		if x.State == ledger.Held {
			info.IPAMKey = ipamKey(x.Key)
			info.Metadata = IPAMMetadata{K8SPodNamespace: x.Pod.Namespace, K8SPodName: x.Pod.Name}
		} else {
			info.UnassignedTime = x.Since
		}
		p[s.of.ID].addresses(x.Addr)[info.Address] = info
	}
	return p
}

func (e *ENI) addresses(a netip.Addr) map[string]*AddressInfo {
	if a.Is4() {
		return e.IPv4Addresses
	}
	return e.IPv6Addresses
}

// GetENIInfos returns a copy of all interfaces with their counts, for introspection.
func (ds *DataStore) GetENIInfos() *ENIInfos {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	s := sum(ds.stats(func(*subpool) bool { return true }))
	infos := &ENIInfos{TotalIPs: s.Total, AssignedIPs: s.Assigned, ENIs: map[string]ENI{}}
	for id, e := range ds.pool(func(*attachment) bool { return true }) {
		infos.ENIs[id] = *e
	}
	return infos
}

// GetENINeedsIP returns the first interface, by device number, that has fewer
// than maxIPperENI addresses and prefixes, or nil. It passes over excluded
// interfaces.
func (ds *DataStore) GetENINeedsIP(maxIPperENI int, skipPrimary bool) *ENI {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	n := map[*attachment]int{}
	for _, b := range ds.blocks {
		n[b.of.of]++
	}
	for _, a := range ds.sorted() {
		if !a.Excluded && (!skipPrimary || !a.Primary) && n[a] < maxIPperENI {
			return ds.pool(func(x *attachment) bool { return x == a })[a.ID]
		}
	}
	return nil
}

// GetENIIPs returns the single addresses of an interface.
func (ds *DataStore) GetENIIPs(eniID string) ([]string, error) {
	addresses, _, err := ds.GetENIBlocks(eniID)
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(addresses))
	for _, a := range addresses {
		all = append(all, a.String())
	}
	return all, nil
}

// GetENIBlocks returns the single addresses and the prefixes of an interface.
func (ds *DataStore) GetENIBlocks(eniID string) (addresses []netip.Addr, prefixes []netip.Prefix, err error) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	a := ds.attached[eniID]
	if a == nil {
		return nil, nil, ds.logged(&Error{Code: UnknownENIError, ENI: eniID})
	}
	for _, b := range ds.blocks {
		switch {
		case b.of.of != a:
		case b.of.prefixes:
			prefixes = append(prefixes, b.prefix)
		default:
			addresses = append(addresses, b.prefix.Addr())
		}
	}
	return addresses, prefixes, nil
}

// FreeableIPs returns the single addresses of an interface that no pod has, the
// cooling ones last: they may be returned to the cloud, but not first.
func (ds *DataStore) FreeableIPs(eniID string) []string {
	freeable := ds.freeable(eniID, false)
	all := make([]string, 0, len(freeable))
	for _, p := range freeable {
		all = append(all, p.Addr().String())
	}
	return all
}

// FreeablePrefixes returns the prefixes of an interface without a pod, those with
// a cooling address last.
func (ds *DataStore) FreeablePrefixes(eniID string) []netip.Prefix { return ds.freeable(eniID, true) }

func (ds *DataStore) freeable(eniID string, prefixes bool) []netip.Prefix {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	a := ds.attached[eniID]
	if a == nil {
		return nil
	}
	var free, cooling []netip.Prefix
	for _, b := range ds.ledger.Stats() {
		s := ds.subpools[b.Pool]
		switch {
		case s == nil || s.of != a || s.prefixes != prefixes || b.Held+b.Quarantined > 0:
		case b.Cooling > 0:
			cooling = append(cooling, b.Block)
		default:
			free = append(free, b.Block)
		}
	}
	return append(free, cooling...)
}

// AllocatedIPs returns the addresses of pods, by address. Unplaced returns those
// of interfaces that are not attached.
func (ds *DataStore) AllocatedIPs() []PodIPInfo {
	return ds.allocated(func(x ledger.Lease) (int, bool) {
		s := ds.subpools[x.Pool]
		return s.device(), s != nil
	})
}

// Unplaced returns the restored addresses whose interface is not attached. They
// are assigned to no other pod.
func (ds *DataStore) Unplaced() []PodIPInfo {
	return ds.allocated(func(x ledger.Lease) (int, bool) { return -1, x.Pool == unplaced })
}

func (ds *DataStore) allocated(device func(ledger.Lease) (int, bool)) []PodIPInfo {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	all := []PodIPInfo{}
	if ds.failed != nil {
		return all
	}
	leases := ds.ledger.Leases()
	slices.SortFunc(leases, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	for _, x := range leases {
		if n, ok := device(x); ok && x.State == ledger.Held {
			all = append(all, PodIPInfo{IPAMKey: ipamKey(x.Key), IP: x.Addr.String(), DeviceNumber: n})
		}
	}
	return all
}

// Check compares the interfaces and blocks with the ledger, and returns the
// differences.
func (ds *DataStore) Check() (findings []string) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	pools := map[netip.Prefix]string{}
	for _, b := range ds.ledger.Stats() {
		if b.Pool != unplaced {
			pools[b.Block] = b.Pool
		}
	}
	for _, b := range ds.blocks {
		if b.of.of != ds.attached[b.of.of.ID] {
			findings = append(
				findings,
				fmt.Sprintf("%s is of interface %q, which is not attached", b.prefix, b.of.of.ID),
			)
		}
		if pools[b.prefix] != b.of.pool {
			findings = append(
				findings,
				fmt.Sprintf("%s is of pool %q, in the ledger of %q", b.prefix, b.of.pool, pools[b.prefix]),
			)
		}
		delete(pools, b.prefix)
	}
	for p, pool := range pools {
		findings = append(findings, fmt.Sprintf("block %s of pool %q in the ledger is of no interface", p, pool))
	}
	return findings
}
