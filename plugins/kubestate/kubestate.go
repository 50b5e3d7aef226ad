// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestate feeds the cluster's state into the event loop. A Source reads what
// is reflected in the kvdb for this node, and pushes it as one DBResync. It pushes each
// later change as a KubeStateChange (or, for configuration of the southbound, an
// ExternalConfigChange). In a cluster without a kvdb, package apistore serves
// Kubernetes' API server as one.
//
// The snapshot is of one revision and the watches continue from the next, so no
// change is lost or seen twice. The Source takes a new snapshot when a watch breaks,
// when the store does not answer several probes, or when Resync is called. It waits
// a random time before, so that not all nodes read a store at once that comes back.
// A value that cannot be decoded is logged and left out; other values are not
// affected.
//
// Before each snapshot the Source claims or confirms the node's ID (Deps.Claim), and
// writes what the store has lost or lacks (Deps.Repair).
//
// The Source keeps a copy of what it read in a Mirror on this node. If the store does
// not answer within Timing.DelayLocal of the start, it pushes the mirror as a local
// DBResync. The store's state follows as a further resync, which the plugins apply as
// a difference.
//
// Run and StartLocal drive a Source, each in one goroutine, and return when their
// context ends. Any goroutine except a handler's may call the other methods.
package kubestate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/kvdb"
)

// Resources of controller.KubeStateData.
const (
	NodeRecords     = kv.NodeRecordResource
	Nodes           = kv.NodeResource
	Pods            = kv.PodResource
	Pools           = kv.PoolResource
	CustomNetworks  = kv.CustomNetworkResource
	NodeConfigs     = kv.NodeConfigResource
	NetResourceSets = kv.NetResourceSetResource
	PrefixClaims    = kv.PrefixClaimResource
)

// externalSource is the name of the store as a source of external configuration.
const externalSource = "db"

// Deps holds the dependencies of a Source.
type Deps struct {
	Log       *slog.Logger
	Node      string // this node's name: the Source reads its pods and its configuration
	Store     kvdb.Store
	EventLoop controller.EventLoop
	Claim     func(context.Context) error // claims the node's ID; nil: nothing to claim
	Repair    Repair                      // nil: nothing to repair
	Mirror    Mirror                      // nil: none, the store is on this node
	// Ready reports whether this node has an ID, so that the mirror may be used; nil:
	// always.
	Ready  func() bool
	Timing Timing
	Random func() float64   // in [0,1); nil: 1/2 always
	Now    func() time.Time // nil: time.Now
}

// Timing holds the waits of a Source. Zero values are defaults.
type Timing struct {
	RetryIn    time.Duration // wait after the store failed for the first time; 0: a second
	RetryLimit time.Duration // the wait doubles up to this; 0: 30 seconds
	DelayLocal time.Duration // wait before the mirror is used; 0: none
	Probe      time.Duration // period of probes of the store; 0: never
	Spread     time.Duration // nodes come back within this time after a watch broke; 0: at once
}

// spreadOneNode widens the spread for each node of the cluster: ten thousand nodes
// come back within 20 s.
const spreadOneNode = 2 * time.Millisecond

// Source feeds the event loop.
type Source struct {
	deps    Deps
	backoff backoff.Policy
	demands chan demand
	ended   chan struct{} // closed when Run returns

	// Of Run only.
	known   map[string]entry   // by key of the store, as of the last event pushed
	before  []map[string]entry // states since Repair last had nothing to write
	deleted []string           // keys that the Source saw being deleted while Repair's writes failed
	unsaved []kvdb.Event       // that the mirror does not have yet
	stale   bool               // the mirror could not be written

	mu     sync.Mutex
	status Status
}

// Status holds the state of a Source.
type Status struct {
	Connected bool
	Error     string    // the reason why it is not connected
	Away      time.Time // since when it is not connected; zero: it is, or was not tried yet
	Revision  int64     // of the store, as of the last snapshot or change
	From      string    // "remote", "mirror", or "" before the first state was pushed

	Unreadable []string // keys of node records that cannot be read, sorted
	Hidden     []string // keys of pods and Nodes that cannot be read, sorted
}

// Sources of the loop's state.
const (
	FromRemote = "remote"
	FromMirror = "mirror"
)

// demand is a request for a resync. done receives its outcome.
type demand struct{ done chan<- error }

// New returns a Source; Run starts it.
func New(deps Deps) *Source {
	if deps.Timing.RetryIn == 0 {
		deps.Timing.RetryIn = time.Second
	}
	if deps.Timing.RetryLimit == 0 {
		deps.Timing.RetryLimit = 30 * time.Second
	}
	if deps.Random == nil {
		deps.Random = func() float64 { return 0.5 }
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Source{
		deps: deps,
		backoff: backoff.Policy{
			First:  deps.Timing.RetryIn,
			Limit:  deps.Timing.RetryLimit,
			Random: deps.Random,
		},
		demands: make(chan demand),
		ended:   make(chan struct{}),
		known:   map[string]entry{},
	}
}

// Status returns the current state of the Source.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Source) setStatus(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	away := s.status.Away
	f(&s.status)
	switch s.status.Away = away; {
	case s.status.Connected:
		s.status.Away = time.Time{}
	case s.status.Error != "" && away.IsZero():
		s.status.Away = s.deps.Now()
	}
}

// Resync requests a new snapshot and returns the outcome of its event.
func (s *Source) Resync(ctx context.Context) error {
	done, err := s.demand(ctx)
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the resync: %w", context.Cause(ctx))
	}
}

// Dispatch requests a new snapshot and does not wait for it.
func (s *Source) Dispatch(ctx context.Context) error {
	_, err := s.demand(ctx)
	return err
}

func (s *Source) demand(ctx context.Context) (<-chan error, error) {
	done := make(chan error, 1)
	select {
	case s.demands <- demand{done}:
		return done, nil
	case <-s.ended:
		return nil, fmt.Errorf("request a resync: %w", controller.ErrClosedController)
	case <-ctx.Done():
		return nil, fmt.Errorf("request a resync: %w", context.Cause(ctx))
	}
}

// Run pushes snapshots and changes until ctx ends. It runs once. It fails only if
// Deps.Claim fails for good (controller.ErrFatal).
func (s *Source) Run(ctx context.Context) error {
	defer close(s.ended)
	s.reload(ctx)
	var waiting []demand
	failures := 0
	for {
		since, err := s.follow(ctx, &waiting)
		if ctx.Err() != nil || errors.Is(err, controller.ErrClosedController) {
			answer(&waiting, controller.ErrClosedController)
			return nil
		}
		if err == nil { // a resync was requested
			failures = 0
			continue
		}
		s.setStatus(func(st *Status) { st.Connected, st.Error = false, err.Error() })
		answer(&waiting, err)
		if errors.Is(err, controller.ErrFatal) {
			return err
		}
		if failures++; !since.IsZero() && s.deps.Now().Sub(since) > s.deps.Timing.RetryIn {
			failures = 0
		}
		wait := s.backoff.After(failures)
		if !since.IsZero() {
			wait = max(wait, s.spread())
		}
		s.deps.Log.Warn("the cluster's state cannot be followed, trying again",
			"in", wait.Round(time.Millisecond), "error", err)
		select {
		case <-time.After(wait):
		case d := <-s.demands:
			waiting = append(waiting, d)
		case <-ctx.Done():
		}
	}
}

// spread returns the wait after a connection that worked has ended: those of all
// other nodes may have ended with it.
func (s *Source) spread() time.Duration {
	spread := s.deps.Timing.Spread
	if spread > 0 {
		spread = max(spread, time.Duration(s.count(NodeRecords))*spreadOneNode)
	}
	return time.Duration(s.deps.Random() * float64(spread))
}

func (s *Source) count(resource string) (n int) {
	for _, e := range s.known {
		if e.resource == resource {
			n++
		}
	}
	return n
}

func answer(waiting *[]demand, err error) {
	for _, d := range *waiting {
		d.done <- err
	}
	*waiting = nil
}

// follow pushes a snapshot and then the changes, until a resync is requested (nil) or
// the store fails. since is the time at which the snapshot was pushed, if it was.
func (s *Source) follow(ctx context.Context, waiting *[]demand) (since time.Time, err error) {
	watches, err := s.snapshot(ctx, waiting)
	if err != nil {
		return time.Time{}, err
	}
	since = s.deps.Now()
	defer watches.close()
	defer s.save(context.WithoutCancel(ctx))
	probe, save := ticker(s.deps.Timing.Probe), time.NewTicker(saveEvery)
	defer probe.Stop()
	defer save.Stop()
	silent := 0
	for {
		var batch []kvdb.Event
		var open bool
		var watch kvdb.Watcher
		select {
		case <-ctx.Done():
			return since, nil
		case d := <-s.demands:
			*waiting = append(*waiting, d)
			return since, nil
		case <-probe.C:
			err := s.probe(ctx)
			if silent++; err == nil {
				silent = 0
			}
			if silent == silence {
				return since, fmt.Errorf("probe the store, %d times: %w", silent, err)
			}
			s.probed(err)
			continue
		case <-save.C:
			s.save(ctx)
			continue
		case batch, open = <-watches.cluster.Events():
			watch = watches.cluster
		case batch, open = <-watches.node.Events():
			watch = watches.node
		}
		if !open {
			if err := watch.Err(); err != nil {
				return since, fmt.Errorf("watch the store: %w", err)
			}
			return since, nil
		}
		if err := s.changes(ctx, batch); err != nil {
			return since, err
		}
	}
}

// silence is the number of probes in a row that fail before the store is read again:
// a busy store must not get more work for being busy.
const silence = 3

// probed publishes the result of a probe at once.
func (s *Source) probed(err error) {
	s.setStatus(func(st *Status) {
		st.Connected, st.Error = err == nil, ""
		if err != nil {
			st.Error = fmt.Sprintf("probe the store: %v", err)
		}
	})
}

// ticker returns a ticker with period d, one that never ticks if d is 0.
func ticker(d time.Duration) *time.Ticker {
	t := time.NewTicker(max(d, time.Millisecond))
	if d == 0 {
		t.Stop()
	}
	return t
}

// prober is a store whose presence can be tested for less than a read.
type prober interface{ Probe(context.Context) error }

func (s *Source) probe(ctx context.Context) error {
	p, ok := s.deps.Store.(prober)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, max(s.deps.Timing.Probe, time.Second))
	defer cancel()
	return p.Probe(ctx)
}

// watches holds the watch of what all nodes share and that of this node's part.
type watches struct{ cluster, node kvdb.Watcher }

func (w watches) close() {
	w.cluster.Close()
	w.node.Close()
}

func (s *Source) scopes() []string {
	return []string{kv.ClusterPrefix, kv.NodePrefix(s.deps.Node)}
}

// snapshot pushes a DBResync and opens the watches that continue from it.
func (s *Source) snapshot(ctx context.Context, waiting *[]demand) (w watches, err error) {
	kvs, rev, err := s.read(ctx)
	if err != nil {
		return w, err
	}
	if w.cluster, err = s.deps.Store.Watch(ctx, s.scopes()[0], rev+1); err != nil {
		return w, fmt.Errorf("watch the store: %w", err)
	}
	if w.node, err = s.deps.Store.Watch(ctx, s.scopes()[1], rev+1); err != nil {
		w.cluster.Close()
		return w, fmt.Errorf("watch the store: %w", err)
	}
	s.replaceMirror(ctx, kvs, rev)
	ev := resyncOf(s.known, rev)
	demands := *waiting
	*waiting = nil
	ev.OnDone = func(err error) { answer(&demands, err) }
	if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		w.close()
		*waiting = demands
		return w, err
	}
	s.setStatus(func(st *Status) {
		*st = Status{Connected: true, Revision: rev, From: FromRemote}
		st.Unreadable, st.Hidden = s.unreadable()
	})
	return w, nil
}

// attempts limits the repairs of the store in one snapshot: other nodes do the same.
const attempts = 100

// read repairs the store, confirms the node's ID and then makes the content of the
// store known.
func (s *Source) read(ctx context.Context) ([]kvdb.KeyValue, int64, error) {
	claimed := s.deps.Claim == nil
	claim := func() error {
		if claimed {
			return nil
		}
		claimed = true
		return s.deps.Claim(ctx)
	}
	// A new node knows nothing that the store could lack. A node with an ID repairs the
	// store before it writes its own record: with that record the store would look as
	// if it had lost nothing.
	if s.deps.Ready != nil && !s.deps.Ready() {
		if err := claim(); err != nil {
			return nil, 0, err
		}
	}
	for range attempts {
		kvs, rev, err := s.deps.Store.List(ctx, s.scopes()...)
		if err != nil {
			return nil, 0, fmt.Errorf("list the store: %w", err)
		}
		found := s.entries(kvs)
		written, err := s.repair(ctx, append(slices.Clip(s.before), s.known), found, s.deleted)
		if err != nil {
			return nil, 0, err
		}
		s.deleted = nil
		if written {
			continue
		}
		if err := claim(); err != nil {
			return nil, 0, err
		}
		s.known, s.before = found, nil
		return kvs, rev, nil
	}
	return nil, 0, fmt.Errorf("repair the store: gave up after %d conflicting writes", attempts)
}
