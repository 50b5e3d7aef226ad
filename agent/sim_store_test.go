// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// simStore is the cluster store of a simulation, and what may befall it.
type simStore struct {
	mu         sync.Mutex
	inner      *mem.Store
	epoch      int         // how often it was wiped or set back
	past       [][]kvdb.Op // what has led here from an empty store
	compacted  int64
	leaderless bool
	lax        bool                         // sabotage: no condition is looked at
	written    func(op kvdb.Op, old []byte) // called for each write, under mu; may be nil
}

func newSimStore() *simStore { return &simStore{inner: mem.New()} }

func (s *simStore) txn(conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lax {
		conds = nil
	}
	ctx := context.Background()
	old := make([][]byte, len(ops))
	for i, op := range ops {
		have, _, _ := s.inner.Get(ctx, op.Key)
		old[i] = have.Value
	}
	_, was, _ := s.inner.List(ctx, "none/")
	rev, err := s.inner.Txn(ctx, conds, ops)
	if err != nil || rev == was {
		return rev, err
	}
	s.past = append(s.past, ops)
	for i, op := range ops {
		if s.written != nil {
			s.written(op, old[i])
		}
	}
	return rev, nil
}

// all returns the values below prefixes.
func (s *simStore) all(prefixes ...string) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	kvs, _, _ := s.inner.List(context.Background(), prefixes...)
	values := map[string][]byte{}
	for _, x := range kvs {
		values[x.Key] = x.Value
	}
	return values
}

// set writes, whatever is there; nil deletes.
func (s *simStore) set(key string, value []byte) {
	_, _ = s.txn(nil, []kvdb.Op{{Key: key, Value: value, Delete: value == nil}})
}

func (s *simStore) age() (epoch, transactions int, leaderless bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, len(s.past), s.leaderless
}

// setBack makes the store what it was after n transactions; 0 wipes it. All
// connections to it end. Revisions are again what they were.
func (s *simStore) setBack(n int) {
	s.mu.Lock()
	old := s.inner
	s.inner, s.past, s.compacted = mem.New(), s.past[:n:n], 0
	for _, ops := range s.past {
		_, _ = s.inner.Txn(context.Background(), nil, ops)
	}
	s.epoch++
	s.mu.Unlock()
	_ = old.Close()
}

// compact forgets the history so far.
func (s *simStore) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = int64(len(s.past))
}

func (s *simStore) setLeaderless(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaderless = is
}

// netMode represents the state of a machine's link to the store.
type netMode int

const (
	netOpen    netMode = iota
	netCut             // nothing comes through, without an error
	netRefused         // connections end, and none is made
	netSilent          // requests are answered, watches say nothing
)

func (m netMode) String() string { return []string{"open", "cut", "refused", "silent"}[m] }

// simNet is a machine's way to the store.
type simNet struct {
	mu        sync.Mutex
	mode      netMode
	latency   time.Duration // there and back
	tears     int           // so many answers to transactions are lost
	lost      time.Time     // when the last one was
	keepAlive bool          // a silent watch notices it by itself
	changed   chan struct{} // closed by the next change
}

func (n *simNet) now() (netMode, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mode, n.changed
}

func (n *simNet) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	if n.changed != nil {
		close(n.changed)
	}
	n.changed = make(chan struct{})
}

func (n *simNet) lag() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.latency
}

func (n *simNet) tear() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tears == 0 {
		return false
	}
	n.tears--
	n.lost = time.Now()
	return true
}

func (n *simNet) torn() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost
}

func (n *simNet) patient() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.keepAlive
}

// As in kvdb/etcd.
const (
	simTimeout = 5 * time.Second // of a request
	simSilence = 6 * time.Second // of a watch, until it takes its member for dead
)

var (
	errSimDead    = errors.New("the process is dead")
	errSimRefused = errors.New("connection refused")
	errSimAnswer  = errors.New("no answer in time")
	errSimBroken  = errors.New("the connection broke")
)

// simLink is one process's store: the cluster's, over the machine's network.
type simLink struct {
	store *simStore
	net   *simNet
	dead  *atomic.Bool
	heard func() // an answer came

	mu     sync.Mutex
	listed map[int64]int // the epoch of revisions that were listed
}

var _ kvdb.Store = (*simLink)(nil)

// reach waits for the way to be open.
func (l *simLink) reach(ctx context.Context) error {
	timeout := time.NewTimer(simTimeout)
	defer timeout.Stop()
	for {
		mode, changed := l.net.now()
		_, _, leaderless := l.store.age()
		switch {
		case l.dead.Load():
			return errSimDead
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case mode == netRefused:
			return errSimRefused
		case mode != netCut && !leaderless:
			return nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return errSimAnswer
		case <-ctx.Done():
		}
	}
}

// pause is half of the latency.
func (l *simLink) pause(ctx context.Context) error {
	select {
	case <-time.After(l.net.lag() / 2):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// there is the way of a request, back that of its answer.
func (l *simLink) there(ctx context.Context) error {
	if err := l.reach(ctx); err != nil {
		return err
	}
	if err := l.pause(ctx); err != nil {
		return err
	}
	return l.reach(ctx)
}

func (l *simLink) back(ctx context.Context) error {
	if err := l.pause(ctx); err != nil {
		return err
	}
	err := l.reach(ctx)
	if err == nil {
		l.heard()
	}
	return err
}

// Get implements kvdb.Store.
func (l *simLink) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	if err := l.there(ctx); err != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, err)
	}
	l.store.mu.Lock()
	x, found, err := l.store.inner.Get(ctx, key)
	l.store.mu.Unlock()
	if lost := l.back(ctx); lost != nil {
		return kvdb.KeyValue{}, false, fmt.Errorf("get %q: %w", key, lost)
	}
	return x, found, err
}

// List implements kvdb.Store.
func (l *simLink) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if err := l.there(ctx); err != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, err)
	}
	l.store.mu.Lock()
	kvs, rev, err := l.store.inner.List(ctx, prefixes...)
	epoch := l.store.epoch
	l.store.mu.Unlock()
	if lost := l.back(ctx); lost != nil {
		return nil, 0, fmt.Errorf("list %q: %w", prefixes, lost)
	}
	l.mu.Lock()
	l.listed[rev] = epoch
	l.mu.Unlock()
	return kvs, rev, err
}

// Txn implements kvdb.Store. What was sent arrives, whatever becomes of its sender.
func (l *simLink) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if err := l.reach(ctx); err != nil {
		return 0, fmt.Errorf("apply transaction: %w", err)
	}
	type answer struct {
		rev int64
		err error
	}
	answered, torn := make(chan answer, 1), l.net.tear()
	time.AfterFunc(l.net.lag()/2, func() {
		mode, _ := l.net.now()
		if _, _, leaderless := l.store.age(); mode == netCut || mode == netRefused || leaderless {
			return
		}
		rev, err := l.store.txn(conds, ops)
		if !torn {
			answered <- answer{rev, err}
		}
	})
	timeout := time.NewTimer(simTimeout)
	defer timeout.Stop()
	select {
	case a := <-answered:
		if lost := l.back(ctx); lost != nil {
			return 0, fmt.Errorf("apply transaction: %w", lost)
		}
		return a.rev, a.err
	case <-timeout.C:
		return 0, fmt.Errorf("apply transaction: %w", errSimAnswer)
	case <-ctx.Done():
		return 0, fmt.Errorf("apply transaction: %w", context.Cause(ctx))
	}
}

// Probe says whether the store is there, and the watches are alive.
func (l *simLink) Probe(ctx context.Context) error {
	if mode, _ := l.net.now(); mode == netSilent {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := l.there(ctx); err != nil {
		return err
	}
	return l.back(ctx)
}

// Close implements kvdb.Store.
func (l *simLink) Close() error { return nil }

// Watch implements kvdb.Store. As with kvdb/etcd it is refused where the store
// has become another one since the revision was read.
func (l *simLink) Watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	err := l.there(ctx)
	if err == nil {
		err = l.back(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("watch %q: %w", prefix, err)
	}
	l.mu.Lock()
	epoch, known := l.listed[from-1]
	l.mu.Unlock()
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	switch {
	case from != 0 && (!known || epoch != l.store.epoch):
		return nil, fmt.Errorf("watch %q: %w since the revision was read", prefix, errSimBroken)
	case from != 0 && from <= l.store.compacted:
		return nil, fmt.Errorf("watch %q: %w", prefix, kvdb.ErrCompacted)
	}
	w := &simWatch{link: l, events: make(chan []kvdb.Event), ended: make(chan struct{})}
	w.ctx, w.stop = context.WithCancel(ctx)
	if w.inner, err = l.store.inner.Watch(w.ctx, prefix, from); err != nil {
		w.stop()
		return nil, err
	}
	go w.run()
	return w, nil
}

// simWatch is a watch over the machine's network.
type simWatch struct {
	link   *simLink
	inner  kvdb.Watcher
	events chan []kvdb.Event
	ctx    context.Context
	stop   context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

func (w *simWatch) Events() <-chan []kvdb.Event { return w.events }

func (w *simWatch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *simWatch) Close() {
	w.stop()
	<-w.ended
}

func (w *simWatch) run() {
	defer close(w.ended)
	err := w.follow()
	w.inner.Close()
	w.stop()
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	close(w.events)
}

// follow delivers while the network lets it.
func (w *simWatch) follow() error {
	var waiting []kvdb.Event
	var silence <-chan time.Time
	late, over := false, false
	for {
		mode, changed := w.link.net.now()
		_, _, leaderless := w.link.store.age()
		in, out := w.inner.Events(), chan<- []kvdb.Event(nil)
		if waiting != nil || over {
			in = nil
		}
		switch {
		case mode == netRefused, leaderless && mode == netOpen, mode == netOpen && over:
			return errSimBroken
		case mode == netOpen && late && w.forgotten(waiting):
			return kvdb.ErrCompacted
		case mode == netOpen && waiting != nil:
			out = w.events
		case mode != netOpen && silence == nil && !w.link.net.patient():
			silence = time.After(simSilence)
		}
		if mode == netOpen {
			silence = nil
		}
		late = late || waiting != nil && mode != netOpen
		select {
		case <-w.ctx.Done():
			return nil
		case <-changed:
		case <-silence:
			return fmt.Errorf("%w: no sign of life", errSimBroken)
		case batch, open := <-in:
			waiting, over, late = batch, !open, false
			if open && w.link.pause(w.ctx) != nil {
				return nil //nolint:nilerr // the watch was closed
			}
		case out <- waiting:
			waiting = nil
		}
	}
}

func (w *simWatch) forgotten(batch []kvdb.Event) bool {
	w.link.store.mu.Lock()
	defer w.link.store.mu.Unlock()
	return slices.ContainsFunc(batch, func(ev kvdb.Event) bool { return ev.ModRevision <= w.link.store.compacted })
}
