// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/backoff"
)

// maxDelay limits a delay that doubles, unless it began higher.
const maxDelay = time.Hour

// pending holds a key that is to be tried again.
type pending struct {
	want
	retry    controller.Retry
	attempts int // that failed, not counting the transaction's own
	due      time.Time
}

// next returns the time of the next attempt.
func (p *pending) next(now time.Time) time.Time {
	wait := backoff.Policy{First: p.retry.Delay}
	if p.retry.ExponentialBackoff {
		wait.Limit = maxDelay
	}
	return now.Add(wait.After(p.attempts + 1))
}

// schedule plans the next attempts of the failed keys.
func (s *Sink) schedule(retry controller.Retry, failed []failure) {
	if !retry.Enabled || retry.MaxAttempts < 1 {
		return
	}
	now := s.opt.Now()
	for _, f := range failed {
		if f.invalid == nil {
			p := &pending{want: f.want, retry: retry}
			p.due = p.next(now)
			s.pending[f.key] = p
		}
	}
	select {
	case s.wake <- struct{}{}:
	default: // Run is woken already
	}
}

// Run repeats failed writes until ctx ends or the sink is closed.
func (s *Sink) Run(ctx context.Context) error {
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
		}
	}
}

// nextDue returns the time until the next attempt; any is false if there is none.
func (s *Sink) nextDue() (wait time.Duration, any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opt.Now()
	for _, p := range s.pending {
		if d := max(p.due.Sub(now), 0); !any || d < wait {
			wait, any = d, true
		}
	}
	return wait, any
}

// retry repeats all due writes and reports those that failed for the last time.
func (s *Sink) retry(ctx context.Context) {
	final := s.retryDue(ctx)
	slices.SortFunc(final, func(x, y failure) int { return strings.Compare(x.key, y.key) })
	for _, f := range final {
		if s.opt.OnFailure != nil {
			s.opt.OnFailure(f.key, f.err)
		}
	}
}

func (s *Sink) retryDue(ctx context.Context) (final []failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel == nil {
		return nil
	}
	now := s.opt.Now()
	var wants []want
	for _, key := range slices.Sorted(maps.Keys(s.pending)) {
		if p := s.pending[key]; !p.due.After(now) {
			wants = append(wants, p.want)
		}
	}
	failed, _ := s.apply(
		ctx,
		&change{form: s.form, kernel: s.kernel},
		wants,
		controller.Transaction{Method: controller.Update},
	)
	if ctx.Err() != nil {
		return nil // an attempt that the context ended counts for nothing
	}
	errs := map[string]error{}
	for _, f := range failed {
		errs[f.key] = f.err
	}
	for _, w := range wants {
		p, err := s.pending[w.key], errs[w.key]
		p.attempts++
		switch {
		case err == nil:
			delete(s.pending, w.key)
		case p.attempts >= p.retry.MaxAttempts:
			delete(s.pending, w.key)
			final = append(final, failure{w, err})
		default:
			p.due = p.next(s.opt.Now())
		}
	}
	return final
}
