// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// difference is a value that is not any more as it was made.
type difference struct {
	it     *item
	actual *value // nil: nothing is there
	unread bool   // the value was only inspected: what is there is not known
}

// changed plans the comparison of a value, or for "" of all values of a kind, with the
// actual state.
func (s *Scheduler) changed(d *Descriptor, key string) {
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	s.work.dirty.add(d, key)
	s.work.repair.request(s.opt.Now().Add(repairDelay))
	s.signal()
}

// takeDirty returns the values that are to be compared now.
func (s *Scheduler) takeDirty() (dirty marks, due bool) {
	now := s.opt.Now()
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	if s.work.resume.taken(now) {
		s.work.dirty.addAll(s.work.held)
		s.work.held = marks{}
		s.work.repair.request(now) // after a comparison that failed, it waits for the next one
	}
	if !s.work.repair.taken(now) {
		return nil, false
	}
	dirty, s.work.dirty = s.work.dirty, marks{}
	return dirty, true
}

// repair compares the values that may have changed with the actual state, and makes those
// that differ, unless they were repaired too often of late.
func (s *Scheduler) repair(ctx context.Context) {
	dirty, due := s.takeDirty()
	if !due {
		return
	}
	err := s.repairValues(ctx, dirty)
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	if err == nil || ctx.Err() != nil {
		s.work.repair.failures = 0
		return
	}
	s.opt.Log.Warn("compare with the actual state: repeated later", "error", err)
	s.work.dirty.addAll(dirty)
	s.work.repair.retry(s.opt.Now())
}

func (s *Scheduler) repairValues(ctx context.Context, dirty marks) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away != nil { // it may be back
		s.work.mu.Lock()
		s.work.back.hasten(s.opt.Now())
		s.work.mu.Unlock()
		return nil
	}
	if s.isClosed || !s.begun { // the first transaction is a resync, which compares all
		return nil
	}
	r := s.begin(ctx, false)
	r.prepared = true
	found, keys, err := r.differences(dirty)
	if r.isAway(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found, held := s.holdBack(found)
	keys = slices.DeleteFunc(keys, func(key string) bool { return held[key] })
	for _, d := range found {
		r.touch(d.it)
		if d.unread {
			d.it.doubt = unread
		} else {
			r.setMade(d.it, d.actual)
		}
		keys = append(keys, d.it.key)
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	r.converge(keys)
	if ctx.Err() != nil {
		return nil // the values are compared by the resync of the next process
	}
	if s.away != nil {
		return nil // they are compared when it is back
	}
	r.finish(s.policy)
	for it, before := range r.before { // a repair does not count as an attempt
		if before.err != nil && it.err != nil {
			s.setRetry(it, before.retry)
		}
	}
	s.requestSweeps(r, false)
	keys = slices.DeleteFunc(keys, func(key string) bool { it := s.items[key]; return it != nil && it.gone() })
	if len(keys) == 0 {
		return nil
	}
	s.opt.Log.Warn("made values again that another program had changed", "keys", keys, "error", r.report())
	return nil
}

// differences compares the values of dirty keys with the actual state. If one differs, the
// values that use it may be gone too, and are compared as well. A few values of a kind with Inspect
// are inspected, so that a transaction does not wait until all of them are read. again has
// failed values: those that a foreign object was in the way of, and if all values of a kind
// are dirty, all of that kind.
func (r *run) differences(dirty marks) (found []difference, again []string, err error) {
	actual := map[*Descriptor]map[string]*value{}
	read := func(d *Descriptor) (err error) {
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
			return nil, nil, err
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
		d := difference{it: it, unread: known}
		if !known {
			if err := read(it.kind); err != nil {
				return nil, nil, err
			}
			d.actual = actual[it.kind][it.key]
			differs = !it.equal(d.actual)
		}
		if it.err != nil && (dirty[it.kind][""] || dirty[it.kind][it.key] && errors.Is(it.err, ErrForeign)) {
			again = append(again, it.key)
		}
		if !differs {
			r.s.repairs.unwait(it.key)
			continue
		}
		found = append(found, d)
		for user := range r.s.users[it.key] {
			queue = append(queue, user.key)
		}
	}
	return found, again, nil
}

// inspect reports whether the made value of an item differs from the actual state. known is
// false if only Retrieve can tell.
func (r *run) inspect(it *item) (differs, known bool) {
	if it.kind.inspect == nil || it.made == nil || !it.made.isRead || it.doubt != sure {
		return false, false
	}
	err := guard(func() error { return it.kind.inspect(r.ctx, it.key, it.made) })
	return err != nil, true
}

// holdBack returns the differences that are repaired now and the keys of the others, whose
// comparison it plans. A value that differs because of another one is repaired together with
// that one, and only the other one counts.
func (s *Scheduler) holdBack(found []difference) (now []difference, held map[string]bool) {
	differs := map[string]bool{}
	for _, d := range found {
		differs[d.it.key] = true
	}
	isDifferent := func(key string) bool { return differs[key] }
	var first time.Duration
	var queue []string
	for _, d := range found {
		if slices.ContainsFunc(slices.Concat(d.it.needs, d.it.uses), isDifferent) {
			continue
		}
		if wait := s.repairs.next(d.it.key, s.opt.Now()); wait > 0 {
			queue = append(queue, d.it.key)
			if first == 0 || wait < first {
				first = wait
			}
		}
	}
	held = map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		if held[queue[0]] {
			continue
		}
		held[queue[0]] = true
		for user := range s.users[queue[0]] {
			if differs[user.key] {
				queue = append(queue, user.key)
			}
		}
	}
	if len(held) == 0 {
		return found, nil
	}
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	s.work.resume.hasten(s.opt.Now().Add(first))
	for _, d := range found {
		if !held[d.it.key] {
			now = append(now, d)
			continue
		}
		key := d.it.key
		if d.it.wanted == nil && d.it.made == nil { // only a comparison of its kind finds it
			key = ""
			s.forget(d.it)
		}
		s.work.held.add(d.it.kind, key)
	}
	return now, held
}
