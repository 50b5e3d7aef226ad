// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// unplaced is the ledger's pool of what was restored of interfaces that are not
// attached. Its name cannot be that of a lane. It has every address, and lends none.
const unplaced = "unplaced"

// restored is an entry of a checkpoint, looked through.
type restored struct {
	CheckpointEntry
	a     netip.Addr
	cools bool
	since time.Duration
}

// ReadBackingStore takes over what the checkpoint has: once, when the
// interfaces were added that are known, and before anything is assigned. Where
// there is no checkpoint the store begins empty. Where the checkpoint is not
// understood, the error says what to do, and nothing is assigned until it was
// read. The checkpoint is not written.
func (ds *DataStore) ReadBackingStore() error {
	ds.life.Lock()
	defer ds.life.Unlock()
	if ds.failed != nil {
		return fmt.Errorf("restore the checkpoint: %w", ds.failed)
	}
	if slices.ContainsFunc(ds.book.Leases(), func(x ledger.Lease) bool { return x.State == ledger.Held }) {
		return fmt.Errorf("restore the checkpoint: addresses are assigned already; it is read once, before the first is")
	}
	ds.refused = ds.restore()
	if ds.refused != nil {
		ds.refused = fmt.Errorf("restore the checkpoint: %w", ds.refused)
	}
	return ds.refused
}

func (ds *DataStore) restore() error {
	var data CheckpointData
	err := ds.opt.Checkpoint.Restore(&data)
	switch {
	case errors.Is(err, fs.ErrNotExist) || os.IsNotExist(err):
		ds.opt.Log.Info("there is no checkpoint: no address is assigned")
		return nil
	case err != nil:
		return err
	case data.Version != CheckpointFormatVersion:
		return fmt.Errorf("it is of version %q, %q would be right: start the program that wrote it, or drain the node, remove the checkpoint and reboot", data.Version, CheckpointFormatVersion)
	}
	if c, ok := ds.opt.Checkpoint.(interface{ Recovered() string }); ok && c.Recovered() != "" {
		ds.opt.Log.Error("the checkpoint is damaged; the one before it holds all that it held, and was taken", "damage", c.Recovered())
	}
	entries, err := ds.examine(data)
	if err != nil {
		return fmt.Errorf("%w: drain the node, remove the checkpoint and reboot, or correct it", err)
	}
	if ds.journal == nil {
		return ds.take(entries)
	}
	ds.journal.quiet = map[netip.Addr]CheckpointEntry{}
	for _, e := range entries {
		if e.cools {
			e.CoolingSince, e.BootID = &e.since, ds.opt.BootID
		}
		ds.journal.quiet[e.a] = e.CheckpointEntry
	}
	defer func() { ds.journal.quiet = nil }()
	if err := ds.take(entries); err != nil {
		return errors.Join(err, ds.forget())
	}
	return nil
}

// examine looks the entries through, so that nothing is begun that cannot be ended.
func (ds *DataStore) examine(data CheckpointData) ([]restored, error) {
	links, err := ds.links()
	if err != nil {
		return nil, err
	}
	now := ds.clock.now()
	entries := make([]restored, 0, len(data.Allocations)+len(data.Cooling))
	owners, addresses := map[IPAMKey]bool{}, map[netip.Addr]bool{}
	for i, e := range slices.Concat(data.Allocations, data.Cooling) {
		a, err := e.addr()
		cools := i >= len(data.Allocations)
		switch {
		case err != nil:
			return nil, err
		case addresses[a]:
			return nil, fmt.Errorf("entry of %s: address %s is in it twice: %w", e.IPAMKey, a, ds.say(&Error{Code: IPAlreadyInStoreError, IP: a.String()}))
		case !cools && e.IPAMKey.IsZero():
			return nil, fmt.Errorf("address %s is in it without a key", a)
		case !cools && owners[e.IPAMKey]:
			return nil, fmt.Errorf("address %s: %s has another one", a, e.IPAMKey)
		}
		addresses[a] = true
		x := restored{CheckpointEntry: e, a: a, cools: cools, since: now}
		rebooted := ds.opt.BootID != "" && e.BootID != "" && e.BootID != ds.opt.BootID
		switch {
		case cools && e.CoolingSince != nil && e.BootID != "" && e.BootID == ds.opt.BootID:
			x.since = min(now, *e.CoolingSince)
		case !cools:
			owners[e.IPAMKey] = true
			if x.cools = rebooted || links.lacks(e.Metadata); x.cools {
				ds.opt.Log.Info("a pod is gone: its address cools", "address", a, "key", e.IPAMKey, "rebooted", rebooted)
			}
		}
		if x.cools && now-x.since >= ds.opt.CoolDown {
			continue
		}
		entries = append(entries, x)
	}
	return entries, nil
}

// links are the host's network interfaces; nil where nobody looks.
type links []string

func (ds *DataStore) links() (links, error) {
	if ds.opt.Links == nil {
		return nil, nil
	}
	all, err := ds.opt.Links()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces of the host, to see which pods are there: %w", err)
	}
	return append(links{}, all...), nil
}

// lacks is true where the host's end of a pod's interface is not there. Its
// name ends with a hash of the pod's name, after a prefix that may be configured.
func (l links) lacks(m IPAMMetadata) bool {
	if l == nil || m.K8SPodName == "" {
		return false
	}
	suffix := LinkSuffix(m)
	return !slices.ContainsFunc(l, func(name string) bool { return strings.HasSuffix(name, suffix) })
}

// LinkSuffix is how the name of the host's end of a pod's interface ends.
func LinkSuffix(m IPAMMetadata) string {
	h := sha1.Sum([]byte(m.K8SPodNamespace + "." + m.K8SPodName))
	return hex.EncodeToString(h[:])[:11]
}

// take claims what was restored: what is held first, then what cools, longest first.
func (ds *DataStore) take(entries []restored) error {
	if err := ds.openUnplaced(entries); err != nil {
		return err
	}
	st := ds.book.Begin()
	for _, e := range entries {
		if e.cools {
			continue
		}
		req := claimOf(e.IPAMKey, e.Metadata)
		req.Pool, req.Wanted = ds.poolOf(e.a), []netip.Addr{e.a}
		if _, _, err := st.Claim(req); err != nil {
			st.Undo()
			return err
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		return err
	}
	slices.SortStableFunc(entries, func(x, y restored) int { return cmp.Compare(x.since, y.since) })
	for _, e := range entries {
		if e.cools {
			if err := ds.cool(ds.poolOf(e.a), e.a, e.since); err != nil {
				return err
			}
		}
	}
	ds.look()
	return nil
}

// look has all hints forgotten. ds.life is held for writing.
func (ds *DataStore) look() {
	for _, s := range ds.spots {
		s.until, s.lane.until = 0, 0
	}
}

// openUnplaced makes the pool of what is of no interface, if it is needed.
func (ds *DataStore) openUnplaced(entries []restored) error {
	if !slices.ContainsFunc(entries, func(e restored) bool { return ds.poolOf(e.a) == unplaced }) {
		return nil
	}
	ds.unplaced = true
	ds.opt.Log.Warn("the checkpoint has addresses of interfaces that are not attached: they are kept until the interfaces come")
	st := ds.book.Begin()
	err := st.SetPool(ledger.Pool{Name: unplaced, Order: ledger.Lowest, CoolDown: ds.opt.CoolDown})
	err = errors.Join(err, st.SetBlocks(unplaced, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}))
	if err != nil {
		st.Undo()
		return err
	}
	return st.Commit(context.Background())
}

func (ds *DataStore) poolOf(a netip.Addr) string {
	if _, s := ds.place(netip.PrefixFrom(a, a.BitLen())); s != nil {
		return s.lane.pool
	}
	return unplaced
}

// cool has a cool in pool since then. Nothing that began to cool later may
// cool there yet: the ledger frees them in their order.
func (ds *DataStore) cool(pool string, a netip.Addr, since time.Duration) error {
	ds.clock.fixed = &since
	defer func() { ds.clock.fixed = nil }()
	key := ledger.Key{Network: unplaced, ContainerID: "cooling", IfName: a.String()}
	if _, _, err := ds.book.Claim(context.Background(), ledger.Request{Pool: pool, Key: key, Wanted: []netip.Addr{a}}); err != nil {
		return err
	}
	_, err := ds.book.Release(context.Background(), ledger.Selector{Key: key})
	return err
}

// forget gives up what was restored before an error.
func (ds *DataStore) forget() error {
	var errs []error
	for _, x := range ds.book.Leases() {
		_, err := ds.book.Release(context.Background(), ledger.Selector{Key: x.Key})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// adopt moves what was restored of s to its interface. In the checkpoint nothing
// changes: so nothing is written.
func (ds *DataStore) adopt(s *spot) error {
	if !ds.unplaced {
		return nil
	}
	if ds.journal != nil {
		ds.journal.quiet = map[netip.Addr]CheckpointEntry{}
		for _, r := range ds.journal.rows {
			if a, err := r.entry.addr(); err == nil && s.prefix.Contains(a) {
				ds.journal.quiet[a] = r.entry
			}
		}
		defer func() { ds.journal.quiet = nil }()
	}
	ds.unplaced = false
	var errs []error
	for _, x := range ds.book.Leases() {
		switch {
		case x.Pool != unplaced:
		case s.prefix.Contains(x.Addr):
			errs = append(errs, ds.move(s, x))
		default:
			ds.unplaced = true
		}
	}
	return errors.Join(errs...)
}

// move takes x out of the pool of the unplaced, which leaves it cooling there;
// taking and releasing it as infra ends that, because infra does not cool.
func (ds *DataStore) move(s *spot, x ledger.Lease) error {
	ctx := context.Background()
	if x.State == ledger.Held {
		if _, err := ds.book.Release(ctx, ledger.Selector{Key: x.Key}); err != nil {
			return err
		}
	}
	key := ledger.Key{Network: unplaced, ContainerID: "moving", IfName: x.Addr.String()}
	wanted := []netip.Addr{x.Addr}
	if _, _, err := ds.book.Claim(ctx, ledger.Request{Pool: unplaced, Key: key, Purpose: ledger.ForInfra, Wanted: wanted}); err != nil {
		return err
	}
	if _, err := ds.book.Release(ctx, ledger.Selector{Key: key}); err != nil {
		return err
	}
	if x.State == ledger.Cooling {
		return ds.cool(s.lane.pool, x.Addr, ds.clock.since(x.Since))
	}
	_, _, err := ds.book.Claim(ctx, ledger.Request{Pool: s.lane.pool, Key: x.Key, Pod: x.Pod, Wanted: wanted})
	return err
}
