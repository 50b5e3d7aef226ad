// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cadastre/cadastre/controller"
)

// ErrAway is wrapped by the errors of a Kind while the program that makes the values, such
// as VPP, is away. The scheduler then takes all values as pending, of all kinds, and calls no
// kind but to undo a change, until Run can retrieve the values of all kinds.
var ErrAway = errors.New("the data plane is away")

// Away returns the reason why all values wait, nil if they do not.
func (s *Scheduler) Away() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// isAway reports whether an error means that the data plane is away. What is made is then not
// known any more.
func (r *run) isAway(err error) bool {
	if !errors.Is(err, ErrAway) {
		return false
	}
	s := r.s
	if s.away == nil {
		s.opt.Log.Warn("the data plane is away: all values wait", "error", err)
		for _, d := range s.kinds {
			r.unread(d)
		}
		s.work.mu.Lock()
		s.work.back = plan{}
		s.work.back.retry(s.opt.Now())
		s.work.mu.Unlock()
		s.signal()
	}
	s.away = err
	return true
}

// isWaiting reports whether an item waits for the data plane.
func (s *Scheduler) isWaiting(it *item) bool { return s.away != nil && it.kind != nil }

// await leaves an item until the data plane is back.
func (r *run) await(it *item) {
	if it.err != nil {
		r.touch(it)
		it.err = nil
		r.s.setRetry(it, nil)
	}
}

// waitsFor returns what a wanted value waits for.
func (s *Scheduler) waitsFor(it *item) []string {
	if s.isWaiting(it) {
		return []string{s.away.Error()}
	}
	return s.missing(it)
}

// comeBack tries to read a data plane that was away.
func (s *Scheduler) comeBack(ctx context.Context) {
	s.work.mu.Lock()
	due := s.work.back.taken(s.opt.Now())
	s.work.mu.Unlock()
	if !due {
		return
	}
	if failed, back := s.readAgain(ctx); back && s.opt.OnReturn != nil {
		s.opt.OnReturn(failed)
	}
}

// readAgain reads a data plane that was away. If it is back, what is wanted by now is made, as
// by a resync.
func (s *Scheduler) readAgain(ctx context.Context) (failed controller.ValueErrors, back bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed || s.away == nil {
		return nil, false
	}
	r := s.begin(ctx, false)
	err := r.readAll()
	s.work.mu.Lock()
	if err != nil {
		s.away = err
		s.work.back.retry(s.opt.Now())
	} else {
		s.away, s.work.back = nil, plan{}
	}
	s.work.mu.Unlock()
	if err != nil || !s.begun { // the first transaction is a resync, which compares all
		return nil, false
	}
	r.prepared = true
	r.converge(slices.Collect(maps.Keys(s.items)))
	if ctx.Err() != nil {
		return nil, false // the next process compares all
	}
	r.finish(s.policy)
	s.requestSweeps(r, true)
	s.opt.Log.Info("the data plane is back", "failed", len(r.failed))
	return r.failed, s.away == nil
}

// readAll takes the actual values of all kinds as the made ones.
func (r *run) readAll() error {
	all := map[*Descriptor]map[string]*value{}
	for _, d := range r.s.kinds {
		actual, err := r.compared(d)
		if err != nil {
			return err
		}
		all[d] = actual
	}
	for _, d := range r.s.kinds {
		r.adopt(d, all[d])
	}
	return nil
}
