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
	"strconv"
	"sync"
)

// Records keeps what is known of the pools. Only a Driver writes to it, one
// Commit at a time. An error leaves its outcome unknown; the next Commit writes
// it over.
type Records interface {
	// Load calls f for every record.
	Load(ctx context.Context, f func(key string, value []byte) error) error
	// Commit puts and deletes all of these or none, and returns when that is durable.
	// The map is the caller's, who uses it again.
	Commit(ctx context.Context, put map[string][]byte, del []string) error
}

// record is what is kept of a pool under its ID.
type record struct {
	Version  int            `json:"version"`
	Refs     int            `json:"refs"`
	Chosen   bool           `json:"chosen,omitempty"`   // by the Driver: nobody named its prefix
	Closing  bool           `json:"closing,omitempty"`  // it is released, but for the leases
	Ended    bool           `json:"ended,omitempty"`    // by EndPool, with leases, and not requested since
	Gateways map[string]int `json:"gateways,omitempty"` // how many networks have it beside the first one
}

// recordVersion is the version that this program writes.
const recordVersion = 1

func (p *pool) record() *record {
	return &record{Version: recordVersion, Refs: p.requests, Chosen: p.chosen, Gateways: p.shared}
}

// text is the record in JSON. The usual one is written without reflection, which
// would take longer than all else that a request for a pool does.
func (r *record) text() ([]byte, error) {
	if r.Closing || len(r.Gateways) > 0 {
		return json.Marshal(r)
	}
	b := append(make([]byte, 0, 48), `{"version":`...)
	b = append(strconv.AppendInt(b, int64(r.Version), 10), `,"refs":`...)
	b = strconv.AppendInt(b, int64(r.Refs), 10)
	if r.Chosen {
		b = append(b, `,"chosen":true`...)
	}
	return append(b, '}'), nil
}

// saving is a record that is to be written, nil to delete it.
type saving struct {
	key    string
	record *record
}

// save writes records, and what is still to be written over.
func (d *Driver) save(ctx context.Context, all ...saving) error {
	n := len(all)
	for key := range d.dirty {
		if slices.ContainsFunc(all[:n], func(x saving) bool { return x.key == key }) {
			continue
		}
		x := saving{key: key}
		if p := d.pools[key]; p != nil {
			x.record = p.record()
		} else if d.ended[key] {
			x.record = &record{Version: recordVersion, Closing: true, Ended: true}
		}
		all = append(all, x)
	}
	clear(d.put)
	var room [1]string
	del := room[:0]
	for _, x := range all {
		if x.record == nil {
			del = append(del, x.key)
			continue
		}
		v, err := x.record.text()
		if err != nil {
			return fmt.Errorf("record of pool %s: %w", x.key, err)
		}
		d.put[x.key] = v
	}
	if err := d.records.Commit(ctx, d.put, del); err != nil {
		for _, x := range all[:n] {
			d.dirty[x.key] = struct{}{}
		}
		return fmt.Errorf("write the records of %d pools: %w", len(all), err)
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
