// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Interface describes a network interface of the node.
type Interface struct {
	ID       string
	Device   int // 0 is the primary interface
	Primary  bool
	Trunk    bool // carries the interfaces of pods that have their own
	EFA      bool // an Elastic Fabric Adapter: never removed
	Excluded bool // assigns no new address; assigned ones stay
	Foreign  bool // another program has made it: never removed
}

// attachment is an attached interface.
type attachment struct {
	Interface
	created  time.Duration // uptime
	subpools [2][2]*subpool
}

// subpool holds the blocks of one family and one kind of an interface. The
// ledger has them in a pool of their own.
type subpool struct {
	pool     string
	of       *attachment
	family   ledger.Family
	prefixes bool
}

// newAttachment returns an interface with its subpools.
func newAttachment(i Interface, created time.Duration) *attachment {
	a := &attachment{Interface: i, created: created}
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		a.subpools[f] = [2]*subpool{
			{pool: fmt.Sprintf("%s/%s/addresses", i.ID, f), of: a, family: f},
			{pool: fmt.Sprintf("%s/%s/prefixes", i.ID, f), of: a, family: f, prefixes: true},
		}
	}
	return a
}

// device returns the device number of the interface, -1 if it is not attached.
func (s *subpool) device() int {
	if s == nil {
		return -1
	}
	return s.of.Device
}

// subpool returns the subpool of a family for prefixes, or for single addresses.
func (a *attachment) subpool(f ledger.Family, prefixes bool) *subpool {
	if prefixes {
		return a.subpools[f][1]
	}
	return a.subpools[f][0]
}

// AddENI adds an interface.
func (ds *DataStore) AddENI(eniID string, deviceNumber int, isPrimary, isTrunk bool) error {
	return ds.AddInterface(Interface{ID: eniID, Device: deviceNumber, Primary: isPrimary, Trunk: isTrunk})
}

// AddInterface adds an interface.
func (ds *DataStore) AddInterface(i Interface) error {
	if i.ID == "" || slices.Contains([]byte(i.ID), 0) {
		return fmt.Errorf("add interface %q: want an ID that is not empty and has no zero byte", i.ID)
	}
	defer ds.lock()()
	if ds.failed != nil {
		return fmt.Errorf("add interface %q: %w", i.ID, ds.failed)
	}
	if ds.attached[i.ID] != nil {
		return ds.logged(&Error{Code: DuplicatedENIError, ENI: i.ID})
	}
	a := newAttachment(i, ds.opt.Uptime())
	ds.attached[i.ID] = a
	for _, kinds := range a.subpools {
		for _, s := range kinds {
			ds.subpools[s.pool] = s
		}
	}
	ds.sortPools()
	return nil
}

// Exclude sets whether an interface assigns no new address.
func (ds *DataStore) Exclude(eniID string, excluded bool) error {
	defer ds.lock()()
	a := ds.attached[eniID]
	if a == nil {
		return ds.logged(&Error{Code: UnknownENIError, ENI: eniID})
	}
	a.Excluded = excluded
	ds.sortPools()
	return nil
}

// RemoveENIFromDataStore removes an interface with its addresses. With force the
// pods of the interface lose their addresses. If the checkpoint cannot be written,
// nothing is removed.
func (ds *DataStore) RemoveENIFromDataStore(eniID string, force bool) error {
	defer ds.lock()()
	a := ds.attached[eniID]
	if a == nil {
		return ds.logged(&Error{Code: UnknownENIError, ENI: eniID})
	}
	held := ds.held(func(s *subpool) bool { return s.of == a })
	if len(held) > 0 && !force {
		return ds.logged(&Error{
			Code: ENIInUseError,
			ENI:  eniID,
			IP:   held[0].Addr.String(),
			Why:  fmt.Sprintf("%d pods have addresses of it", len(held)),
		})
	}
	if err := ds.detach(a, held); err != nil {
		return fmt.Errorf("remove interface %q: %w", eniID, err)
	}
	return nil
}

// detach releases the leases of a and removes it. ds.mu is locked.
func (ds *DataStore) detach(a *attachment, held []ledger.Lease) error {
	st := ds.ledger.Begin()
	err := release(st, held)
	for pool, s := range ds.subpools {
		if s.of == a {
			err = errors.Join(err, st.SetBlocks(pool, nil))
		}
	}
	if err != nil {
		st.Undo()
		return err
	}
	if err := st.Commit(context.Background()); err != nil {
		return err
	}
	for _, l := range held {
		ds.opt.Log.Warn("a pod lost its address with the interface", "interface", a.ID, "address", l.Addr, "key", l.Key)
	}
	delete(ds.attached, a.ID)
	maps.DeleteFunc(ds.subpools, func(_ string, s *subpool) bool { return s.of == a })
	ds.blocks = slices.DeleteFunc(ds.blocks, func(b block) bool { return b.of.of == a })
	ds.sortPools()
	return nil
}

// release stages the release of leases.
func release(st *ledger.Stage, held []ledger.Lease) error {
	for _, l := range held {
		if _, err := st.Release(ledger.Selector{Key: l.Key}); err != nil {
			return err
		}
	}
	return nil
}

// sortPools sets the order in which pools are asked for an address: the
// interface with the lowest device number first, so that the others run empty
// and can be detached.
func (ds *DataStore) sortPools() {
	ds.order = [2][]string{}
	for _, a := range ds.sorted() {
		if a.Excluded {
			continue
		}
		for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
			ds.order[f] = append(ds.order[f], a.subpool(f, ds.opt.PrefixMode).pool)
		}
	}
}

// sorted returns the interfaces by device number and ID. ds.mu is locked.
func (ds *DataStore) sorted() []*attachment {
	return slices.SortedFunc(maps.Values(ds.attached), func(x, y *attachment) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.ID, y.ID))
	})
}

// held returns the leases of pods in the subpools that want selects.
func (ds *DataStore) held(want func(*subpool) bool) (held []ledger.Lease) {
	for _, l := range ds.ledger.Leases() {
		if s := ds.subpools[l.Pool]; s != nil && l.State == ledger.Held && want(s) {
			held = append(held, l)
		}
	}
	return held
}
