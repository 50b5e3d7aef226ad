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

// CheckpointData is what a checkpoint holds.
type CheckpointData struct {
	Version     string            `json:"version"`
	Allocations []CheckpointEntry `json:"allocations"`
	// Cooling are the addresses that were released and are not to be lent yet.
	// It is ours: other readers of the format pass over it.
	Cooling []CheckpointEntry `json:"cooling,omitempty"`
}

// CheckpointEntry is one address. The first two fields, and what follows up to
// Metadata, are published; the last two are ours.
type CheckpointEntry struct {
	IPAMKey
	IPv4                string       `json:"ipv4,omitempty"`
	IPv6                string       `json:"ipv6,omitempty"`
	AllocationTimestamp int64        `json:"allocationTimestamp,omitempty"` // Unix time in ns
	Metadata            IPAMMetadata `json:"metadata,omitzero"`
	// BootID is of the boot that it was written in, "" where that is not known.
	BootID string `json:"bootID,omitempty"`
	// CoolingSince is the time since boot when it began to cool; nil: it is held.
	CoolingSince *time.Duration `json:"coolingSince,omitempty"`
}

// addr is the address of e.
func (e *CheckpointEntry) addr() (netip.Addr, error) {
	text, v6 := e.IPv4, false
	if text == "" {
		text, v6 = e.IPv6, true
	} else if e.IPv6 != "" {
		return netip.Addr{}, fmt.Errorf("entry of %s: it has two addresses, %q and %q; one would be right", e.IPAMKey, e.IPv4, e.IPv6)
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

// Checkpointer keeps the whole of a checkpoint. An error of Checkpoint leaves
// open what it has kept; an error of Restore that wraps fs.ErrNotExist says that
// nothing was ever kept. One call at a time is made.
type Checkpointer interface {
	Checkpoint(data interface{}) error
	Restore(into interface{}) error
}

// DeltaCheckpointer is a Checkpointer that can be told what has changed. An
// entry is found by its address: what is put replaces what is there. All of a
// call is kept, or none; an error leaves open which. The next call then repeats
// what is true of the same addresses.
type DeltaCheckpointer interface {
	Checkpointer
	CheckpointDelta(put, del []CheckpointEntry) error
}

// NullCheckpoint keeps nothing. For tests and measurements only.
type NullCheckpoint struct{}

// Checkpoint keeps nothing.
func (c NullCheckpoint) Checkpoint(data interface{}) error { return nil }

// Restore has nothing.
func (c NullCheckpoint) Restore(into interface{}) error { return fs.ErrNotExist }

// TestCheckpoint keeps a checkpoint in memory, or fails with Error.
type TestCheckpoint struct {
	Error error
	Data  interface{}
}

// NewTestCheckpoint makes a TestCheckpoint that has data already; nil: it has nothing.
func NewTestCheckpoint(data interface{}) *TestCheckpoint { return &TestCheckpoint{Data: data} }

// Checkpoint keeps data.
func (c *TestCheckpoint) Checkpoint(data interface{}) error {
	if c.Error != nil {
		return c.Error
	}
	c.Data = data
	return nil
}

// Restore copies what is kept, as a file would.
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
