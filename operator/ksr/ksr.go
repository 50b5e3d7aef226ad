// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ksr reflects Kubernetes' state: it keeps a copy of the objects that
// agents need in the cluster store, under the keys and in the messages of package
// kv. It reflects pods that are on a node, nodes and, if the API server has them,
// custom networks and node configurations.
//
// # Ownership
//
// The API server is the truth. A Reflector owns the keys of the kinds that it
// reflects, and writes no others: neither node records and beats nor pools and
// the configuration of the southbound. If the API server does not have a kind,
// its keys stay as they are, because absence of evidence deletes nothing. An
// object that cannot be stored is reported, its key keeps its value, and other
// objects are not affected.
//
// # Mark and sweep
//
// A change of an object or of a key only queues the key. The Reflector then
// compares the caches with the store by value, and writes the difference, up to
// kvdb.MaxOps keys a transaction. It queues all keys when it begins, after every
// error of the store, and periodically. It does so as well when a watch of the
// store ends, when the store's revision goes back, and when the API server begins
// to have a kind. It also watches the store, so it repairs at once what another
// writer changed or lost.
//
// # Leadership
//
// Deps.Fence is called before every transaction. A transaction that was under way
// when another process took over may still arrive; the new leader sees it, and
// writes the right value.
//
// A Releaser releases the node IDs and claims of nodes that are gone, in the same
// store or in another one.
//
// Run works until its context ends; everything that it started has ended when it
// returns. Any goroutine may call any method.
package ksr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
)

// Why all keys are compared again.
var (
	errOlder     = errors.New("the store came back older than it was")
	errEnded     = errors.New("the watch has ended")
	errContended = errors.New("another process writes the reflected keys")
	errFence     = errors.New("this process may not lead any more")
)

// Deps holds the dependencies of a Reflector. Client and Store are needed.
type Deps struct {
	Log     *slog.Logger // slog's default
	Client  kubernetes.Interface
	Dynamic dynamic.Interface // for custom resources; nil: these are not reflected
	Store   kvdb.Store
	// Fence is called before every write. It returns nil while this process
	// leads; an error that wraps runner.ErrDeposed ends Run. nil: no other
	// process reflects.
	Fence  func(context.Context) error
	Now    func() time.Time // time.Now
	random func() float64   // in [0, 1)
}

// timing holds intervals and limits. A zero field has the default that its
// comment names.
type timing struct {
	retryIn     time.Duration // first wait after an error, doubled after each further one: 250 ms
	retryLimit  time.Duration // longest wait after an error: 15 s
	callTimeout time.Duration // limit of one request to the store, and of one call of the fence: 10 s
	probe       time.Duration // between two reads of the store's revision: 5 s
	sweep       time.Duration // between two comparisons of all keys: 10 minutes
	lookAgain   time.Duration // between two searches for a kind that the API server does not have: 30 s
}

func (s timing) withDefaults() timing {
	s.retryIn = cmp.Or(s.retryIn, 250*time.Millisecond)
	s.retryLimit = cmp.Or(s.retryLimit, 15*time.Second)
	s.callTimeout = cmp.Or(s.callTimeout, 10*time.Second)
	s.probe = cmp.Or(s.probe, 5*time.Second)
	s.sweep = cmp.Or(s.sweep, 10*time.Minute)
	s.lookAgain = cmp.Or(s.lookAgain, 30*time.Second)
	return s
}

func (d Deps) withDefaults() Deps {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.random == nil {
		d.random = rand.Float64
	}
	return d
}

// Reflector copies objects of the API server into the cluster store. Use New.
type Reflector struct {
	deps     Deps
	settings timing
	log      *slog.Logger
	gate     *runner.Gate
	backoff  backoff.Policy
	feeds    []*feed
	queue    *runner.Queue // keys to compare
	changed  chan struct{} // the objects of a kind were read, or the kind is missing
	metrics  *metrics

	// These belong to Run's goroutine.
	stored    map[string]stored // by key, of the reflected kinds
	rev       int64             // highest one seen since the last List
	conflicts map[string]int    // writes of other processes since the last probe, by key

	mu     sync.Mutex
	status Status
	bad    map[string]error // by key
	counts map[string]int   // keys in the store, by resource
}

// stored is the value of a key in the store.
type stored struct {
	value []byte
	rev   int64
	gone  bool // deleted by this process, and the watch has not shown that yet
}

// Status reports what a Reflector has done.
type Status struct {
	Synced    bool      // each kind is known or missing, and all keys were compared
	Connected bool      // the store is followed
	Error     string    // why the store is not followed
	lastSweep time.Time // of the last comparison of all keys; zero: none yet
	Pending   int       // keys that wait to be compared
	kinds     []kindStatus
	rejected  []badObject
}

// kindStatus reports on one kind of object.
type kindStatus struct {
	Resource string // as package kv names it
	State    kindState
	stored   int // keys in the store
	Error    string
}

// kindState says whether the objects of a kind have been read.
type kindState string

// The states.
const (
	stateWaiting kindState = "waiting" // they are being read
	stateSynced  kindState = "synced"  // they are known
	stateMissing kindState = "missing" // the API server does not have the kind, or forbids to read it
)

// badObject is an object that cannot be stored.
type badObject struct {
	Key   string
	Error string
}

// New returns a Reflector that does nothing before Run.
func New(deps Deps) *Reflector { return newReflector(deps, timing{}) }

func newReflector(deps Deps, settings timing) *Reflector {
	deps, settings = deps.withDefaults(), settings.withDefaults()
	r := &Reflector{
		deps:     deps,
		settings: settings,
		log:      deps.Log,
		gate:     runner.NewGate(deps.Fence, settings.callTimeout),
		backoff: backoff.Policy{
			First:  settings.retryIn,
			Limit:  settings.retryLimit,
			Random: deps.random,
		},
		queue:     runner.NewQueue(0, nil, nil),
		changed:   make(chan struct{}, 1),
		stored:    map[string]stored{},
		conflicts: map[string]int{},
		bad:       map[string]error{},
		counts:    map[string]int{},
	}
	for _, k := range kinds(r.deps) {
		r.feeds = append(r.feeds, &feed{kind: k, r: r, state: stateWaiting})
	}
	r.metrics = newMetrics(r)
	return r
}

// Metrics returns the metrics of the Reflector, to be registered once.
func (r *Reflector) Metrics() prometheus.Collector { return r.metrics }

// Status returns what the Reflector has done so far.
func (r *Reflector) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Pending = r.queue.Len()
	for _, f := range r.feeds {
		state, err := f.current()
		k := kindStatus{Resource: f.kind.resource, State: state, stored: r.counts[f.kind.resource]}
		if err != nil {
			k.Error = err.Error()
		}
		s.kinds = append(s.kinds, k)
	}
	for key, err := range r.bad {
		s.rejected = append(s.rejected, badObject{key, err.Error()})
	}
	return s
}

func (r *Reflector) setStatus(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

// Run reflects until ctx ends. It runs once. It fails only if another process
// leads (runner.ErrDeposed), or if the store was closed.
func (r *Reflector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, f := range r.feeds {
		group.Go(func() { f.run(ctx) })
	}
	err := r.reflect(ctx)
	cancel()
	group.Wait()
	return err
}

// reflect follows the store, and begins again after each error.
func (r *Reflector) reflect(ctx context.Context) error {
	for !r.known() {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return nil
		}
	}
	failures := 0
	for {
		began := r.deps.Now()
		err := r.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the context has ended
		}
		if err == nil {
			failures = 0
			continue
		}
		r.metrics.failed(err)
		r.setStatus(func(s *Status) { s.Connected, s.Error = false, err.Error() })
		if errors.Is(err, runner.ErrDeposed) || errors.Is(err, kvdb.ErrClosed) {
			return fmt.Errorf("reflect the API server's state: %w", err)
		}
		if r.deps.Now().Sub(began) > r.settings.retryLimit {
			failures = 0
		}
		failures++
		wait := r.backoff.After(failures)
		r.log.Warn("the cluster store is not up to date, trying again",
			"in", wait.Round(time.Millisecond), "error", err)
		if runner.Wait(ctx, wait) != nil {
			return nil //nolint:nilerr // the context has ended
		}
	}
}

// known reports whether each kind has been read, or cannot be read now. The kinds
// that every API server has are waited for.
func (r *Reflector) known() bool {
	for _, f := range r.feeds {
		if state, err := f.current(); state == stateWaiting && (!f.kind.custom || err == nil) {
			return false
		}
	}
	return true
}
