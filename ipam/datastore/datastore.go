// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// DefaultCoolDown is how long an address that was unassigned is not assigned
// again: as long as routers of services may still send traffic to it.
const DefaultCoolDown = 30 * time.Second

// Options are the parameters of a DataStore; the zero value is of use in tests.
type Options struct {
	Log        *slog.Logger
	Checkpoint Checkpointer  // nil: a NullCheckpoint
	CoolDown   time.Duration // 0: an address can be assigned again at once
	// PrefixMode has addresses assigned from prefixes only, otherwise they are
	// assigned from single addresses only. What is attached of the other kind
	// keeps the pods it has, and goes with the last of them.
	PrefixMode bool
	Now        func() time.Time     // looked at once
	Uptime     func() time.Duration // time since boot: never jumps, never goes back
	BootID     string               // of the boot that Uptime counts from; "": what cools begins again after a restart
	// Links lists the network interfaces of the host, for ReadBackingStore to
	// drop the pods whose interface is gone; nil: it does not look.
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

// Interface is a network interface as it is attached.
type Interface struct {
	ID       string
	Device   int // 0 is the primary interface
	Primary  bool
	Trunk    bool // pods with interfaces of their own hang on it
	EFA      bool // a device of its own kind: never removed
	Excluded bool // assigns nothing; what it has assigned stays
}

// DataStore is the interfaces of a node and the addresses of its pods. Use
// NewDataStore or New; any goroutine may call its methods.
type DataStore struct {
	// CheckpointMigrationPhase is set before the store is used, if at all.
	CheckpointMigrationPhase int

	opt     Options
	clock   *clock
	journal *journal // nil: nothing is kept
	book    *ledger.Ledger
	failed  error // why there is no book

	// life is held for reading by whoever assigns or looks, for writing by
	// whoever changes interfaces and blocks.
	life     sync.RWMutex
	attached map[string]*attachment
	lanes    map[string]*lane // by the name of their pool
	spots    []*spot          // by prefix; no two overlap
	order    [2][]*lane       // by family: where to look for a free address, and in which order
	unplaced bool             // leases of interfaces that are not attached may be left
	refused  error            // why nothing is assigned: the checkpoint was not understood

	freed map[netip.Prefix]time.Duration // when blocks were removed
	empty *time.Duration                 // when the cloud had no more

	owners [1024]sync.Mutex // of keys, by hash: who is at a key's lease
	seed   maphash.Seed
	stages sync.Pool
	hints  sync.Mutex      // guards what lanes and spots say about where not to look
	within [1]netip.Prefix // of the claim under way; guarded by hints
}

// attachment is an interface with its pools.
type attachment struct {
	Interface
	created time.Duration // uptime
	lanes   []*lane
}

// lane is a pool of the ledger: some blocks of one interface that are alike.
type lane struct {
	pool     string
	of       *attachment
	family   ledger.Family
	prefixes bool
	spots    []*spot // by prefix
	until    time.Duration
}

// spot is a block: an address, or a prefix, of an interface.
type spot struct {
	prefix netip.Prefix
	lane   *lane
	lent   netip.Addr                // last: the cursor
	prior  netip.Addr                // the cursor before that
	failed map[netip.Addr]netip.Addr // claims that could not be written, and the cursor before each
	until  time.Duration             // uptime before which no address of it is free, unless one is released
}

// laneSpots is how many blocks a pool gets: the ledger looks at each of them.
const laneSpots = 64

// clock is the store's time. Its wall time counts with the time since boot, so
// that what the ledger says of when an address began to cool can be compared.
type clock struct {
	uptime func() time.Duration
	base   time.Time
	fixed  *time.Duration // while old cooling is restored
}

func (c *clock) now() time.Duration {
	if c.fixed != nil {
		return *c.fixed
	}
	return c.uptime()
}

// instant is one look at the clock, which is not looked at where that is not needed.
type instant struct {
	clock *clock
	at    time.Duration
	known bool
}

// before is true where t is later.
func (i *instant) before(t time.Duration) bool {
	if t == 0 || t == never {
		return t == never
	}
	if !i.known {
		i.at, i.known = i.clock.now(), true
	}
	return i.at < t
}

func (c *clock) wall() time.Time { return c.base.Add(c.now()) }

// since is the uptime of a wall time of this clock.
func (c *clock) since(t time.Time) time.Duration { return t.Sub(c.base) }

// NewDataStore makes an empty store with the usual parameters.
func NewDataStore(log *slog.Logger, backingStore Checkpointer) *DataStore {
	return New(Options{Log: log, Checkpoint: backingStore, CoolDown: DefaultCoolDown})
}

// New makes an empty store.
func New(opt Options) *DataStore {
	opt.defaults()
	up := opt.Uptime()
	ds := &DataStore{
		CheckpointMigrationPhase: CheckpointMigrationPhase,
		opt:                      opt, clock: &clock{uptime: opt.Uptime, base: opt.Now().Add(-up).Round(0)},
		attached: map[string]*attachment{}, lanes: map[string]*lane{}, freed: map[netip.Prefix]time.Duration{}, seed: maphash.MakeSeed(),
	}
	var j ledger.Journal = ledger.NullJournal{}
	if _, null := opt.Checkpoint.(NullCheckpoint); !null {
		ds.journal = newJournal(opt.Checkpoint, opt.BootID)
		j = ds.journal
	}
	ds.book, ds.failed = ledger.Open(context.Background(), j, ledger.Options{Log: opt.Log, Now: ds.clock.wall, Uptime: ds.clock.now})
	if ds.failed == nil {
		ds.stages.New = func() any { return ds.book.Begin() }
	}
	return ds
}

// AddENI adds an interface.
func (ds *DataStore) AddENI(eniID string, deviceNumber int, isPrimary, isTrunk bool) error {
	return ds.AddInterface(Interface{ID: eniID, Device: deviceNumber, Primary: isPrimary, Trunk: isTrunk})
}

// AddInterface adds an interface.
func (ds *DataStore) AddInterface(i Interface) error {
	if i.ID == "" || slices.Contains([]byte(i.ID), 0) {
		return fmt.Errorf("add interface %q: the ID must not be empty, and have no zero byte", i.ID)
	}
	ds.life.Lock()
	defer ds.life.Unlock()
	if ds.failed != nil {
		return fmt.Errorf("add interface %q: %w", i.ID, ds.failed)
	}
	if ds.attached[i.ID] != nil {
		return ds.say(&Error{Code: DuplicatedENIError, ENI: i.ID})
	}
	ds.attached[i.ID] = &attachment{Interface: i, created: ds.clock.now()}
	return nil
}

// Exclude says whether an interface assigns nothing more.
func (ds *DataStore) Exclude(eniID string, excluded bool) error {
	ds.life.Lock()
	defer ds.life.Unlock()
	a := ds.attached[eniID]
	if a == nil {
		return ds.say(&Error{Code: UnknownENIError, ENI: eniID})
	}
	a.Excluded = excluded
	ds.arrange()
	return nil
}

// RemoveENIFromDataStore removes an interface with its addresses. By force its
// pods lose theirs; if that cannot be written, nothing is removed.
func (ds *DataStore) RemoveENIFromDataStore(eniID string, force bool) error {
	ds.life.Lock()
	defer ds.life.Unlock()
	a := ds.attached[eniID]
	if a == nil {
		return ds.say(&Error{Code: UnknownENIError, ENI: eniID})
	}
	held := ds.leases(func(l *lane) bool { return l.of == a })
	if len(held) > 0 && !force {
		return ds.say(&Error{Code: ENIInUseError, ENI: eniID, IP: held[0].Addr.String(), Why: fmt.Sprintf("%d pods have addresses of it", len(held))})
	}
	if err := ds.detach(a, held); err != nil {
		return fmt.Errorf("remove interface %q: %w", eniID, err)
	}
	return nil
}

// detach removes a; ds.life is held.
func (ds *DataStore) detach(a *attachment, held []ledger.Lease) error {
	st := ds.book.Begin()
	err := release(st, held)
	for _, l := range a.lanes {
		err = errors.Join(err, st.SetBlocks(l.pool, nil))
	}
	if err != nil {
		st.Undo()
		return err
	}
	if err := st.Commit(context.Background()); err != nil {
		return err
	}
	for _, l := range held {
		ds.opt.Log.Warn("a pod's address is removed with its interface", "interface", a.ID, "address", l.Addr, "key", l.Key)
	}
	delete(ds.attached, a.ID)
	for _, l := range a.lanes {
		delete(ds.lanes, l.pool)
	}
	ds.spots = slices.DeleteFunc(ds.spots, func(s *spot) bool { return s.lane.of == a })
	ds.arrange()
	return nil
}

func release(st *ledger.Stage, held []ledger.Lease) error {
	for _, l := range held {
		if _, err := st.Release(ledger.Selector{Key: l.Key}); err != nil {
			return err
		}
	}
	return nil
}

// arrange says anew where to look for free addresses: what is attached longest
// comes first, so that the later ones run empty and can be given back.
func (ds *DataStore) arrange() {
	ds.order = [2][]*lane{}
	for _, a := range ds.attached {
		for _, l := range a.lanes {
			if l.prefixes == ds.opt.PrefixMode && !a.Excluded {
				l.until = 0
				ds.order[l.family] = append(ds.order[l.family], l)
			}
		}
	}
	for i := range ds.order {
		slices.SortFunc(ds.order[i], func(x, y *lane) int {
			return cmp.Or(cmp.Compare(x.of.Device, y.of.Device), cmp.Compare(x.of.ID, y.of.ID), cmp.Compare(x.pool, y.pool))
		})
	}
}

// leases are the assigned addresses of the lanes that want is true for.
func (ds *DataStore) leases(want func(*lane) bool) (held []ledger.Lease) {
	for _, l := range ds.book.Leases() {
		if lane := ds.lanes[l.Pool]; lane != nil && l.State == ledger.Held && want(lane) {
			held = append(held, l)
		}
	}
	return held
}

// say logs the detail of a published error, which has no room for it.
func (ds *DataStore) say(e *Error) error {
	ds.opt.Log.Debug(e.Detail())
	return e
}
