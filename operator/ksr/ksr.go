// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ksr is the Kubernetes state reflector: it keeps a copy of what agents
// need of the API server in the cluster store, under the keys and in the words
// of package kv. Reflected are pods that are on a node, nodes, and where the
// API server has them custom networks and node configurations.
//
// # Who owns what
//
// The API server is the truth. A Reflector owns the keys of the kinds that it
// reflects, and no others: node records, beats, pools and what configures the
// southbound are never touched. Keys of a kind whose objects have never all been
// read, as the API server does not have it, are left as they are, so that
// nothing is deleted for want of evidence. An object that cannot be stored is
// reported; what was stored of it stays, and nobody else is harmed.
//
// # How
//
// Whatever happens, an object or a key that changes, only says which key to
// look at. Then what the caches have is compared with what the store has, by
// value, and the difference is written, up to kvdb.MaxOps keys a transaction.
// All keys are looked at (mark and sweep) when a Reflector begins, after every
// error of the store, when a watch of it ends, when its revision goes back, when
// a kind comes to be there, and once in a while. The store's own changes are
// watched, so that what somebody else has changed or lost is put right at once.
//
// Before every transaction Deps.Fence is asked whether this process still leads.
// One that was under way while another process took over may still arrive; the
// new leader sees it, and writes what is right.
//
// A Releaser is another matter: it gives up the node IDs of nodes that are gone,
// in the same store or in another one.
//
// Run works until its context ends, and everything that it has started has ended
// when it returns. All methods may be called from any goroutine.
//
// Example:
//
//	r := ksr.New(ksr.Deps{Client: client, Dynamic: dynamic, Store: store, Fence: fence, Log: log}, ksr.Settings{})
//	registry.MustRegister(r.Metrics())
//	err := r.Run(ctx)
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

	"github.com/cadastre/cadastre/kvdb"
)

// ErrDeposed is wrapped by the Fence of a process that leads no more.
var ErrDeposed = errors.New("another process leads now")

// Why all keys are looked at again.
var (
	errOlder  = errors.New("the store came back older than it was")
	errEnded  = errors.New("the watch has ended")
	errFought = errors.New("somebody else writes what is reflected here")
	errFence  = errors.New("it is not certain that this process leads")
)

// Deps are what a Reflector is given. Client and Store are needed.
type Deps struct {
	Log     *slog.Logger // slog's default
	Client  kubernetes.Interface
	Dynamic dynamic.Interface // for custom resources; none: these are not reflected
	Store   kvdb.Store
	// Fence is asked before anything is written. It returns nil while this
	// process leads; an error that wraps ErrDeposed ends Run. None: nobody else
	// reflects.
	Fence  func(context.Context) error
	Now    func() time.Time // time.Now
	Random func() float64   // in [0, 1)
}

// Settings say how long what takes. What is zero has the default that its
// comment names.
type Settings struct {
	RetryIn     time.Duration // after the store failed: 250 ms, then twice as long
	RetryLimit  time.Duration // at most: 15 s
	CallTimeout time.Duration // of one request to the store or to the fence: 10 s
	Probe       time.Duration // how often the store is asked for its revision: 5 s
	Sweep       time.Duration // how often all keys are looked at, whatever was missed: 10 minutes
	LookAgain   time.Duration // for kinds that the API server does not have: 30 s
}

func (s Settings) withDefaults() Settings {
	s.RetryIn = cmp.Or(s.RetryIn, 250*time.Millisecond)
	s.RetryLimit = cmp.Or(s.RetryLimit, 15*time.Second)
	s.CallTimeout = cmp.Or(s.CallTimeout, 10*time.Second)
	s.Probe = cmp.Or(s.Probe, 5*time.Second)
	s.Sweep = cmp.Or(s.Sweep, 10*time.Minute)
	s.LookAgain = cmp.Or(s.LookAgain, 30*time.Second)
	return s
}

func (d Deps) withDefaults() Deps {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Random == nil {
		d.Random = rand.Float64
	}
	if d.Fence == nil {
		d.Fence = func(context.Context) error { return nil }
	}
	return d
}

// Reflector reflects. Use New.
type Reflector struct {
	deps     Deps
	settings Settings
	log      *slog.Logger
	feeds    []*feed
	queue    *queue
	changed  chan struct{} // a kind has come to be known, or not to be there
	metrics  *metrics

	// Of Run's loop only.
	stored map[string]stored // by key, of the reflected kinds
	rev    int64             // the highest one seen since the last List
	fights map[string]int    // how often others have written a key since the last probe

	mu     sync.Mutex
	status Status
	bad    map[string]error // by key
	counts map[string]int   // keys in the store, by resource
}

// stored is what the store has under a key.
type stored struct {
	value []byte
	rev   int64
	gone  bool // we have deleted it, and have not seen that yet
}

// Status is how a Reflector stands.
type Status struct {
	Synced    bool      // all kinds are known or not there, and all keys were looked at
	Connected bool      // the store is followed
	Error     string    // why it is not
	LastSweep time.Time // when all keys were last looked at; zero for never
	Pending   int       // keys that are to be looked at
	Kinds     []KindStatus
	Bad       []Bad
}

// KindStatus is how a kind stands.
type KindStatus struct {
	Resource string // as package kv names it
	State    State
	Stored   int // keys
	Error    string
}

// State is how far the objects of a kind are known.
type State string

// The states.
const (
	Waiting State = "waiting" // they are being read
	Synced  State = "synced"  // they are known
	Missing State = "missing" // the API server does not have the kind, or does not let us read it
)

// Bad is an object that cannot be stored.
type Bad struct {
	Key   string
	Error string
}

// New makes a Reflector, which does nothing before Run.
func New(deps Deps, settings Settings) *Reflector {
	r := &Reflector{
		deps: deps.withDefaults(), settings: settings.withDefaults(), queue: newQueue(), changed: make(chan struct{}, 1),
		stored: map[string]stored{}, fights: map[string]int{}, bad: map[string]error{}, counts: map[string]int{},
	}
	r.log = r.deps.Log
	for _, k := range kinds(r.deps) {
		r.feeds = append(r.feeds, &feed{kind: k, r: r, state: Waiting})
	}
	r.metrics = newMetrics(r)
	return r
}

// Metrics are to be registered once.
func (r *Reflector) Metrics() prometheus.Collector { return r.metrics }

// Status tells how the Reflector stands.
func (r *Reflector) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Pending = r.queue.len()
	for _, f := range r.feeds {
		state, err := f.look()
		k := KindStatus{Resource: f.kind.resource, State: state, Stored: r.counts[f.kind.resource]}
		if err != nil {
			k.Error = err.Error()
		}
		s.Kinds = append(s.Kinds, k)
	}
	for key, err := range r.bad {
		s.Bad = append(s.Bad, Bad{key, err.Error()})
	}
	return s
}

func (r *Reflector) setStatus(f func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

// Run reflects until ctx ends. It runs once. It fails only where another process
// leads (ErrDeposed), or the store was closed.
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

// reflect follows the store, again and again.
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
			return nil
		}
		if err == nil {
			failures = 0
			continue
		}
		r.metrics.failed(err)
		r.setStatus(func(s *Status) { s.Connected, s.Error = false, err.Error() })
		if errors.Is(err, ErrDeposed) || errors.Is(err, kvdb.ErrClosed) {
			return fmt.Errorf("reflect the API server's state: %w", err)
		}
		if r.deps.Now().Sub(began) > r.settings.RetryLimit {
			failures = 0
		}
		failures++
		wait := r.backoff(failures)
		r.log.Warn("the cluster store cannot be kept up, trying again", "in", wait.Round(time.Millisecond), "error", err)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// leads asks the fence.
func (r *Reflector) leads(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.settings.CallTimeout)
	defer cancel()
	if err := r.deps.Fence(ctx); err != nil {
		return fmt.Errorf("%w: %w", errFence, err)
	}
	return nil
}

// known is true when each kind is synced or cannot be had. Those that Kubernetes
// always has can be had.
func (r *Reflector) known() bool {
	for _, f := range r.feeds {
		if state, err := f.look(); state == Waiting && (!f.kind.custom || err == nil) {
			return false
		}
	}
	return true
}

// backoff is how long to wait after so many failures in a row.
func (r *Reflector) backoff(failures int) time.Duration {
	limit := r.settings.RetryIn
	for range failures - 1 {
		limit = min(2*limit, r.settings.RetryLimit)
	}
	return limit/2 + time.Duration(r.deps.Random()*float64(limit/2))
}

// sleep is false when the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
