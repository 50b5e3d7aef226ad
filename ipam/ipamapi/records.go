// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Records keeps what is known of the pools. Only a Driver writes to it, one
// Commit at a time. An error leaves its outcome unknown; the next Commit writes
// it over.
type Records interface {
	// Load calls f for every record.
	Load(ctx context.Context, f func(key string, value []byte) error) error
	// Commit puts and deletes all of these or none, and returns when that is durable.
	Commit(ctx context.Context, put map[string][]byte, del []string) error
}

// record is what is kept of a pool under its ID.
type record struct {
	Version  int            `json:"version"`
	Refs     int            `json:"refs"`
	Chosen   bool           `json:"chosen,omitempty"`   // by the Driver: nobody named its prefix
	Closing  bool           `json:"closing,omitempty"`  // it is released, but for the leases
	Gateways map[string]int `json:"gateways,omitempty"` // how many networks have it beside the first one
}

// recordVersion is the version that this program writes.
const recordVersion = 1

func (e *entry) record() *record {
	return &record{Version: recordVersion, Refs: e.refs, Chosen: e.chosen, Gateways: e.shared}
}

// save writes records, nil to delete one, and what is still to be written over.
func (d *Driver) save(ctx context.Context, changes map[string]*record) error {
	put, del := make(map[string][]byte, len(changes)), []string(nil)
	add := func(key string, r *record) error {
		if r == nil {
			del = append(del, key)
			return nil
		}
		v, err := json.Marshal(r)
		put[key] = v
		return err
	}
	for key, r := range changes {
		if err := add(key, r); err != nil {
			return fmt.Errorf("record of pool %s: %w", key, err)
		}
	}
	for key := range d.dirty {
		if _, ok := changes[key]; ok {
			continue
		}
		var truth *record
		if e := d.entries[key]; e != nil {
			truth = e.record()
		}
		if err := add(key, truth); err != nil {
			return fmt.Errorf("record of pool %s: %w", key, err)
		}
	}
	if err := d.records.Commit(ctx, put, del); err != nil {
		for key := range changes {
			d.dirty[key] = struct{}{}
		}
		return fmt.Errorf("write the records of %d pools: %w", len(put)+len(del), err)
	}
	clear(d.dirty)
	return nil
}

// MemoryRecords are records that end with the process. Use NewMemoryRecords;
// any goroutine may call it.
type MemoryRecords struct {
	mu      sync.Mutex
	records map[string][]byte
}

var _ Records = (*MemoryRecords)(nil)

// NewMemoryRecords makes empty records.
func NewMemoryRecords() *MemoryRecords { return &MemoryRecords{records: map[string][]byte{}} }

// Load calls f for every record in the order of their keys.
func (m *MemoryRecords) Load(ctx context.Context, f func(key string, value []byte) error) error {
	m.mu.Lock()
	all := maps.Clone(m.records)
	m.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if ctx.Err() != nil {
			return fmt.Errorf("load the records of pools: %w", context.Cause(ctx))
		}
		if err := f(key, bytes.Clone(all[key])); err != nil {
			return err
		}
	}
	return nil
}

// Commit puts and deletes.
func (m *MemoryRecords) Commit(ctx context.Context, put map[string][]byte, del []string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("commit records of pools: %w", context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, value := range put {
		m.records[key] = bytes.Clone(value)
	}
	for _, key := range del {
		delete(m.records, key)
	}
	return nil
}
