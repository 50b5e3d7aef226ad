// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Stats counts addresses. What is neither assigned nor cooling is free.
type Stats struct {
	Total        int
	Assigned     int
	Cooling      int
	Prefixes     int
	FreePrefixes int // of these, those that nothing is assigned of and nothing cools of
}

// Free is how many addresses could be assigned, as far as mode and exclusions allow.
func (s Stats) Free() int { return s.Total - s.Assigned - s.Cooling }

func (s Stats) plus(x Stats) Stats {
	return Stats{s.Total + x.Total, s.Assigned + x.Assigned, s.Cooling + x.Cooling, s.Prefixes + x.Prefixes, s.FreePrefixes + x.FreePrefixes}
}

// tally counts by interface the lanes that want is true for. ds.life is held.
func (ds *DataStore) tally(want func(*lane) bool) map[*attachment]Stats {
	all := map[*attachment]Stats{}
	if ds.failed != nil {
		return all
	}
	for _, b := range ds.book.Stats() {
		l := ds.lanes[b.Pool]
		if l == nil || b.State != ledger.Active || !want(l) {
			continue
		}
		s := Stats{Total: int(min(b.Size, math.MaxInt)), Assigned: b.Held, Cooling: b.Cooling}
		if l.prefixes {
			s.Prefixes = 1
			if b.Held+b.Cooling == 0 {
				s.FreePrefixes = 1
			}
		}
		all[l.of] = all[l.of].plus(s)
	}
	return all
}

func sum(all map[*attachment]Stats) (s Stats) {
	for _, x := range all {
		s = s.plus(x)
	}
	return s
}

// GetStats counts the addresses of all interfaces, and those of them that are assigned.
func (ds *DataStore) GetStats() (int, int) {
	ds.life.RLock()
	defer ds.life.RUnlock()
	s := sum(ds.tally(func(*lane) bool { return true }))
	return s.Total, s.Assigned
}

// GetIPStats counts the addresses of one family.
func (ds *DataStore) GetIPStats(f ledger.Family) Stats {
	ds.life.RLock()
	defer ds.life.RUnlock()
	return sum(ds.tally(func(l *lane) bool { return l.family == f }))
}

// GetENIs counts the interfaces.
func (ds *DataStore) GetENIs() int {
	ds.life.RLock()
	defer ds.life.RUnlock()
	return len(ds.attached)
}

// GetTrunkENI is the ID of the trunk interface, "" if there is none.
func (ds *DataStore) GetTrunkENI() string {
	ds.life.RLock()
	defer ds.life.RUnlock()
	for _, a := range ds.sorted() {
		if a.Trunk {
			return a.ID
		}
	}
	return ""
}

// sorted are the interfaces, by device and ID. ds.life is held.
func (ds *DataStore) sorted() []*attachment {
	return slices.SortedFunc(maps.Values(ds.attached), func(x, y *attachment) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.ID, y.ID))
	})
}

// GetENIPool is all interfaces with their addresses, as a copy.
func (ds *DataStore) GetENIPool() ENIPool {
	ds.life.RLock()
	defer ds.life.RUnlock()
	return ds.pool(func(*attachment) bool { return true })
}

// pool copies the interfaces that want is true for. ds.life is held.
func (ds *DataStore) pool(want func(*attachment) bool) ENIPool {
	p := ENIPool{}
	for _, a := range ds.attached {
		if !want(a) {
			continue
		}
		e := &ENI{
			ID: a.ID, IsPrimary: a.Primary, IsTrunk: a.Trunk, DeviceNumber: a.Device,
			IPv4Addresses: map[string]*AddressInfo{}, IPv6Addresses: map[string]*AddressInfo{},
		}
		for _, l := range a.lanes {
			for _, s := range l.spots {
				if l.prefixes {
					e.Prefixes = append(e.Prefixes, s.prefix.String())
				} else {
					e.addresses(s.prefix.Addr())[s.prefix.Addr().String()] = &AddressInfo{Address: s.prefix.Addr().String()}
				}
			}
		}
		slices.Sort(e.Prefixes)
		p[a.ID] = e
	}
	if len(p) == 0 {
		return p
	}
	for _, x := range ds.book.Leases() {
		l := ds.lanes[x.Pool]
		if l == nil || !want(l.of) {
			continue
		}
		info := &AddressInfo{Address: x.Addr.String()}
		if x.State == ledger.Held {
			info.IPAMKey = IPAMKey{NetworkName: x.Key.Network, ContainerID: x.Key.ContainerID, IfName: x.Key.IfName}
			info.Metadata = IPAMMetadata{K8SPodNamespace: x.Pod.Namespace, K8SPodName: x.Pod.Name}
		} else {
			info.UnassignedTime = x.Since
		}
		p[l.of.ID].addresses(x.Addr)[info.Address] = info
	}
	return p
}

func (e *ENI) addresses(a netip.Addr) map[string]*AddressInfo {
	if a.Is4() {
		return e.IPv4Addresses
	}
	return e.IPv6Addresses
}

// GetENIInfos is everything, for people to look at.
func (ds *DataStore) GetENIInfos() *ENIInfos {
	ds.life.RLock()
	defer ds.life.RUnlock()
	s := sum(ds.tally(func(*lane) bool { return true }))
	infos := &ENIInfos{TotalIPs: s.Total, AssignedIPs: s.Assigned, ENIs: map[string]ENI{}}
	for id, e := range ds.pool(func(*attachment) bool { return true }) {
		infos.ENIs[id] = *e
	}
	return infos
}

// GetENINeedsIP is the first interface, by device, that has room for one more
// address, or nil. Interfaces that assign nothing need none.
func (ds *DataStore) GetENINeedsIP(maxIPperENI int, skipPrimary bool) *ENI {
	ds.life.RLock()
	defer ds.life.RUnlock()
	for _, a := range ds.sorted() {
		if a.Excluded || skipPrimary && a.Primary {
			continue
		}
		n := 0
		for _, l := range a.lanes {
			n += len(l.spots)
		}
		if n < maxIPperENI {
			return ds.pool(func(x *attachment) bool { return x == a })[a.ID]
		}
	}
	return nil
}

// GetENIIPs are the single addresses of an interface.
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

// GetENIBlocks are the single addresses and the prefixes of an interface.
func (ds *DataStore) GetENIBlocks(eniID string) (addresses []netip.Addr, prefixes []netip.Prefix, err error) {
	ds.life.RLock()
	defer ds.life.RUnlock()
	a := ds.attached[eniID]
	if a == nil {
		return nil, nil, ds.say(&Error{Code: UnknownENIError, ENI: eniID})
	}
	for _, l := range a.lanes {
		for _, s := range l.spots {
			if l.prefixes {
				prefixes = append(prefixes, s.prefix)
			} else {
				addresses = append(addresses, s.prefix.Addr())
			}
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return addresses, prefixes, nil
}

// FreeableIPs are the single addresses of an interface that no pod has. Those
// that cool are among them, the last ones: they may be given back, but not first.
func (ds *DataStore) FreeableIPs(eniID string) []string {
	freeable := ds.freeable(eniID, false)
	all := make([]string, 0, len(freeable))
	for _, p := range freeable {
		all = append(all, p.Addr().String())
	}
	return all
}

// FreeablePrefixes are the prefixes of an interface that no pod has an address
// of. Those that something cools of are the last ones.
func (ds *DataStore) FreeablePrefixes(eniID string) []netip.Prefix { return ds.freeable(eniID, true) }

func (ds *DataStore) freeable(eniID string, prefixes bool) []netip.Prefix {
	ds.life.RLock()
	defer ds.life.RUnlock()
	a := ds.attached[eniID]
	if a == nil {
		return nil
	}
	var free, cooling []netip.Prefix
	for _, b := range ds.book.Stats() {
		l := ds.lanes[b.Pool]
		switch {
		case l == nil || l.of != a || l.prefixes != prefixes || b.Held > 0:
		case b.Cooling > 0:
			cooling = append(cooling, b.Block)
		default:
			free = append(free, b.Block)
		}
	}
	return append(free, cooling...)
}

// AllocatedIPs are the addresses that pods have, by address. What was restored
// and is of no attached interface is not among them; see Unplaced.
func (ds *DataStore) AllocatedIPs() []PodIPInfo {
	return ds.allocated(func(pool string) (int, bool) {
		l := ds.lanes[pool]
		if l == nil {
			return 0, false
		}
		return l.of.Device, true
	})
}

// Unplaced are the restored addresses whose interface is not attached. Nobody
// else is assigned them.
func (ds *DataStore) Unplaced() []PodIPInfo {
	return ds.allocated(func(pool string) (int, bool) { return -1, pool == unplaced })
}

func (ds *DataStore) allocated(device func(pool string) (int, bool)) []PodIPInfo {
	ds.life.RLock()
	defer ds.life.RUnlock()
	all := []PodIPInfo{}
	if ds.failed != nil {
		return all
	}
	leases := ds.book.Leases()
	slices.SortFunc(leases, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	for _, x := range leases {
		if n, ok := device(x.Pool); ok && x.State == ledger.Held {
			key := IPAMKey{NetworkName: x.Key.Network, ContainerID: x.Key.ContainerID, IfName: x.Key.IfName}
			all = append(all, PodIPInfo{IPAMKey: key, IP: x.Addr.String(), DeviceNumber: n})
		}
	}
	return all
}

// Check compares the book with itself, and says what does not fit.
func (ds *DataStore) Check() (findings []string) {
	ds.life.RLock()
	defer ds.life.RUnlock()
	for _, s := range ds.spots {
		if s.lane.of != ds.attached[s.lane.of.ID] {
			findings = append(findings, fmt.Sprintf("%s is of interface %q, which is not attached", s.prefix, s.lane.of.ID))
		}
	}
	have := map[netip.Prefix]string{}
	for _, b := range ds.book.Stats() {
		have[b.Block] = b.Pool
		if b.Pool != unplaced && ds.lanes[b.Pool] == nil {
			findings = append(findings, fmt.Sprintf("block %s of pool %q is of no interface", b.Block, b.Pool))
		}
	}
	for _, s := range ds.spots {
		if have[s.prefix] != s.lane.pool {
			findings = append(findings, fmt.Sprintf("%s of interface %q is not a block of its pool", s.prefix, s.lane.of.ID))
		}
	}
	return append(findings, sizes(ds)...)
}

// sizes finds lanes whose blocks are not those of their pool.
func sizes(ds *DataStore) (findings []string) {
	n := uint64(0)
	for _, l := range ds.lanes {
		for _, s := range l.spots {
			n += addrspace.Size(s.prefix)
		}
	}
	if s := sum(ds.tally(func(*lane) bool { return true })); uint64(s.Total) != n {
		findings = append(findings, fmt.Sprintf("%d addresses are attached, the book has %d", n, s.Total))
	}
	return findings
}
