// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"sync"
	"time"

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
	sweeps map[*Descriptor]*plan
	dirty  marks // values that may not be complete any more
	repair plan
	held   marks // values that differ, and are repaired later
	resume plan  // of the comparison of held values
	back   plan  // of the reading of a data plane that was away
}

// marks holds keys of values by kind; "" stands for all values of the kind.
type marks map[*Descriptor]map[string]bool

func (m marks) add(d *Descriptor, key string) {
	if m[d] == nil {
		m[d] = map[string]bool{}
	}
	m[d][key] = true
}

func (m marks) addAll(more marks) {
	for d, keys := range more {
		for key := range keys {
			m.add(d, key)
		}
	}
}

// plan holds the time of a piece of work.
type plan struct {
	due      time.Time // zero: nothing to do
	failures int       // in a row
}

func newBackground() background {
	return background{sweeps: map[*Descriptor]*plan{}, dirty: marks{}, held: marks{}}
}

// request plans the work, unless it is planned already.
func (p *plan) request(due time.Time) {
	if p.due.IsZero() {
		p.due = due
	}
}

// hasten plans the work, no later than due.
func (p *plan) hasten(due time.Time) {
	if p.due.IsZero() || due.Before(p.due) {
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
	removed := map[*Descriptor]bool{}
	for _, st := range r.steps {
		if st.after == nil || r.undone {
			removed[st.it.kind] = true
		}
	}
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	for _, d := range s.kinds {
		if d.sweep == nil || !all && !removed[d] {
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
		if d.watch != nil {
			watches.Go(func() { s.watch(ctx, d) })
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
			s.comeBack(ctx)
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
	consider(s.work.resume.due)
	consider(s.work.back.due)
	s.work.mu.Unlock()
	return max(first.Sub(s.opt.Now()), 0), !first.IsZero()
}

// sweep calls each Sweep that is due, once.
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
			more, err = d.sweep(ctx)
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

// watch keeps the Watch of a kind running.
func (s *Scheduler) watch(ctx context.Context, d *Descriptor) {
	policy := backoff.Policy{First: firstPause, Limit: longestPause}
	for failures := 1; ; failures++ {
		err := guard(func() error { return d.watch(ctx, func(key string) { s.changed(d, key) }) })
		if ctx.Err() != nil {
			return
		}
		s.opt.Log.Warn("changes by other programs are not noticed for a while", "kind", d.Name(), "error", err)
		select {
		case <-ctx.Done():
			return
		case <-s.opt.After(policy.After(failures)):
			s.changed(d, "") // also if the next watch cannot begin
		}
	}
}
