// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// Keys of the records of a JournalCheckpoint.
const (
	versionRecord = "V"
	entryRecord   = "A"
)

// JournalCheckpoint is a DeltaCheckpointer over its own journal, such as that of a
// file of kvdb/bolt. It has a record for each address, so that the cost of a write
// does not depend on their number. Any goroutine may call its methods.
type JournalCheckpoint struct {
	journal ledger.Journal

	mu      sync.Mutex
	version bool // the journal has the version record
}

var _ DeltaCheckpointer = (*JournalCheckpoint)(nil)

// NewJournalCheckpoint returns a JournalCheckpoint, which must be the only writer of
// the journal.
func NewJournalCheckpoint(j ledger.Journal) *JournalCheckpoint { return &JournalCheckpoint{journal: j} }

// Checkpoint replaces the contents of the journal by data, a *CheckpointData.
func (c *JournalCheckpoint) Checkpoint(data interface{}) error {
	d, ok := data.(*CheckpointData)
	if !ok {
		return fmt.Errorf("checkpoint to a journal: data is a %T, want a *CheckpointData", data)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ops := map[string]kvdb.Op{}
	err := c.journal.Load(context.Background(), func(r kvdb.KeyValue) error {
		ops[r.Key] = kvdb.Delete(r.Key)
		return nil
	})
	if err != nil {
		return fmt.Errorf("checkpoint to a journal: %w", err)
	}
	ops[versionRecord] = kvdb.Put(versionRecord, []byte(d.Version))
	for _, all := range [][]CheckpointEntry{d.Allocations, d.Cooling} {
		for i := range all {
			op, err := recordOf(&all[i])
			if err != nil {
				return err
			}
			ops[op.Key] = op
		}
	}
	list := make([]kvdb.Op, 0, len(ops))
	for _, op := range ops {
		list = append(list, op)
	}
	if err := c.journal.Commit(context.Background(), list); err != nil {
		return fmt.Errorf("checkpoint to a journal: %w", err)
	}
	c.version = true
	return nil
}

// CheckpointDelta writes changed entries.
func (c *JournalCheckpoint) CheckpointDelta(put, del []CheckpointEntry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ops := make([]kvdb.Op, 0, len(put)+len(del)+1)
	kept := map[string]bool{}
	if !c.version {
		ops = append(ops, kvdb.Put(versionRecord, []byte(CheckpointFormatVersion)))
	}
	for i := range put {
		op, err := recordOf(&put[i])
		if err != nil {
			return err
		}
		ops, kept[op.Key] = append(ops, op), true
	}
	for i := range del {
		key, err := recordKey(&del[i])
		if err != nil {
			return err
		}
		if !kept[key] { // the address moved from one pool of the ledger to another
			ops = append(ops, kvdb.Delete(key))
		}
	}
	if err := c.journal.Commit(context.Background(), ops); err != nil {
		return fmt.Errorf("checkpoint to a journal: %w", err)
	}
	c.version = true
	return nil
}

// recordKey returns the key of an entry: its address, so that no journal has an
// address twice.
func recordKey(e *CheckpointEntry) (string, error) {
	a, err := e.addr()
	if err != nil {
		return "", fmt.Errorf("checkpoint to a journal: %w", err)
	}
	return entryRecord + string(a.AsSlice()), nil
}

func recordOf(e *CheckpointEntry) (kvdb.Op, error) {
	key, err := recordKey(e)
	if err != nil {
		return kvdb.Op{}, err
	}
	value, err := appendEntry(nil, e)
	if err != nil {
		return kvdb.Op{}, fmt.Errorf("checkpoint to a journal: entry of %s: %w", e.IPAMKey, err)
	}
	return kvdb.Put(key, value), nil
}

// Restore reads the journal into a *CheckpointData. The error wraps
// fs.ErrNotExist if the journal is empty.
func (c *JournalCheckpoint) Restore(into interface{}) error {
	d, ok := into.(*CheckpointData)
	if !ok {
		return fmt.Errorf("restore from a journal: into is a %T, want a *CheckpointData", into)
	}
	var read CheckpointData
	found := false
	err := c.journal.Load(context.Background(), func(r kvdb.KeyValue) error {
		found = true
		switch {
		case r.Key == versionRecord:
			read.Version = string(bytes.Clone(r.Value))
			return nil
		case !strings.HasPrefix(r.Key, entryRecord):
			return fmt.Errorf("record %q is of an unknown kind", r.Key)
		}
		var e CheckpointEntry
		if err := json.Unmarshal(r.Value, &e); err != nil {
			return fmt.Errorf("record %q: %w", r.Key, err)
		}
		if a, ok := netip.AddrFromSlice([]byte(r.Key[len(entryRecord):])); !ok || a.String() != e.IPv4+e.IPv6 {
			return fmt.Errorf("record %q is of address %q", r.Key, e.IPv4+e.IPv6)
		}
		if e.CoolingSince != nil {
			read.Cooling = append(read.Cooling, e)
		} else {
			read.Allocations = append(read.Allocations, e)
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("restore from a journal: %w", err)
	case !found:
		return fmt.Errorf("restore from a journal: %w", fs.ErrNotExist)
	}
	*d = read
	return nil
}
