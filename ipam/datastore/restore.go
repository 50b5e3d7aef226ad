// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
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

// unplaced is the ledger's pool for restored addresses of interfaces that are not
// attached. It has every address, and the store assigns none of it. No subpool
// has this name, since theirs contain a slash.
const unplaced = "unplaced"

// restored is an entry of a checkpoint with its address and state.
type restored struct {
	CheckpointEntry
	addr  netip.Addr
	cools bool
	since time.Duration // uptime at which it began to cool
}

// ReadBackingStore restores the addresses of pods from the checkpoint. It is
// called once, after the known interfaces were added and before the first
// assignment. Without a checkpoint the store begins empty. If the checkpoint
// cannot be read, the error says what to do, and nothing is assigned until a
// later call succeeds. The checkpoint is not written.
func (ds *DataStore) ReadBackingStore() error {
	defer ds.lock()()
	if ds.failed != nil {
		return fmt.Errorf("restore the checkpoint: %w", ds.failed)
	}
	if slices.ContainsFunc(ds.ledger.Leases(), func(x ledger.Lease) bool { return x.State == ledger.Held }) {
		return fmt.Errorf(
			"restore the checkpoint: addresses are assigned already: want one call, before the first assignment",
		)
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
		ds.opt.Log.Info("no checkpoint: the store begins empty")
		return nil
	case err != nil:
		return err
	case data.Version != CheckpointFormatVersion:
		return fmt.Errorf(
			"it is of version %q: want %q: start the program that wrote it, or drain the node, remove the checkpoint and reboot",
			data.Version,
			CheckpointFormatVersion,
		)
	}
	if c, ok := ds.opt.Checkpoint.(interface{ Recovered() string }); ok && c.Recovered() != "" {
		ds.opt.Log.Error("the checkpoint is damaged: restored the previous one, which has all its entries",
			"damage", c.Recovered())
	}
	entries, err := ds.examine(data)
	if err != nil {
		return fmt.Errorf("%w: drain the node, remove the checkpoint and reboot, or correct it", err)
	}
	if ds.journal == nil {
		return ds.occupy(entries)
	}
	ds.journal.recorded = map[netip.Addr]CheckpointEntry{}
	defer func() { ds.journal.recorded = nil }()
	for _, e := range entries {
		if e.cools {
			e.CoolingSince, e.BootID = &e.since, ds.opt.BootID
		}
		ds.journal.recorded[e.addr] = e.CheckpointEntry
	}
	return ds.occupy(entries)
}

// examine checks all entries and returns those that are held, or still cool.
func (ds *DataStore) examine(data CheckpointData) ([]restored, error) {
	links, err := ds.links()
	if err != nil {
		return nil, err
	}
	now := ds.opt.Uptime()
	assigned, cooling := perAddress(data.Allocations), perAddress(data.Cooling)
	entries := make([]restored, 0, len(assigned)+len(cooling))
	type owner struct {
		IPAMKey
		ledger.Family
	}
	owners, addresses := map[owner]bool{}, map[netip.Addr]bool{}
	for i, e := range slices.Concat(assigned, cooling) {
		a, err := e.addr()
		cools, by := i >= len(assigned), owner{e.IPAMKey, ledger.FamilyOf(a)}
		switch {
		case err != nil:
			return nil, err
		case addresses[a]:
			return nil, fmt.Errorf(
				"entry of %s: address %s is in it twice: %w",
				e.IPAMKey,
				a,
				ds.logged(&Error{Code: IPAlreadyInStoreError, IP: a.String()}),
			)
		case !cools && e.IsZero():
			return nil, fmt.Errorf("address %s is in it without a key", a)
		case !cools && owners[by]:
			return nil, fmt.Errorf("address %s: %s has another one", a, e.IPAMKey)
		}
		addresses[a] = true
		x := restored{CheckpointEntry: e, addr: a, cools: cools, since: now}
		rebooted := ds.opt.BootID != "" && e.BootID != "" && e.BootID != ds.opt.BootID
		switch {
		case cools && e.CoolingSince != nil && e.BootID != "" && e.BootID == ds.opt.BootID:
			x.since = min(now, *e.CoolingSince)
		case !cools:
			owners[by] = true
			if x.cools = rebooted || links.lacks(e.Metadata); x.cools {
				ds.opt.Log.Info("a pod has ended: its address cools",
					"address", a, "key", e.IPAMKey, "rebooted", rebooted)
			}
		}
		if x.cools && now-x.since >= ds.opt.CoolDown {
			continue
		}
		entries = append(entries, x)
	}
	return entries, nil
}

// links holds the names of the host's network interfaces; nil: they are not known.
type links []string

func (ds *DataStore) links() (links, error) {
	if ds.opt.Links == nil {
		return nil, nil
	}
	all, err := ds.opt.Links()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces of the host: %w", err)
	}
	return append(links{}, all...), nil
}

// lacks reports whether the host's end of a pod's interface is missing. Its name
// is a configurable prefix and a hash of the pod's name.
func (l links) lacks(m IPAMMetadata) bool {
	if l == nil || m.K8SPodName == "" {
		return false
	}
	suffix := LinkSuffix(m)
	return !slices.ContainsFunc(l, func(name string) bool { return strings.HasSuffix(name, suffix) })
}

// LinkSuffix returns the end of the name of the host's end of a pod's interface.
func LinkSuffix(m IPAMMetadata) string {
	h := sha1.Sum([]byte(m.K8SPodNamespace + "." + m.K8SPodName))
	return hex.EncodeToString(h[:])[:11]
}

// occupy claims the addresses that pods hold, and cools the others.
func (ds *DataStore) occupy(entries []restored) error {
	if err := ds.openUnplaced(entries); err != nil {
		return err
	}
	ctx := context.Background()
	st, claimed := ds.ledger.Begin(), map[IPAMKey]bool{}
	for _, e := range entries {
		if e.cools {
			continue
		}
		req := claimOf(e.IPAMKey, e.Metadata)
		req.More, claimed[e.IPAMKey] = claimed[e.IPAMKey], true // the address of the other family
		req.Pool, req.Wanted = ds.poolOf(e.addr), []netip.Addr{e.addr}
		if _, _, err := st.Claim(req); err != nil {
			st.Undo()
			return err
		}
	}
	if err := st.Commit(ctx); err != nil {
		return err
	}
	for _, e := range entries {
		if !e.cools {
			continue
		}
		if err := ds.ledger.Cool(ctx, ds.poolOf(e.addr), e.addr, e.since); err != nil {
			return err
		}
	}
	return nil
}

// openUnplaced opens the pool unplaced if an entry needs it.
func (ds *DataStore) openUnplaced(entries []restored) error {
	if !slices.ContainsFunc(entries, func(e restored) bool { return ds.poolOf(e.addr) == unplaced }) {
		return nil
	}
	ds.unplaced = true
	ds.opt.Log.Warn(
		"the checkpoint has addresses of interfaces that are not attached: they are kept until the interfaces are added",
	)
	st := ds.ledger.Begin()
	err := st.SetPool(ledger.Pool{Name: unplaced, CoolDown: ds.opt.CoolDown})
	if err == nil {
		everything := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		err = st.SetBlocks(unplaced, everything)
	}
	if err != nil {
		st.Undo()
		return err
	}
	return st.Commit(context.Background())
}

// poolOf returns the pool of the block that has a.
func (ds *DataStore) poolOf(a netip.Addr) string {
	if _, b, found := ds.find(netip.PrefixFrom(a, a.BitLen())); found {
		return b.of.pool
	}
	return unplaced
}

// placeRestored moves the restored addresses of a new block to its interface. The
// checkpoint has them already, so it is not written.
func (ds *DataStore) placeRestored(b block) error {
	if !ds.unplaced {
		return nil
	}
	if ds.journal != nil {
		ds.journal.recorded = ds.journal.within(b.prefix)
		defer func() { ds.journal.recorded = nil }()
	}
	ds.unplaced = false
	var errs []error
	for _, x := range ds.ledger.Leases() {
		switch {
		case x.Pool != unplaced:
		case b.prefix.Contains(x.Addr):
			errs = append(errs, ds.ledger.Move(context.Background(), unplaced, b.of.pool, x.Addr))
		default:
			ds.unplaced = true
		}
	}
	return errors.Join(errs...)
}
