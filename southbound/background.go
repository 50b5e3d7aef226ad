// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/internal/backoff"
)

const (
	// sweepDelay lets the deletions of a burst gather in one batch.
	sweepDelay = 50 * time.Millisecond
	// repairDelay lets the notices about one change gather.
	repairDelay = 100 * time.Millisecond
	// firstPause and longestPause are between attempts of a sweep, a repair or a watch
	// that fail.
	firstPause   = time.Second
	longestPause = time.Minute
	// inspections limits the values of a kind that a repair inspects one by one: to read
	// all of them is cheaper for more.
	inspections = 16
)

// background holds the work of Run beside retries.
type background struct {
	mu     sync.Mutex
	sweeps map[Descriptor]*plan
	dirty  map[Descriptor]map[string]bool // keys that may not be complete any more; "": all
	repair plan
}

// plan holds the time of a piece of work.
type plan struct {
	due      time.Time // zero: nothing to do
	failures int       // in a row
}

func newBackground() background {
	return background{sweeps: map[Descriptor]*plan{}, dirty: map[Descriptor]map[string]bool{}}
}

// request plans the work, unless it is planned already.
func (p *plan) request(due time.Time) {
	if p.due.IsZero() {
		p.due = due
	}
}

// taken reports whether the work is due, and takes it from the plan.
func (p *plan) taken(now time.Time) bool {
	if p.due.IsZero() || p.due.After(now) {
		return false
	}
	p.due = time.Time{}
	return true
}

// retry plans the work again after a failure.
func (p *plan) retry(now time.Time) {
	p.failures++
	p.due = now.Add(backoff.Policy{First: firstPause, Limit: longestPause}.After(p.failures))
}

// signal wakes Run.
func (s *Scheduler) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // Run is woken already
	}
}

// requestSweeps plans sweeps of the kinds of which the run removes values; after a resync,
// of all kinds.
func (s *Scheduler) requestSweeps(r *run, all bool) {
	removed := map[Descriptor]bool{}
	for _, st := range r.steps {
		if st.after == nil || r.undone {
			removed[st.it.kind] = true
		}
	}
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	for _, d := range s.kinds {
		if _, sweeps := d.(Sweeper); !sweeps || !all && !removed[d] {
			continue
		}
		if s.work.sweeps[d] == nil {
			s.work.sweeps[d] = &plan{}
		}
		s.work.sweeps[d].request(s.opt.Now().Add(sweepDelay))
	}
	s.signal()
}

// Run repeats failed values, sweeps, and repairs what other programs have changed, until
// ctx or the scheduler ends.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer stop()
	for _, d := range s.kinds {
		if w, ok := d.(Watcher); ok {
			watches.Go(func() { s.watch(ctx, d, w) })
		}
	}
	for {
		var timer <-chan time.Time
		if wait, any := s.nextDue(); any {
			timer = s.opt.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.closed:
			return nil
		case <-s.wake:
		case <-timer:
			s.retry(ctx)
			s.repair(ctx)
			s.sweep(ctx)
		}
	}
}

// nextDue returns the time until the next work; any is false if there is none.
func (s *Scheduler) nextDue() (wait time.Duration, any bool) {
	var first time.Time
	consider := func(due time.Time) {
		if !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	s.mu.Lock()
	for it := range s.retries {
		consider(it.retry.due)
	}
	s.mu.Unlock()
	s.work.mu.Lock()
	for _, p := range s.work.sweeps {
		consider(p.due)
	}
	consider(s.work.repair.due)
	s.work.mu.Unlock()
	return max(first.Sub(s.opt.Now()), 0), !first.IsZero()
}

// sweep calls each Sweeper that is due, once.
func (s *Scheduler) sweep(ctx context.Context) {
	for _, d := range s.kinds {
		s.work.mu.Lock()
		p := s.work.sweeps[d]
		due := p != nil && p.taken(s.opt.Now())
		s.work.mu.Unlock()
		if !due || ctx.Err() != nil {
			continue
		}
		var more bool
		err := guard(func() (err error) {
			more, err = d.(Sweeper).Sweep(ctx)
			return err
		})
		s.work.mu.Lock()
		switch {
		case err != nil:
			s.opt.Log.Warn("remove detached objects: repeated later", "kind", d.Name(), "error", err)
			p.retry(s.opt.Now())
		case more:
			p.failures, p.due = 0, s.opt.Now()
		default:
			p.failures = 0
		}
		s.work.mu.Unlock()
	}
}

// watch keeps a Watcher running.
func (s *Scheduler) watch(ctx context.Context, d Descriptor, w Watcher) {
	policy := backoff.Policy{First: firstPause, Limit: longestPause}
	for failures := 1; ; failures++ {
		err := guard(func() error { return w.Watch(ctx, func(key string) { s.changed(d, key) }) })
		if ctx.Err() != nil {
			return
		}
		s.opt.Log.Warn("changes by other programs are not noticed for a while", "kind", d.Name(), "error", err)
		select {
		case <-ctx.Done():
			return
		case <-s.opt.After(policy.After(failures)):
			s.changed(d, "") // what has changed in the meantime is not known
		}
	}
}

// changed plans the comparison of a value, or for "" of all values of a kind, with the
// actual state.
func (s *Scheduler) changed(d Descriptor, key string) {
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	if s.work.dirty[d] == nil {
		s.work.dirty[d] = map[string]bool{}
	}
	s.work.dirty[d][key] = true
	s.work.repair.request(s.opt.Now().Add(repairDelay))
	s.signal()
}

// repair compares the values that may have changed with the actual state, and makes those
// that differ.
func (s *Scheduler) repair(ctx context.Context) {
	s.work.mu.Lock()
	dirty := s.work.dirty
	if !s.work.repair.taken(s.opt.Now()) {
		s.work.mu.Unlock()
		return
	}
	s.work.dirty = map[Descriptor]map[string]bool{}
	s.work.mu.Unlock()

	err := s.repairKeys(ctx, dirty)
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		s.work.repair.failures = 0
		return
	}
	s.opt.Log.Warn("compare with the actual state: repeated later", "error", err)
	for d, keys := range dirty {
		if s.work.dirty[d] == nil {
			s.work.dirty[d] = keys
		} else {
			maps.Copy(s.work.dirty[d], keys)
		}
	}
	s.work.repair.retry(s.opt.Now())
}

func (s *Scheduler) repairKeys(ctx context.Context, dirty map[Descriptor]map[string]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed || !s.begun { // the first transaction is a resync, which compares all
		return nil
	}
	r := s.begin(ctx, false)
	r.prepared = true
	keys, err := r.differing(dirty)
	if err != nil || len(keys) == 0 {
		return err
	}
	r.converge(keys)
	if ctx.Err() != nil {
		return nil // the values are compared by the resync of the next process
	}
	r.finish(s.policy)
	for it, before := range r.before { // a repair does not count as an attempt
		if before.err != nil && it.err != nil {
			s.setRetry(it, before.retry)
		}
	}
	s.requestSweeps(r, false)
	s.opt.Log.Warn("made values again that another program had changed", "keys", keys, "error", r.report())
	return nil
}

// differing takes the actual values of dirty keys as the made ones, and returns those that
// differ. If one differs, the values that use it may be gone too, and are compared as well.
// A few values of an Inspector are inspected, so that a transaction does not wait until all
// of them are read. Of the failed values it returns those that a foreign object was in the
// way of, and if all values of a kind are dirty, all of that kind.
func (r *run) differing(dirty map[Descriptor]map[string]bool) (keys []string, err error) {
	actual := map[Descriptor]map[string]proto.Message{}
	read := func(d Descriptor) (err error) {
		if actual[d] == nil {
			actual[d], err = r.compared(d)
		}
		return err
	}
	var queue []string
	for d, some := range dirty {
		queue = slices.AppendSeq(queue, maps.Keys(some))
		if !some[""] {
			continue
		}
		if err := read(d); err != nil {
			return nil, err
		}
		for key := range actual[d] {
			r.item(key).kind = d
		}
		for key, it := range r.s.items {
			if it.kind == d {
				queue = append(queue, key)
			}
		}
	}
	seen := map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		it := r.s.items[queue[0]]
		if it == nil || it.kind == nil || seen[it.key] {
			continue
		}
		seen[it.key] = true
		differs, known := false, false
		if actual[it.kind] == nil && len(dirty[it.kind]) <= inspections {
			differs, known = r.inspect(it)
		}
		if !known {
			if err := read(it.kind); err != nil {
				return nil, err
			}
			if m := actual[it.kind][it.key]; !it.equal(m) {
				r.touch(it)
				r.setMade(it, m)
				differs = true
			}
		}
		if it.err != nil && (dirty[it.kind][""] || dirty[it.kind][it.key] && errors.Is(it.err, ErrForeign)) {
			keys = append(keys, it.key)
		}
		if differs {
			keys = append(keys, it.key)
			for user := range r.s.users[it.key] {
				queue = append(queue, user.key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// inspect reports whether the made value of an item differs from the actual state; such a
// value is made again as if it were new. known is false if only Retrieve can tell.
func (r *run) inspect(it *item) (differs, known bool) {
	d, ok := it.kind.(Inspector)
	if !ok || it.made == nil || it.doubt != sure {
		return false, false
	}
	if err := guard(func() error { return d.Inspect(r.ctx, it.key, it.made) }); err != nil {
		r.touch(it)
		it.doubt = unread
		return true, true
	}
	return false, true
}
