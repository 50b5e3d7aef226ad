// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestate is where the cluster's state comes from: it reads what is
// reflected in the kvdb for this node, pushes it into the event loop as one
// DBResync, and every later change as a KubeStateChange (or, for what
// configures the southbound, an ExternalConfigChange). Where there is no kvdb,
// package apistore makes one of Kubernetes' API server; package kubestatetest is
// what a Source promises over both.
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
	NodeRecords     = kv.NodeRecordResource
	Nodes           = kv.NodeResource
	Pods            = kv.PodResource
	Pools           = kv.PoolResource
	CustomNetworks  = kv.CustomNetworkResource
	NodeConfigs     = kv.NodeConfigResource
	NetResourceSets = kv.NetResourceSetResource
	PrefixClaims    = kv.PrefixClaimResource
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
	Ready     func() bool                 // this node has an ID, so that the mirror may be used; nil: always
	Timing    Timing
	Random    func() float64   // in [0,1); nil: 1/2 always
	Now       func() time.Time // nil: time.Now
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
	known   map[string]entry   // by key of the store, as of the last event pushed
	before  []map[string]entry // what was known since Upkeep last had nothing to write
	gone    []string           // what was seen being deleted, where Upkeep's writes failed
	unsaved []kvdb.Event       // that the mirror does not have yet
	stale   bool               // the mirror could not be written

	mu     sync.Mutex
	status Status
}

// entry is one value.
type entry struct {
	resource string        // "" for external configuration
	message  proto.Message // nil: it cannot be read, or is none of ours
	revision int64
}

// Status is how a Source is.
type Status struct {
	Connected bool
	Error     string // why it is not connected
	Revision  int64  // of the store, as of the last snapshot or change
	From      string // "remote", "mirror", or "" before the first state was pushed

	Unreadable []string // keys of node records that cannot be read, sorted
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
	if deps.Now == nil {
		deps.Now = time.Now
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
		since, err := s.follow(ctx, &waiting)
		if ctx.Err() != nil || errors.Is(err, controller.ErrClosedController) {
			answer(&waiting, controller.ErrClosedController)
			return nil
		}
		if err == nil { // a resync was asked for
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
		wait := s.backoff(failures)
		if !since.IsZero() {
			wait = max(wait, s.spread())
		}
		s.deps.Log.Warn("the cluster's state cannot be followed, trying again", "in", wait.Round(time.Millisecond), "error", err)
		select {
		case <-time.After(wait):
		case d := <-s.demands:
			waiting = append(waiting, d)
		case <-ctx.Done():
		}
	}
}

// spread is how long to wait after a connection that worked has ended, as that
// of all other nodes may have.
func (s *Source) spread() time.Duration {
	spread := s.deps.Timing.Spread
	if spread > 0 {
		spread = max(spread, time.Duration(s.count(NodeRecords))*spreadOneNode)
	}
	return time.Duration(s.deps.Random() * float64(spread))
}

// backoff is how long to wait after so many failures in a row.
func (s *Source) backoff(failures int) time.Duration {
	if failures == 0 {
		return 0
	}
	limit := s.deps.Timing.RetryIn
	for range failures - 1 {
		limit = min(2*limit, s.deps.Timing.RetryLimit)
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
// (nil) or the store fails. It tells when the snapshot was pushed, if it was.
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

// silence is how many probes in a row fail before the store is read anew. A
// store that is busy must not get more to do for it.
const silence = 3

// probed says at once what a probe has found.
func (s *Source) probed(err error) {
	s.setStatus(func(st *Status) {
		st.Connected, st.Error = err == nil, ""
		if err != nil {
			st.Error = fmt.Sprintf("probe the store: %v", err)
		}
	})
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
	ev := resyncOf(s.known, rev)
	demands := *waiting
	*waiting = nil
	ev.OnDone = func(err error) { answer(&demands, err) }
	if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		w.close()
		*waiting = demands
		return w, err
	}
	unreadable := s.unreadable()
	s.setStatus(func(st *Status) {
		*st = Status{Connected: true, Revision: rev, From: FromRemote, Unreadable: unreadable}
	})
	return w, nil
}

// attempts bounds how often the store is put in order against others who do the same.
const attempts = 100

// read makes what is in the store known, once what it lacks is written and the
// node's ID is confirmed.
func (s *Source) read(ctx context.Context) ([]kvdb.KeyValue, int64, error) {
	claimed := s.deps.Claim == nil
	claim := func() error {
		if claimed {
			return nil
		}
		claimed = true
		return s.deps.Claim(ctx)
	}
	// A newcomer knows nothing that the store could lack. Whoever has an ID puts
	// back what was lost before it writes anything of its own, by which the store
	// would look as if it had lost nothing.
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
		written, err := s.keepUp(ctx, append(slices.Clip(s.before), s.known), found, s.gone)
		if err != nil {
			return nil, 0, err
		}
		s.gone = nil
		if written {
			continue
		}
		if err := claim(); err != nil {
			return nil, 0, err
		}
		s.known, s.before = found, nil
		return kvs, rev, nil
	}
	return nil, 0, fmt.Errorf("put the store in order: others were faster %d times", attempts)
}

// entries reads values.
func (s *Source) entries(kvs []kvdb.KeyValue) map[string]entry {
	all := make(map[string]entry, len(kvs))
	for _, x := range kvs {
		all[x.Key] = s.decode(x)
	}
	return all
}

// resyncOf is the event with which the loop begins anew.
func resyncOf(entries map[string]entry, rev int64) *controller.DBResync {
	ev := &controller.DBResync{Revision: rev, KubeState: stateOf(entries), ExternalConfig: map[string]proto.Message{}}
	for key, e := range entries {
		if sinkKey, ok := kv.External(key); ok && e.message != nil {
			ev.ExternalConfig[sinkKey] = e.message
		}
	}
	return ev
}

// changes pushes what one transaction of the store has changed.
func (s *Source) changes(ctx context.Context, batch []kvdb.Event) error {
	if slices.ContainsFunc(batch, keptUp) {
		s.before = append(s.before, maps.Clone(s.known))
	}
	var events []controller.Event
	var gone []string
	for _, ev := range batch {
		if change := s.take(ev); change != nil {
			events = append(events, change)
		}
		if ev.Deleted {
			gone = append(gone, ev.Key)
		}
	}
	s.setStatus(func(st *Status) { st.Revision = max(st.Revision, batch[0].ModRevision) }) // there are two watches
	s.note(ctx, batch)
	for _, ev := range events {
		if err := s.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
			return err
		}
	}
	if len(s.before) == 0 || !slices.ContainsFunc(batch, lookedAt) {
		return nil
	}
	written, err := s.keepUp(ctx, s.before, s.known, gone)
	switch {
	case err != nil:
		s.gone = gone
	case !written: // otherwise what was written will come, and is looked at again
		s.before = nil
	}
	return err
}

// keptUp is whether Upkeep may have something to write because of ev.
func keptUp(ev kvdb.Event) bool {
	r, _ := kv.ResourceOf(ev.Key)
	return r.Name == Pools || r.Name == CustomNetworks || r.Name == NodeRecords && ev.Deleted
}

// lookedAt is whether ev may be what Upkeep has waited for.
func lookedAt(ev kvdb.Event) bool {
	r, _ := kv.ResourceOf(ev.Key)
	return keptUp(ev) || r.Name == NodeRecords
}

// take makes one change known. It is what the change is to the loop, nil for
// nothing: what cannot be read is as good as gone.
func (s *Source) take(ev kvdb.Event) controller.Event {
	prev, now := s.known[ev.Key], entry{}
	if ev.Deleted {
		delete(s.known, ev.Key)
	} else {
		now = s.decode(ev.KeyValue)
		s.known[ev.Key] = now
	}
	if kv.NodeRecordID(ev.Key) != 0 && (prev.message == nil || now.message == nil) {
		unreadable := s.unreadable()
		s.setStatus(func(st *Status) { st.Unreadable = unreadable })
	}
	if prev.message == nil && now.message == nil {
		return nil
	}
	if sinkKey, ok := kv.External(ev.Key); ok {
		return &controller.ExternalConfigChange{
			Source: ExternalSource, Revision: ev.ModRevision, Values: map[string]proto.Message{sinkKey: now.message},
		}
	}
	resource, _ := kv.ResourceOf(ev.Key)
	return &controller.KubeStateChange{Key: ev.Key, Resource: resource.Name, Revision: ev.ModRevision, Prev: prev.message, New: now.message}
}

// decode reads a value.
func (s *Source) decode(x kvdb.KeyValue) entry {
	e := entry{revision: x.ModRevision}
	if sinkKey, ok := kv.External(x.Key); ok {
		e.message = kv.SinkMessage(sinkKey)
	} else if r, ok := kv.ResourceOf(x.Key); ok {
		e.resource, e.message = r.Name, r.New()
	}
	if e.message == nil {
		return e
	}
	err := proto.Unmarshal(x.Value, e.message)
	if m, ok := e.message.(*kv.NodeRecord); err == nil && ok && kv.NodeRecordKey(m.Id) != x.Key {
		err = fmt.Errorf("it is the record of node ID %d", m.Id)
	}
	if err != nil {
		s.deps.Log.Warn("a value of the store cannot be read and is left out", "key", x.Key, "error", err)
		return entry{revision: x.ModRevision}
	}
	return e
}

// unreadable returns the keys of node records that cannot be read.
func (s *Source) unreadable() (keys []string) {
	for key, e := range s.known {
		if e.message == nil && kv.NodeRecordID(key) != 0 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
