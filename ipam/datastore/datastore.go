// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// DefaultCoolDown is the time from the release of an address to its next
// assignment: as long as routers of services may still send traffic to it.
const DefaultCoolDown = 30 * time.Second

// Options holds the parameters of a DataStore. The zero value suits tests.
type Options struct {
	Log        *slog.Logger
	Checkpoint Checkpointer  // nil: a NullCheckpoint
	CoolDown   time.Duration // 0: a released address can be assigned at once
	// PrefixMode selects the blocks that addresses are assigned from: prefixes
	// only, or single addresses only. A block of the other kind keeps its pods,
	// and is removed with the last of them.
	PrefixMode bool
	Now        func() time.Time     // wall time, for reports
	Uptime     func() time.Duration // time since boot: never jumps, never goes back
	BootID     string               // of the boot that Uptime counts from; "": a cool-down begins again after a restart
	// Links lists the network interfaces of the host. ReadBackingStore releases
	// the addresses of pods whose interface is missing; nil: it does not look.
	Links func() ([]string, error)
}

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Checkpoint == nil {
		o.Checkpoint = NullCheckpoint{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Uptime == nil {
		start := time.Now()
		o.Uptime = func() time.Duration { return time.Since(start) }
	}
}

// DataStore holds the interfaces of a node with their blocks, and assigns
// addresses to pods through a ledger. Use NewDataStore or New. Any goroutine may
// call its methods.
type DataStore struct {
	// CheckpointMigrationPhase is set before the store is used, if at all.
	CheckpointMigrationPhase int

	opt     Options
	journal *journal // nil: no checkpoint is written
	ledger  *ledger.Ledger
	failed  error // of opening the ledger

	// mu is locked for writing while interfaces and blocks change, and for
	// reading by all other calls.
	mu       sync.RWMutex
	attached map[string]*attachment
	subpools map[string]*subpool // by the name of their pool
	blocks   []block             // by prefix; no two overlap
	order    [2][]string         // by family: the pools to assign from, the first one first
	unplaced bool                // the ledger may have leases of interfaces that are not attached
	refused  error               // why ReadBackingStore refused the checkpoint: nothing is assigned

}

// NewDataStore returns an empty store with the default parameters.
func NewDataStore(log *slog.Logger, backingStore Checkpointer) *DataStore {
	return New(Options{Log: log, Checkpoint: backingStore, CoolDown: DefaultCoolDown})
}

// New returns an empty store.
func New(opt Options) *DataStore {
	opt.defaults()
	if file, ok := opt.Checkpoint.(*JSONFile); ok {
		opt.Checkpoint = file.ofStore()
	}
	ds := &DataStore{
		CheckpointMigrationPhase: CheckpointMigrationPhase,
		opt:                      opt,
		attached:                 map[string]*attachment{},
		subpools:                 map[string]*subpool{},
	}
	var j ledger.Journal = ledger.NullJournal{}
	if _, null := opt.Checkpoint.(NullCheckpoint); !null {
		ds.journal = newJournal(opt.Checkpoint, opt.BootID)
		j = ds.journal
	}
	ds.ledger, ds.failed = ledger.Open(context.Background(), j, ledger.Options{
		Log:    opt.Log,
		Now:    opt.Now,
		Uptime: opt.Uptime,
	})
	return ds
}

// lock begins a change of interfaces and blocks, and returns the function that ends it.
func (ds *DataStore) lock() (unlock func()) {
	ds.mu.Lock()
	return ds.mu.Unlock
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// logged logs the detail of a published error, whose text has no room for it.
func (ds *DataStore) logged(e *Error) error {
	ds.opt.Log.Debug("a request is refused", "error", e.Detail())
	return e
}
