// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// never is a time that does not come.
const never = time.Duration(1<<63 - 1)

// AddIPv4AddressToStore adds an address of an interface.
func (ds *DataStore) AddIPv4AddressToStore(eniID string, ipv4 string) error {
	a, err := netip.ParseAddr(ipv4)
	if err != nil || !a.Is4() {
		return fmt.Errorf("add address %q to interface %q: it is not an IPv4 address like 10.0.0.5", ipv4, eniID)
	}
	return ds.AddAddress(eniID, a)
}

// AddAddress adds a single address, of either family.
func (ds *DataStore) AddAddress(eniID string, a netip.Addr) error {
	return ds.add(eniID, netip.PrefixFrom(a, a.BitLen()), false)
}

// AddPrefix adds a prefix: a /28 or a /80 in the cloud that this is made for.
// All its addresses can be assigned, the first and the last one as well.
func (ds *DataStore) AddPrefix(eniID string, p netip.Prefix) error { return ds.add(eniID, p, true) }

func (ds *DataStore) add(eniID string, p netip.Prefix, isPrefix bool) error {
	if !p.IsValid() || p != p.Masked() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
		return fmt.Errorf("add %s to interface %q: it is not an address or has host bits", p, eniID)
	}
	ds.life.Lock()
	defer ds.life.Unlock()
	a := ds.attached[eniID]
	if a == nil {
		return ds.say(&Error{Code: UnknownENIError, ENI: eniID, IP: p.String()})
	}
	i, other := ds.place(p)
	if other != nil {
		return ds.say(&Error{Code: IPAlreadyInStoreError, ENI: eniID, IP: p.String(), Why: fmt.Sprintf("interface %q has %s", other.lane.of.ID, other.prefix)})
	}
	l, isNew := ds.laneFor(a, ledger.FamilyOf(p.Addr()), isPrefix)
	st := ds.book.Begin()
	if isNew {
		if err := st.SetPool(ledger.Pool{Name: l.pool, Order: ledger.Lowest, CoolDown: ds.opt.CoolDown}); err != nil {
			return fmt.Errorf("add %s to interface %q: %w", p, eniID, err)
		}
	}
	if err := st.SetBlocks(l.pool, append(l.blocks(), p)); err != nil {
		st.Undo()
		return fmt.Errorf("add %s to interface %q: %w", p, eniID, err)
	}
	if err := st.Commit(context.Background()); err != nil {
		return fmt.Errorf("add %s to interface %q: %w", p, eniID, err)
	}
	delete(ds.freed, p)
	s := &spot{prefix: p, lane: l}
	ds.spots = slices.Insert(ds.spots, i, s)
	j, _ := slices.BinarySearchFunc(l.spots, s, comparePrefix)
	l.spots = slices.Insert(l.spots, j, s)
	l.until = 0
	if isNew {
		a.lanes = append(a.lanes, l)
		ds.lanes[l.pool] = l
		ds.arrange()
	}
	if err := ds.adopt(s); err != nil {
		ds.opt.Log.Error("restored addresses cannot move to their interface: they are assigned to nobody else", "interface", eniID, "block", p, "error", err)
	}
	return nil
}

func comparePrefix(x, y *spot) int { return x.prefix.Addr().Compare(y.prefix.Addr()) }

// place is where p belongs among the spots, and the spot that it overlaps.
func (ds *DataStore) place(p netip.Prefix) (int, *spot) {
	i, found := slices.BinarySearchFunc(ds.spots, p.Addr(), func(s *spot, a netip.Addr) int { return s.prefix.Addr().Compare(a) })
	switch {
	case found:
		return i, ds.spots[i]
	case i > 0 && ds.spots[i-1].prefix.Overlaps(p):
		return i, ds.spots[i-1]
	case i < len(ds.spots) && ds.spots[i].prefix.Overlaps(p):
		return i, ds.spots[i]
	}
	return i, nil
}

// laneFor is the lane of a for one more block.
func (ds *DataStore) laneFor(a *attachment, f ledger.Family, prefixes bool) (_ *lane, isNew bool) {
	kind := "addresses"
	if prefixes {
		kind = "prefixes"
	}
	n := 0
	for _, l := range a.lanes {
		if l.family != f || l.prefixes != prefixes {
			continue
		}
		if len(l.spots) < laneSpots {
			return l, false
		}
		n++
	}
	return &lane{pool: fmt.Sprintf("%s/%s/%s/%03d", a.ID, f, kind, n), of: a, family: f, prefixes: prefixes}, true
}

func (l *lane) blocks() []netip.Prefix {
	all := make([]netip.Prefix, 0, len(l.spots)+1)
	for _, s := range l.spots {
		all = append(all, s.prefix)
	}
	return all
}

// DelIPv4AddressFromStore removes an address of an interface. By force the pod
// that has it loses it; if that cannot be written, nothing is removed.
func (ds *DataStore) DelIPv4AddressFromStore(eniID string, ipv4 string, force bool) error {
	a, err := netip.ParseAddr(ipv4)
	if err != nil {
		return ds.say(&Error{Code: UnknownIPError, ENI: eniID, IP: ipv4, Why: err.Error()})
	}
	return ds.Remove(eniID, netip.PrefixFrom(a, a.BitLen()), force)
}

// Remove removes an address or a prefix of an interface; see DelIPv4AddressFromStore.
func (ds *DataStore) Remove(eniID string, p netip.Prefix, force bool) error {
	ds.life.Lock()
	defer ds.life.Unlock()
	a := ds.attached[eniID]
	if a == nil {
		return ds.say(&Error{Code: UnknownENIError, ENI: eniID, IP: p.String()})
	}
	_, s := ds.place(p)
	if s == nil || s.prefix != p || s.lane.of != a {
		return ds.say(&Error{Code: UnknownIPError, ENI: eniID, IP: p.String()})
	}
	held := s.leases(ds)
	if len(held) > 0 && !force {
		return ds.say(&Error{Code: IPInUseError, ENI: eniID, IP: p.String(), Why: "it is assigned to " + held[0].Key.String()})
	}
	if err := ds.retire(s, held); err != nil {
		return fmt.Errorf("remove %s from interface %q: %w", p, eniID, err)
	}
	for _, l := range held {
		ds.opt.Log.Warn("a pod's address is removed by force", "interface", eniID, "address", l.Addr, "key", l.Key)
	}
	return nil
}

// leases are the assigned addresses of s.
func (s *spot) leases(ds *DataStore) []ledger.Lease {
	if s.prefix.IsSingleIP() {
		if l, ok := ds.book.Lookup(s.lane.pool, s.prefix.Addr()); ok && l.State == ledger.Held {
			return []ledger.Lease{l}
		}
		return nil
	}
	held := ds.leases(func(l *lane) bool { return l == s.lane })
	return slices.DeleteFunc(held, func(l ledger.Lease) bool { return l.Block != s.prefix })
}

// retire takes s, and held of it, out of the book; ds.life is held.
func (ds *DataStore) retire(s *spot, held []ledger.Lease) error {
	st := ds.book.Begin()
	if err := release(st, held); err != nil {
		st.Undo()
		return err
	}
	blocks := slices.DeleteFunc(s.lane.blocks(), func(p netip.Prefix) bool { return p == s.prefix })
	if err := st.SetBlocks(s.lane.pool, blocks); err != nil {
		st.Undo()
		return err
	}
	if err := st.Commit(context.Background()); err != nil {
		return err
	}
	is := func(x *spot) bool { return x == s }
	ds.spots = slices.DeleteFunc(ds.spots, is)
	s.lane.spots = slices.DeleteFunc(s.lane.spots, is)
	now := ds.clock.now()
	maps.DeleteFunc(ds.freed, func(_ netip.Prefix, at time.Duration) bool { return now-at >= 60*freedFor }) // nobody has asked
	ds.freed[s.prefix] = now
	return nil
}
