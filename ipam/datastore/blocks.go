// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// block is an address, or a prefix, of an interface.
type block struct {
	prefix netip.Prefix
	of     *subpool
}

// AddIPv4AddressToStore adds an address to an interface.
func (ds *DataStore) AddIPv4AddressToStore(eniID string, ipv4 string) error {
	a, err := netip.ParseAddr(ipv4)
	if err != nil || !a.Is4() {
		return fmt.Errorf("add address %q to interface %q: want an IPv4 address such as 10.0.0.5", ipv4, eniID)
	}
	return ds.AddAddress(eniID, a)
}

// AddAddress adds a single address of either family to an interface.
func (ds *DataStore) AddAddress(eniID string, a netip.Addr) error {
	return ds.add(eniID, single(a), false)
}

// AddPrefix adds a prefix to an interface: in AWS a /28 or a /80. All its
// addresses can be assigned, the first and the last one included.
func (ds *DataStore) AddPrefix(eniID string, p netip.Prefix) error { return ds.add(eniID, p, true) }

func (ds *DataStore) add(eniID string, p netip.Prefix, isPrefix bool) error {
	if err := checkBlock(eniID, p); err != nil {
		return err
	}
	defer ds.lock()()
	a := ds.attached[eniID]
	if a == nil {
		return ds.logged(&Error{Code: UnknownENIError, ENI: eniID, IP: p.String()})
	}
	i, other, overlaps := ds.find(p)
	if overlaps {
		why := fmt.Sprintf("interface %q has %s", other.of.of.ID, other.prefix)
		return ds.logged(&Error{Code: IPAlreadyInStoreError, ENI: eniID, IP: p.String(), Why: why})
	}
	b := block{prefix: p, of: a.subpool(ledger.FamilyOf(p.Addr()), isPrefix)}
	if err := ds.setBlocks(b.of, append(ds.prefixes(b.of), p), nil); err != nil {
		return fmt.Errorf("add %s to interface %q: %w", p, eniID, err)
	}
	ds.blocks = slices.Insert(ds.blocks, i, b)
	if err := ds.placeRestored(b); err != nil {
		ds.opt.Log.Error("restored addresses could not move to their interface: they are assigned to no other pod",
			"interface", eniID, "block", p, "error", err)
	}
	return nil
}

func checkBlock(eniID string, p netip.Prefix) error {
	if !p.IsValid() || p != p.Masked() || p.Addr().Zone() != "" || p.Addr().Is4In6() {
		return fmt.Errorf("add %s to interface %q: want an address, or a prefix without host bits", p, eniID)
	}
	return nil
}

// setBlocks releases leases and sets the blocks of a subpool in one commit.
func (ds *DataStore) setBlocks(s *subpool, prefixes []netip.Prefix, released []ledger.Lease) error {
	st := ds.ledger.Begin()
	err := st.SetPool(ledger.Pool{Name: s.pool, Order: ledger.Lowest, CoolDown: ds.opt.CoolDown})
	if err == nil {
		err = release(st, released)
	}
	if err == nil {
		err = st.SetBlocks(s.pool, prefixes)
	}
	if err != nil {
		st.Undo()
		return err
	}
	return st.Commit(context.Background())
}

// find returns the block that overlaps p, or the index at which p belongs.
func (ds *DataStore) find(p netip.Prefix) (i int, b block, overlaps bool) {
	all := ds.blocks
	i, found := slices.BinarySearchFunc(all, p.Addr(), func(b block, a netip.Addr) int {
		return b.prefix.Addr().Compare(a)
	})
	switch {
	case found, i < len(all) && all[i].prefix.Overlaps(p):
		return i, all[i], true
	case i > 0 && all[i-1].prefix.Overlaps(p):
		return i - 1, all[i-1], true
	}
	return i, block{}, false
}

// prefixes returns the prefixes of the blocks of a subpool.
func (ds *DataStore) prefixes(s *subpool) (all []netip.Prefix) {
	for i := range ds.blocks {
		if ds.blocks[i].of == s {
			all = append(all, ds.blocks[i].prefix)
		}
	}
	return all
}

// DelIPv4AddressFromStore removes an address from an interface. With force the
// pod of the address loses it. If the checkpoint cannot be written, nothing is removed.
func (ds *DataStore) DelIPv4AddressFromStore(eniID string, ipv4 string, force bool) error {
	a, err := netip.ParseAddr(ipv4)
	if err != nil {
		return ds.logged(&Error{Code: UnknownIPError, ENI: eniID, IP: ipv4, Why: err.Error()})
	}
	return ds.Remove(eniID, netip.PrefixFrom(a, a.BitLen()), force)
}

// Remove removes an address or a prefix from an interface, under the rules of
// DelIPv4AddressFromStore.
func (ds *DataStore) Remove(eniID string, p netip.Prefix, force bool) error {
	defer ds.lock()()
	a := ds.attached[eniID]
	if a == nil {
		return ds.logged(&Error{Code: UnknownENIError, ENI: eniID, IP: p.String()})
	}
	_, b, found := ds.find(p)
	if !found || b.prefix != p || b.of.of != a {
		return ds.logged(&Error{Code: UnknownIPError, ENI: eniID, IP: p.String()})
	}
	held := ds.heldIn(b)
	if len(held) > 0 && !force {
		why := "it is assigned to " + held[0].Key.String()
		return ds.logged(&Error{Code: IPInUseError, ENI: eniID, IP: p.String(), Why: why})
	}
	if err := ds.remove(b, held); err != nil {
		return fmt.Errorf("remove %s from interface %q: %w", p, eniID, err)
	}
	for _, l := range held {
		ds.opt.Log.Warn("a pod lost its address by force", "interface", eniID, "address", l.Addr, "key", l.Key)
	}
	return nil
}

// heldIn returns the leases of pods in a block.
func (ds *DataStore) heldIn(b block) []ledger.Lease {
	if b.prefix.IsSingleIP() {
		if l, ok := ds.ledger.Lookup(b.of.pool, b.prefix.Addr()); ok && l.State == ledger.Held {
			return []ledger.Lease{l}
		}
		return nil
	}
	held := ds.held(func(s *subpool) bool { return s == b.of })
	return slices.DeleteFunc(held, func(l ledger.Lease) bool { return l.Block != b.prefix })
}

// remove releases the leases of a block and removes it. ds.mu is locked.
func (ds *DataStore) remove(b block, held []ledger.Lease) error {
	is := func(p netip.Prefix) bool { return p == b.prefix }
	if err := ds.setBlocks(b.of, slices.DeleteFunc(ds.prefixes(b.of), is), held); err != nil {
		return err
	}
	ds.blocks = slices.DeleteFunc(ds.blocks, func(x block) bool { return is(x.prefix) })
	return nil
}
