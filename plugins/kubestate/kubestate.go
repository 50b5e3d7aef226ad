// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestate is where the cluster's state comes from: it reads what is
// reflected in the kvdb for this node, pushes it into the event loop as one
// DBResync, and every later change as a KubeStateChange (or, for what
// configures the southbound, an ExternalConfigChange).
//
// The snapshot is taken at one revision and the watches continue from the next,
// so that no change is lost or seen twice. When a watch breaks, when the store
// does not answer a probe, or when Resync is called, a new snapshot is taken;
// how long a node waits before is spread at random, so that a store which comes
// back is not asked by all at once. A value that cannot be decoded is logged
// and left out; it harms nobody else.
//
// Before each snapshot the node's ID is claimed or confirmed (Deps.Claim), and
// what the store lost or lacks is written (Deps.Upkeep).
//
// What was read is kept in a Mirror on this node. If the store does not answer
// within Timing.DelayLocal of the start, the mirror is pushed as a local
// DBResync, and the loop goes on from there; the store's state follows as a
// further resync, which the plugins apply as a difference.
//
// Source is driven by its Run and StartLocal; the other methods may be called
// from any goroutine but a handler's.
//
// Example:
//
//	src := kubestate.New(kubestate.Deps{Node: "node-a", Store: store, EventLoop: loop, Log: log})
//	err := src.Run(ctx)       // pushes the first DBResync, then changes
package kubestate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
)

// Resources of controller.KubeStateData.
const (
	NodeRecords    = kv.NodeRecordResource
	Nodes          = kv.NodeResource
	Pods           = kv.PodResource
	Pools          = kv.PoolResource
	CustomNetworks = kv.CustomNetworkResource
	NodeConfigs    = kv.NodeConfigResource
)

// ExternalSource is the name of the store as a source of external configuration.
const ExternalSource = "db"

// Deps is what a Source is given.
type Deps struct {
	Log       *slog.Logger
	Node      string // this node's name: its pods and its configuration are read
	Store     kvdb.Store
	EventLoop controller.EventLoop
	Claim     func(context.Context) error // the node's ID; nil: nothing to claim
	Upkeep    Upkeep                      // nil: nothing to keep up
	Mirror    Mirror                      // nil: none, the store is of this node
	Ready     func() bool                 // the mirror may be used: this node has an ID; nil: always
	Timing    Timing
	Random    func() float64 // in [0,1); nil: 1/2 always
}

// Timing is how long a Source waits for what. Zero values are defaults.
type Timing struct {
	RetryIn    time.Duration // after the store failed for the first time; a second
	RetryLimit time.Duration // the wait doubles up to this; 30 seconds
	DelayLocal time.Duration // before the mirror is used; 0: at once
	Probe      time.Duration // how often the store is probed; 0: never
	Spread     time.Duration // over which nodes come back after a watch broke; 0: at once
}

// spreadOneNode is how much wider the spread is with each node of the cluster:
// ten thousand nodes come back within 20 s.
const spreadOneNode = 2 * time.Millisecond

// Source feeds the event loop.
type Source struct {
	deps    Deps
	demands chan demand
	ended   chan struct{} // closed when Run returns

	// Of Run only.
	known   map[string]entry // by key of the store, as of the last event pushed
	unsaved []kvdb.Event     // that the mirror does not have yet
	stale   bool             // the mirror could not be written

	mu     sync.Mutex
	status Status
}

// entry is one decoded value.
type entry struct {
	resource string // "" for external configuration
	message  proto.Message
	revision int64
}

// Status is how a Source is.
type Status struct {
	Connected bool
	Error     string // why it is not connected
	Revision  int64  // of the store, as of the last snapshot or change
	From      string // "remote", "mirror", or "" before the first state was pushed
}

// Where the state of the loop is from.
const (
	FromRemote = "remote"
	FromMirror = "mirror"
)

// demand is somebody who wants a resync and waits for its outcome.
type demand struct{ done chan<- error }

// New makes a Source; Run starts it.
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
	return &Source{deps: deps, demands: make(chan demand), ended: make(chan struct{}), known: map[string]entry{}}
}

// Status is how the Source is now.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Source) setStatus(f func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.status)
}

// Resync has a new snapshot processed and returns the outcome.
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

// Dispatch asks for a new snapshot and does not wait for it.
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
		return nil, fmt.Errorf("ask for a resync: %w", controller.ErrClosedController)
	case <-ctx.Done():
		return nil, fmt.Errorf("ask for a resync: %w", context.Cause(ctx))
	}
}

// Run pushes snapshots and changes until ctx ends. It runs once. It fails only
// where Deps.Claim fails for good (controller.ErrFatal).
func (s *Source) Run(ctx context.Context) error {
	defer close(s.ended)
	s.recall(ctx)
	var waiting []demand
	failures := 0
	for {
		connected, err := s.follow(ctx, &waiting)
		if ctx.Err() != nil || errors.Is(err, controller.ErrClosedController) {
			answer(&waiting, controller.ErrClosedController)
			return nil
		}
		if err == nil {
			continue // a resync was asked for
		}
		s.setStatus(func(st *Status) { st.Connected, st.Error = false, err.Error() })
		answer(&waiting, err)
		if errors.Is(err, controller.ErrFatal) {
			return err
		}
		if failures++; connected {
			failures = 0
		}
		wait := s.wait(failures)
		s.deps.Log.Warn("the cluster's state cannot be followed, trying again", "in", wait.Round(time.Millisecond), "error", err)
		select {
		case <-time.After(wait):
		case d := <-s.demands:
			waiting = append(waiting, d)
		case <-ctx.Done():
		}
	}
}

// wait is how long to wait after so many failures in a row; none means that a
// connection which worked has ended, as that of all others may have.
func (s *Source) wait(failures int) time.Duration {
	t := s.deps.Timing
	if failures == 0 {
		spread := t.Spread
		if spread > 0 {
			spread = max(spread, time.Duration(s.count(NodeRecords))*spreadOneNode)
		}
		return time.Duration(s.deps.Random() * float64(spread))
	}
	limit := t.RetryIn
	for range failures - 1 {
		limit = min(2*limit, t.RetryLimit)
	}
	return limit/2 + time.Duration(s.deps.Random()*float64(limit/2))
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

// follow pushes a snapshot and then what changes, until a resync is asked for
// (nil) or the store fails. It tells whether a snapshot was pushed.
func (s *Source) follow(ctx context.Context, waiting *[]demand) (connected bool, err error) {
	watches, err := s.snapshot(ctx, waiting)
	if err != nil {
		return false, err
	}
	defer watches.close()
	probe, save := ticker(s.deps.Timing.Probe), time.NewTicker(saveEvery)
	defer probe.Stop()
	defer save.Stop()
	for {
		var batch []kvdb.Event
		var open bool
		var watch kvdb.Watcher
		select {
		case <-ctx.Done():
			s.save(context.WithoutCancel(ctx))
			return true, nil
		case d := <-s.demands:
			*waiting = append(*waiting, d)
			return true, nil
		case <-probe.C:
			if err := s.probe(ctx); err != nil {
				return true, fmt.Errorf("probe the store: %w", err)
			}
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
				return true, fmt.Errorf("watch the store: %w", err)
			}
			return true, nil
		}
		if err := s.changes(ctx, batch); err != nil {
			return true, err
		}
	}
}

// ticker ticks every d, or never where d is 0.
func ticker(d time.Duration) *time.Ticker {
	t := time.NewTicker(max(d, time.Millisecond))
	if d == 0 {
		t.Stop()
	}
	return t
}

// prober is a store that can be asked whether it is there for less than a read.
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

// watches are those of what all nodes share, and of what is this node's.
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
	ev := s.resync(kvs, rev)
	demands := *waiting
	*waiting = nil
	ev.OnDone = func(err error) { answer(&demands, err) }
	if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		w.close()
		*waiting = demands
		return w, err
	}
	s.setStatus(func(st *Status) { *st = Status{Connected: true, Revision: rev, From: FromRemote} })
	return w, nil
}

// attempts bounds how often the store is put in order against others who do the same.
const attempts = 100

// read lists the store, once the node's ID is confirmed and what is missing is written.
func (s *Source) read(ctx context.Context) ([]kvdb.KeyValue, int64, error) {
	if s.deps.Claim != nil {
		if err := s.deps.Claim(ctx); err != nil {
			return nil, 0, err
		}
	}
	for range attempts {
		kvs, rev, err := s.deps.Store.List(ctx, s.scopes()...)
		if err != nil {
			return nil, 0, fmt.Errorf("list the store: %w", err)
		}
		found := map[string]entry{}
		for _, x := range kvs {
			e, _ := s.decode(x)
			e.revision = x.ModRevision // also of what cannot be read, which may be overwritten
			found[x.Key] = e
		}
		written, err := s.keepUp(ctx, s.known, found, nil)
		if err != nil {
			return nil, 0, err
		}
		if !written {
			return kvs, rev, nil
		}
	}
	return nil, 0, fmt.Errorf("put the store in order: others were faster %d times", attempts)
}

// resync makes kvs what is known.
func (s *Source) resync(kvs []kvdb.KeyValue, rev int64) *controller.DBResync {
	s.known = map[string]entry{}
	ev := &controller.DBResync{Revision: rev, KubeState: controller.KubeStateData{}, ExternalConfig: map[string]proto.Message{}}
	for _, r := range kv.Resources() {
		ev.KubeState[r.Name] = map[string]proto.Message{}
	}
	for _, x := range kvs {
		e, ok := s.decode(x)
		if !ok {
			continue
		}
		s.known[x.Key] = e
		if sinkKey, ok := kv.External(x.Key); ok {
			ev.ExternalConfig[sinkKey] = e.message
		} else {
			ev.KubeState[e.resource][x.Key] = e.message
		}
	}
	return ev
}

// changes pushes what one transaction of the store has changed.
func (s *Source) changes(ctx context.Context, batch []kvdb.Event) error {
	s.note(ctx, batch)
	var before map[string]entry // where there is something to keep up
	if slices.ContainsFunc(batch, keptUp) {
		before = maps.Clone(s.known)
	}
	var gone []string
	for _, ev := range batch {
		e, _ := s.decode(ev.KeyValue)
		prev, had := s.known[ev.Key]
		if ev.Deleted || e.message == nil { // what cannot be read is as good as gone
			e.message = nil
			delete(s.known, ev.Key)
		} else {
			s.known[ev.Key] = e
		}
		if !had && e.message == nil {
			continue
		}
		if err := s.deps.EventLoop.PushEventWait(ctx, s.event(ev, prev, e)); err != nil {
			return err
		}
		if ev.Deleted {
			gone = append(gone, ev.Key)
		}
	}
	if before != nil {
		if _, err := s.keepUp(ctx, before, s.known, gone); err != nil {
			return err
		}
	}
	if n := len(batch); n > 0 {
		s.setStatus(func(st *Status) { st.Revision = batch[n-1].ModRevision })
	}
	return nil
}

// keptUp is whether Upkeep looks at what ev changes.
func keptUp(ev kvdb.Event) bool {
	r, _ := kv.ResourceOf(ev.Key)
	return r.Name == Pools || r.Name == CustomNetworks
}

// event is what one change is to the loop.
func (s *Source) event(ev kvdb.Event, prev, now entry) controller.Event {
	if sinkKey, ok := kv.External(ev.Key); ok {
		return &controller.ExternalConfigChange{
			Source: ExternalSource, Revision: ev.ModRevision, Values: map[string]proto.Message{sinkKey: now.message},
		}
	}
	resource, _ := kv.ResourceOf(ev.Key)
	return &controller.KubeStateChange{Key: ev.Key, Resource: resource.Name, Revision: ev.ModRevision, Prev: prev.message, New: now.message}
}

// decode reads a value; false where its key is none of ours or it cannot be read.
func (s *Source) decode(x kvdb.KeyValue) (entry, bool) {
	var e entry
	if sinkKey, ok := kv.External(x.Key); ok {
		e.message = kv.SinkMessage(sinkKey)
	} else if r, ok := kv.ResourceOf(x.Key); ok {
		e.resource, e.message = r.Name, r.New()
	}
	if e.message == nil {
		return entry{}, false
	}
	if err := proto.Unmarshal(x.Value, e.message); err != nil {
		s.deps.Log.Warn("a value of the store cannot be read and is left out", "key", x.Key, "error", err)
		return entry{}, false
	}
	e.revision = x.ModRevision
	return e, true
}
