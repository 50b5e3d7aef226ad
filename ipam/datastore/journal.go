// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// leaseRecords is the prefix of the keys of the ledger's lease records. Records of
// blocks are dropped, since interfaces are attached again after a restart.
const leaseRecords = "L"

// journal is the ledger's journal, written through a Checkpointer. It loads
// nothing: ReadBackingStore claims the addresses of a checkpoint after the
// interfaces were attached.
//
// The ledger makes one Commit at a time. Other methods, and changes of recorded,
// need DataStore.mu locked.
type journal struct {
	to     Checkpointer
	delta  DeltaCheckpointer // nil: each write is of the whole checkpoint
	bootID string

	rows   []*row         // the entries of the checkpoint, by key
	unsure map[string]row // entries that a failed write may have left in the checkpoint
	// recorded holds entries that the checkpoint has already: commits of their
	// addresses are not written.
	recorded map[netip.Addr]CheckpointEntry
}

// row is an entry with the key of the ledger's record.
type row struct {
	key   string
	entry CheckpointEntry
}

var _ ledger.Journal = (*journal)(nil)

func newJournal(to Checkpointer, bootID string) *journal {
	j := &journal{to: to, bootID: bootID, unsure: map[string]row{}}
	j.delta, _ = to.(DeltaCheckpointer)
	return j
}

// Load loads no records.
func (j *journal) Load(context.Context, func(kvdb.KeyValue) error) error { return nil }

// Commit writes the leases among ops.
func (j *journal) Commit(_ context.Context, ops []kvdb.Op) error {
	var all []change
	var put, del []CheckpointEntry
	for _, op := range ops {
		c, relevant, err := j.change(op)
		if err != nil {
			return fmt.Errorf("record %q: %w", op.Key, err)
		}
		if !relevant {
			continue
		}
		all = append(all, c)
		switch {
		case c.recorded:
		case c.deleted:
			del = append(del, c.entry)
		default:
			put = append(put, c.entry)
		}
	}
	if len(all) == 0 {
		return nil
	}
	before := j.rows
	if j.delta == nil {
		j.rows = slices.Clone(before)
	} else if len(put)+len(del) > 0 {
		if err := j.delta.CheckpointDelta(put, del); err != nil {
			return j.failed(all, err)
		}
	}
	for _, c := range all {
		j.apply(c)
	}
	if j.delta == nil && len(put)+len(del) > 0 {
		if err := j.to.Checkpoint(j.data()); err != nil {
			j.rows = before
			return j.failed(all, err)
		}
	}
	for _, c := range all {
		delete(j.unsure, c.key)
	}
	return nil
}

// change is an op on a row.
type change struct {
	row
	deleted  bool
	recorded bool
}

// change converts an op; relevant is false if the op changes no entry.
func (j *journal) change(op kvdb.Op) (c change, relevant bool, err error) {
	if !strings.HasPrefix(op.Key, leaseRecords) {
		return c, false, nil
	}
	c = change{row: row{key: op.Key}, deleted: op.Delete}
	if !op.Delete {
		if c.entry, err = j.entry(op.Value); err != nil {
			return c, false, err
		}
	} else if old, ok := j.at(op.Key); ok {
		c.entry = old
	} else if old, ok := j.unsure[op.Key]; ok {
		c.entry = old.entry
	} else {
		return c, false, nil
	}
	if len(j.recorded) > 0 {
		a, err := c.entry.addr()
		if err != nil {
			return c, false, err
		}
		_, c.recorded = j.recorded[a]
	}
	return c, true, nil
}

// failed notes the entries that the checkpoint may have now.
func (j *journal) failed(all []change, err error) error {
	for _, c := range all {
		j.unsure[c.key] = c.row
	}
	return fmt.Errorf("write the checkpoint: %w", err)
}

// apply changes the rows. It replaces a row and does not change it, since a
// checkpoint in use may share it.
func (j *journal) apply(c change) {
	i, had := j.find(c.key)
	switch {
	case c.deleted && had:
		j.rows = slices.Delete(j.rows, i, i+1)
	case c.deleted:
	case had:
		j.rows[i] = &row{c.key, c.entry}
	default:
		j.rows = slices.Insert(j.rows, i, &row{c.key, c.entry})
	}
}

func (j *journal) find(key string) (int, bool) {
	return slices.BinarySearchFunc(j.rows, key, func(r *row, key string) int { return cmp.Compare(r.key, key) })
}

func (j *journal) at(key string) (CheckpointEntry, bool) {
	if i, ok := j.find(key); ok {
		return j.rows[i].entry, true
	}
	return CheckpointEntry{}, false
}

// within returns the entries whose addresses a prefix contains.
func (j *journal) within(p netip.Prefix) map[netip.Addr]CheckpointEntry {
	entries := map[netip.Addr]CheckpointEntry{}
	for _, r := range j.rows {
		if a, err := r.entry.addr(); err == nil && p.Contains(a) {
			entries[a] = r.entry
		}
	}
	return entries
}

// data returns the whole checkpoint, which the Checkpointer may keep.
func (j *journal) data() *CheckpointData {
	d := &CheckpointData{Version: CheckpointFormatVersion, Allocations: make([]CheckpointEntry, 0, len(j.rows))}
	for _, r := range j.rows {
		if r.entry.CoolingSince != nil {
			d.Cooling = append(d.Cooling, r.entry)
		} else {
			d.Allocations = append(d.Allocations, r.entry)
		}
	}
	return d
}

// entry converts a lease record.
func (j *journal) entry(record []byte) (CheckpointEntry, error) {
	var m kv.Lease
	if err := proto.Unmarshal(record, &m); err != nil {
		return CheckpointEntry{}, err
	}
	a, ok := netip.AddrFromSlice(m.Address)
	if !ok {
		return CheckpointEntry{}, fmt.Errorf("address %x: want 4 or 16 bytes", m.Address)
	}
	e := CheckpointEntry{
		IPAMKey:             IPAMKey{NetworkName: m.Network, ContainerID: m.ContainerId, IfName: m.IfName},
		AllocationTimestamp: m.Since, BootID: j.bootID,
		Metadata: IPAMMetadata{K8SPodNamespace: m.PodNamespace, K8SPodName: m.PodName},
	}
	if a.Is4() {
		e.IPv4 = a.String()
	} else {
		e.IPv6 = a.String()
	}
	if was, ok := j.recorded[a]; ok { // it has fields that a lease does not have
		return was, nil
	}
	if ledger.State(m.State) == ledger.Cooling {
		since := time.Duration(m.CoolingSinceUptime)
		e.CoolingSince, e.AllocationTimestamp = &since, 0
	}
	return e, nil
}
