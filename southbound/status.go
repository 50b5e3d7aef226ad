// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Status counts and names the values by their state. A failed value may also be made: the
// made value is then an earlier one.
type Status struct {
	Made    int
	Pending []Pending // ordered by key
	Failed  []Failed  // ordered by key
	Notes   []string  // of kinds
}

// Pending names a value that is wanted and waits for others.
type Pending struct {
	Key      string
	WaitsFor []string // keys of values that are not made, or its own release
}

// Failed names a value whose last attempt failed, or that another program has changed so often
// that its next repair waits.
type Failed struct {
	Key     string
	Error   string
	Foreign bool      // an object of another program is in the way
	Retry   time.Time // of the next attempt; zero: not before the next transaction that covers it
}

// Status returns the state of all values.
func (s *Scheduler) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st Status
	for _, it := range s.items {
		if it.ready() && it.doubt != broken && !s.isWaiting(it) {
			st.Made++
		}
		switch {
		case it.gone():
			st.Pending = append(st.Pending, Pending{it.key, []string{"its release: " + it.err.Error()}})
		case it.err != nil:
			f := Failed{Key: it.key, Error: it.err.Error(), Foreign: errors.Is(it.err, ErrForeign)}
			if it.retry != nil {
				f.Retry = it.retry.due
			}
			st.Failed = append(st.Failed, f)
		case it.wanted != nil && (!it.ready() || s.isWaiting(it)):
			st.Pending = append(st.Pending, Pending{it.key, s.waitsFor(it)})
		}
	}
	for key, r := range s.repairs {
		if it := s.items[key]; it != nil && it.err == nil && !r.due.IsZero() {
			text := fmt.Sprintf("another program has changed it again, after %d repairs", r.count)
			st.Failed = append(st.Failed, Failed{Key: key, Error: text, Retry: r.due})
		}
	}
	if s.away != nil {
		st.Notes = append(st.Notes, s.away.Error())
	}
	if note := s.repairs.note(s.opt.Now()); note != "" {
		st.Notes = append(st.Notes, note)
	}
	for _, d := range s.kinds {
		st.Notes = append(st.Notes, d.Notes()...)
	}
	slices.SortFunc(st.Pending, func(x, y Pending) int { return cmp.Compare(x.Key, y.Key) })
	slices.SortFunc(st.Failed, func(x, y Failed) int { return cmp.Compare(x.Key, y.Key) })
	return st
}

// Problem returns the reason why the wanted value under key is not made, nil if it is made or
// nothing is wanted there. It does not ask the kind.
func (s *Scheduler) Problem(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[key]
	switch {
	case it == nil || it.wanted == nil:
		return nil
	case it.err != nil:
		return fmt.Errorf("%s is not made: %w", key, it.err)
	case s.isWaiting(it):
		return fmt.Errorf("%s is not made: %w", key, s.away)
	case !it.ready():
		return fmt.Errorf("%s is not made: it waits for %q", key, s.missing(it))
	}
	return nil
}

// Inspect compares the value under key with the actual state, and returns the difference,
// nil if there is none.
func (s *Scheduler) Inspect(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.items[key]
	switch {
	case s.isClosed:
		return fmt.Errorf("inspect %s: %w", key, errClosed)
	case it == nil || it.wanted == nil:
		return fmt.Errorf("inspect %s: nothing is wanted there", key)
	case it.err != nil:
		return fmt.Errorf("inspect %s: %w", key, it.err)
	case s.isWaiting(it):
		return fmt.Errorf("inspect %s: %w", key, s.away)
	case !it.ready():
		return fmt.Errorf("inspect %s: it waits for %q", key, s.missing(it))
	case it.kind == nil:
		return nil
	}
	if it.kind.inspect != nil {
		if err := it.kind.inspect(ctx, key, it.wanted); err != nil {
			return fmt.Errorf("inspect %s: %w", key, err)
		}
		return nil
	}
	values, err := it.kind.retrieve(ctx, []wanted{{key, it.wanted}})
	if err != nil {
		return fmt.Errorf("inspect %s: %w", key, err)
	}
	for _, v := range values {
		if v.Key != key {
			continue
		}
		if have := (&item{key: key, kind: it.kind, made: s.found(it.kind, v)}); !have.equal(it.wanted) {
			return fmt.Errorf("inspect %s: it is %v, not %v", key, v.Message, it.wanted.message)
		}
		return nil
	}
	return fmt.Errorf("inspect %s: it is missing", key)
}
