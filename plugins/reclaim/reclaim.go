// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/witness"
)

// Ledger holds the methods of *ledger.Ledger that the plugin calls.
type Ledger interface {
	AllInSteps(n int) iter.Seq[*ledger.Lease]
	Stats() []ledger.BlockStat
	Exclusions() []ledger.Exclusion
	ByKey(ledger.Key) []ledger.Lease
	StartExpiry(context.Context, ledger.Selector, ledger.Expiry) error
	StopExpiry(ctx context.Context, sel ledger.Selector, token string) error
	ChangeQuarantines(context.Context, []ledger.Unleased, []ledger.Selector) ([]ledger.Unleased, []ledger.Lease, error)
	History(context.Context, ledger.HistoryQuery) ([]ledger.HistoryEntry, error)
}

// leasesAtOnce is the number of leases that are read under one lock of the ledger: no claim
// waits longer for a round than for another claim.
const leasesAtOnce = 4

// Door releases the leases of one purpose, with everything that belongs to them.
type Door interface {
	// Busy reports whether a request for a key is in progress.
	Busy(ledger.Key) bool
	// Reclaim releases a lease whose reclaim is pending, unless it is no longer pending,
	// its key has a newer lease, or a request for the key is in progress.
	Reclaim(ctx context.Context, l ledger.Lease, reason string) (freed bool, err error)
}

// Observer takes part in each round of a plugin that is enabled.
type Observer interface {
	// ObserveWorld compares what the observer owns with the views of the round: none while
	// the ledger is degraded. uptime is a clock that does not jump.
	ObserveWorld(ctx context.Context, w *witness.World, uptime time.Duration) error
}

// Config holds the settings of the plugin.
type Config struct {
	Enabled  bool          // false: only read the witnesses
	Interval time.Duration // between two rounds; also the least time between two observations
	Grace    time.Duration // a lease that the agent has known for less is not reclaimed
	Undo     time.Duration // time in which a reclaim can be undone
}

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	Config  Config
	Ledger  Ledger
	Readers Readers
	Driver  string                  // name under which the Docker engine knows our IPAM driver
	Doors   map[ledger.Purpose]Door // without a door the leases of a purpose are not reclaimed

	Observers []Observer

	Now    func() time.Time
	Uptime func() time.Duration
	BootID func() (string, error)

	// Degraded returns the reason for which the ledger may be wrong or may not be
	// written, "" if there is none. Nothing is reclaimed while there is one.
	Degraded func() string
	// Starting returns the reason for which the ledger may lack leases of this node that
	// the agent is about to claim, "" if there is none. Nothing is quarantined while
	// there is one.
	Starting func() string
	After    func(time.Duration) <-chan time.Time // nil: time.After
}

// Plugin reads the witnesses, reclaims and quarantines.
type Plugin struct {
	Deps
	world atomic.Pointer[witness.World]

	wake   chan struct{} // holds a token if a round is to begin before the interval has passed
	round  chan struct{} // holds a token while no round is in progress; guards the fields below
	judge  *Judge
	wanted quarantines // of addresses in use without a lease
	unused quarantines // of addresses that are in use no more
	loaded bool        // the Judge knows the reclaims that were undone before the start

	mu       sync.Mutex
	unlisted map[ledger.Key]uint64 // generation of a lease that the last GC of its network did not list
	assessed []Assessment          // of the last round, without those that are in use
	ended    []Ended               // the newest last
	counts   Counts
}

// NewPlugin returns a plugin that has not read anything yet.
func NewPlugin(deps Deps) *Plugin {
	deps.Name = "reclaim"
	if deps.After == nil {
		deps.After = time.After
	}
	p := &Plugin{
		Deps:     deps,
		wake:     make(chan struct{}, 1),
		round:    make(chan struct{}, 1),
		judge:    NewJudge(Rules{Interval: deps.Config.Interval, Grace: deps.Config.Grace, Undo: deps.Config.Undo}),
		wanted:   quarantines{},
		unused:   quarantines{},
		unlisted: map[ledger.Key]uint64{},
	}
	p.round <- struct{}{}
	return p
}

// Run reads a round at once and then in each interval, until ctx ends.
func (p *Plugin) Run(ctx context.Context) error {
	for {
		if _, err := p.Round(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("a round of the witnesses failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.After(p.Config.Interval):
		case <-p.wake:
			select {
			case <-ctx.Done():
			case <-p.After(min(wakeDelay, p.Config.Interval)):
			}
		}
	}
}

// wakeDelay is the time from a change of a source to the round, in which further changes
// are awaited.
const wakeDelay = 5 * time.Second

// Wake makes a round begin soon: a source has changed. Any goroutine may call it.
func (p *Plugin) Wake() {
	select {
	case p.wake <- struct{}{}:
	default: // a round is to begin anyhow
	}
}

// World returns the views of the last round, nil before the first one.
func (p *Plugin) World() *witness.World { return p.world.Load() }

// Reports returns the reports of all witnesses at the last round.
func (p *Plugin) Reports() []witness.Report {
	w := p.world.Load()
	if w == nil {
		w = &witness.World{}
	}
	var all []witness.Report
	for _, name := range witness.Names() {
		all = append(all, w.Report(name))
	}
	return all
}

// Round reads all witnesses now, and decides and acts on what they show. An error is
// that of an action; the World is valid with it. Without a World ctx has ended.
func (p *Plugin) Round(ctx context.Context) (*witness.World, error) {
	o, unlock, err := p.observe(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.loadUndone(ctx, o.Leases)
	p.world.Store(o.World)
	p.countRound()
	if !p.Config.Enabled {
		return o.World, nil
	}
	err = p.act(ctx, o)
	shown := o.World
	if o.Hold != "" {
		shown = &witness.World{Taken: o.World.Taken}
	}
	for _, x := range p.Observers {
		err = errors.Join(err, x.ObserveWorld(ctx, shown, o.Uptime))
	}
	return o.World, err
}

// leases returns the leases that witnesses can judge: those of pods and containers that
// are held, or whose reclaim is pending.
func (p *Plugin) leases() (all []ledger.Lease) {
	for l := range p.Ledger.AllInSteps(leasesAtOnce) {
		if (l.Purpose == ledger.ForPod || l.Purpose == ledger.ForDocker) && (l.State == ledger.Held || l.Reclaiming()) {
			all = append(all, *l)
		}
	}
	slices.SortFunc(all, func(x, y ledger.Lease) int { return x.Addr.Compare(y.Addr) })
	return slices.CompactFunc(all, func(x, y ledger.Lease) bool { return x.Pool == y.Pool && x.Addr == y.Addr })
}

// busy reports whether a request for the key of a lease is in progress.
func (p *Plugin) busy(l ledger.Lease) bool {
	door := p.Doors[l.Purpose]
	return door != nil && door.Busy(l.Key)
}
