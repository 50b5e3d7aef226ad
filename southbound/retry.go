// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/backoff"
)

// maxDelay limits a delay that doubles, unless it began higher.
const maxDelay = time.Hour

// attempts plans the repetition of a failed value. It does not change.
type attempts struct {
	policy controller.Retry
	failed int // not counting the transaction's own
	due    time.Time
}

// plan returns the first repetition, nil if the policy has none.
func (s *Scheduler) plan(policy controller.Retry) *attempts {
	if !policy.Enabled || policy.MaxAttempts < 1 {
		return nil
	}
	return (&attempts{policy: policy, failed: -1}).next(s.opt.Now())
}

// next returns the repetition after another failure.
func (a *attempts) next(now time.Time) *attempts {
	wait := backoff.Policy{First: a.policy.Delay}
	if a.policy.ExponentialBackoff {
		wait.Limit = maxDelay
	}
	return &attempts{policy: a.policy, failed: a.failed + 1, due: now.Add(wait.After(a.failed + 2))}
}

func (s *Scheduler) setRetry(it *item, a *attempts) {
	it.retry = a
	if a == nil {
		delete(s.retries, it)
		return
	}
	s.retries[it] = struct{}{}
}

// failure holds a value that failed for the last time.
type failure struct {
	key string
	err error
}

// retry repeats all due values and reports those that failed for the last time.
func (s *Scheduler) retry(ctx context.Context) {
	for _, f := range s.retryDue(ctx) {
		if s.opt.OnFailure != nil {
			s.opt.OnFailure(f.key, f.err)
		}
	}
}

func (s *Scheduler) retryDue(ctx context.Context) (final []failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opt.Now()
	due := map[string]bool{}
	var keys []string
	for it := range s.retries {
		if !it.retry.due.After(now) {
			due[it.key] = true
			keys = append(keys, it.key)
		}
	}
	if s.isClosed || len(keys) == 0 {
		return nil
	}
	r := s.begin(ctx, false)
	r.converge(keys)
	for it, before := range r.before {
		err := r.failed[it.key]
		switch {
		case err == nil:
			s.setRetry(it, nil)
		case ctx.Err() != nil: // an attempt that the context ended counts for nothing
			it.err = before.err
			s.setRetry(it, before.retry)
		case !due[it.key]:
			s.setRetry(it, s.plan(s.policy))
		case before.retry.failed+1 >= before.retry.policy.MaxAttempts:
			s.setRetry(it, nil)
			final = append(final, failure{it.key, err})
		default:
			s.setRetry(it, before.retry.next(s.opt.Now()))
		}
		s.forget(it)
	}
	s.requestSweeps(r, false)
	slices.SortFunc(final, func(x, y failure) int { return strings.Compare(x.key, y.key) })
	return final
}
