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

// Records stores the records of the pools. Only a Driver writes to it, one Commit
// at a time. After an error the outcome is unknown; the next Commit writes the
// same records again.
type Records interface {
	// Load calls f for every record.
	Load(ctx context.Context, f func(key string, value []byte) error) error
	// Commit puts and deletes all of these or none, and returns when that is durable.
	// The caller reuses the map.
	Commit(ctx context.Context, put map[string][]byte, del []string) error
}

// record holds the durable state of a pool. Its key is the pool's ID.
type record struct {
	Version  int            `json:"version"`
	Refs     int            `json:"refs"`               // requests that are not released
	Chosen   bool           `json:"chosen,omitempty"`   // the Driver has chosen the prefix
	Closing  bool           `json:"closing,omitempty"`  // released, while its leases may still exist
	Ended    bool           `json:"ended,omitempty"`    // by EndPool, with leases, and not requested since
	Gateways map[string]int `json:"gateways,omitempty"` // by address: networks that have it beside the first one
	Unread   bool           `json:"unread,omitempty"`   // addresses that the engine has are still to be restored
	GivenUp  *GivenUp       `json:"givenUp,omitempty"`  // requests that no network accounts for
	Kept     int            `json:"kept,omitempty"`     // such requests that an administrator has kept
}

// recordVersion is the version that this program writes.
const recordVersion = 1

func (p *pool) record() *record {
	return &record{
		Version:  recordVersion,
		Refs:     p.requests,
		Chosen:   p.chosen,
		Gateways: p.shared,
		Unread:   p.unread.Load(),
		GivenUp:  p.givenUp,
		Kept:     p.kept,
	}
}

// text returns the record in JSON. It encodes the usual record without reflection,
// which would take longer than all else that a request for a pool does.
func (r *record) text() ([]byte, error) {
	if r.Closing || len(r.Gateways) > 0 || r.Unread || r.GivenUp != nil || r.Kept != 0 {
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

// saving is a record to write, or to delete if it is nil.
type saving struct {
	key    string
	record *record
}

// save writes records, and those again whose last write failed.
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

// MemoryRecords stores records in memory: they end with the process. Any goroutine
// may call it.
type MemoryRecords struct {
	mu      sync.Mutex
	records map[string][]byte
}

var _ Records = (*MemoryRecords)(nil)

// NewMemoryRecords returns empty records.
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
