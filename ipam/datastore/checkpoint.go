// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"time"
)

// CheckpointData holds a checkpoint.
type CheckpointData struct {
	Version     string            `json:"version"`
	Allocations []CheckpointEntry `json:"allocations"`
	// Cooling holds the cooling addresses. Other readers of the format ignore it.
	Cooling []CheckpointEntry `json:"cooling,omitempty"`
}

// CheckpointEntry is one address. Other readers of the format ignore the last two
// fields.
type CheckpointEntry struct {
	IPAMKey
	IPv4                string       `json:"ipv4,omitempty"`
	IPv6                string       `json:"ipv6,omitempty"`
	AllocationTimestamp int64        `json:"allocationTimestamp,omitempty"` // Unix time in ns
	Metadata            IPAMMetadata `json:"metadata,omitzero"`
	// BootID is the ID of the boot in which it was written; "": not known.
	BootID string `json:"bootID,omitempty"`
	// CoolingSince is the uptime at which it began to cool; nil: it is assigned.
	CoolingSince *time.Duration `json:"coolingSince,omitempty"`
}

// perAddress returns the entries with one address each: an entry with an address of each
// family becomes two.
func perAddress(all []CheckpointEntry) []CheckpointEntry {
	each := make([]CheckpointEntry, 0, len(all))
	for _, e := range all {
		if e.IPv4 != "" && e.IPv6 != "" {
			v4 := e
			v4.IPv6, e.IPv4 = "", ""
			each = append(each, v4)
		}
		each = append(each, e)
	}
	return each
}

// addr parses the address of e.
func (e *CheckpointEntry) addr() (netip.Addr, error) {
	text, v6 := e.IPv4, false
	if text == "" {
		text, v6 = e.IPv6, true
	} else if e.IPv6 != "" {
		return netip.Addr{}, fmt.Errorf(
			"entry of %s: it has two addresses, %q and %q, want one",
			e.IPAMKey,
			e.IPv4,
			e.IPv6,
		)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("entry of %s: address %q: %w", e.IPAMKey, text, err)
	}
	if a.Is4() == v6 || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("entry of %s: address %q is not of its field's family", e.IPAMKey, text)
	}
	return a, nil
}

// Checkpointer keeps a checkpoint. After an error of Checkpoint it may have kept the
// data or not. An error of Restore that wraps fs.ErrNotExist means that there is no
// checkpoint. The store makes one call at a time.
type Checkpointer interface {
	Checkpoint(data interface{}) error
	Restore(into interface{}) error
}

// DeltaCheckpointer is a Checkpointer that can write changed entries only. The
// address is the key of an entry: put replaces the entry of an address. A call is
// kept as a whole or not at all; an error leaves open which, and the next call
// repeats the current entries of the same addresses.
type DeltaCheckpointer interface {
	Checkpointer
	CheckpointDelta(put, del []CheckpointEntry) error
}

// NullCheckpoint keeps nothing, for tests and measurements.
type NullCheckpoint struct{}

// Checkpoint does nothing.
func (c NullCheckpoint) Checkpoint(data interface{}) error { return nil }

// Restore returns fs.ErrNotExist.
func (c NullCheckpoint) Restore(into interface{}) error { return fs.ErrNotExist }

// TestCheckpoint keeps a checkpoint in memory, or fails with Error.
type TestCheckpoint struct {
	Error error
	Data  interface{}
}

// NewTestCheckpoint returns a TestCheckpoint with data; nil: it is empty.
func NewTestCheckpoint(data interface{}) *TestCheckpoint { return &TestCheckpoint{Data: data} }

// Checkpoint keeps data.
func (c *TestCheckpoint) Checkpoint(data interface{}) error {
	if c.Error != nil {
		return c.Error
	}
	c.Data = data
	return nil
}

// Restore copies Data through JSON, as a file would.
func (c *TestCheckpoint) Restore(into interface{}) error {
	switch {
	case c.Error != nil:
		return c.Error
	case c.Data == nil:
		return fs.ErrNotExist
	}
	text, err := json.Marshal(c.Data)
	if err != nil {
		return fmt.Errorf("restore a checkpoint of type %T: %w", c.Data, err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("restore a checkpoint of type %T: %w", c.Data, err)
	}
	return nil
}
