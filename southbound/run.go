// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cadastre/cadastre/controller"
)

// run makes wanted values true, once, and can undo that.
type run struct {
	s        *Scheduler
	ctx      context.Context
	reverts  bool
	prepared bool // the actual state has just been read
	stopped  bool // after the first failure of a run that reverts
	undone   bool

	postponed bool // a removal, until that of a user has ended
	failed    controller.ValueErrors
	invalid   map[string]error      // values that can never be made
	broken    map[*Descriptor]error // kinds whose actual state could not be read
	scope     map[*item]bool        // items that the run may change
	before    map[*item]item        // as they were before the run touched them
	steps     []step
}

// step holds one change that a kind has made, or has failed to complete.
type step struct {
	it            *item
	before, after *value
	stood         bool  // before only stood in for a pending value
	doubt         doubt // of before, if the change has failed
}

func (s *Scheduler) begin(ctx context.Context, reverts bool) *run {
	return &run{
		s:       s,
		ctx:     ctx,
		reverts: reverts,
		failed:  controller.ValueErrors{},
		invalid: map[string]error{},
		broken:  map[*Descriptor]error{},
		scope:   map[*item]bool{},
		before:  map[*item]item{},
	}
}

// touch keeps the state of an item before the run first changes it.
func (r *run) touch(it *item) {
	if _, kept := r.before[it]; !kept {
		r.before[it] = *it
	}
}

// converge makes the items of keys true, and those that depend on them: first removals,
// then the rest.
func (r *run) converge(keys []string) {
	all := r.closure(keys)
	r.prepare(all)
	for range all { // once, or more often if a removal is postponed
		r.postponed = false
		for _, it := range all {
			if it.wanted == nil {
				r.remove(it)
			}
		}
		for _, it := range all {
			r.ensure(it)
		}
		if !r.postponed {
			break
		}
	}
	for _, it := range all {
		if !r.stopped && r.failed[it.key] == nil && !r.converged(it) {
			r.fail(it, errors.New("a value that uses it, or that it needs, has failed"))
		}
	}
}

// converged reports whether an item is made or pending as it is wanted.
func (r *run) converged(it *item) bool {
	if r.s.away != nil {
		return true
	}
	if len(r.s.missing(it)) > 0 {
		return !it.ready()
	}
	return it.gone() || it.equal(it.wanted)
}

// closure returns the items of keys and those that depend on them, in order.
func (r *run) closure(keys []string) []*item {
	var all []*item
	add := func(it *item) {
		if it != nil && !r.scope[it] {
			r.scope[it] = true
			all = append(all, it)
		}
	}
	for _, key := range keys {
		add(r.s.items[key])
	}
	for i := 0; i < len(all); i++ {
		for user := range r.s.users[all[i].key] {
			add(user)
		}
	}
	slices.SortFunc(all, func(x, y *item) int { return cmp.Compare(x.key, y.key) })
	return all
}

// prepare lets each kind read the actual state for the items that may change.
func (r *run) prepare(all []*item) {
	if r.prepared || r.s.away != nil || context.Cause(r.ctx) != nil {
		return
	}
	keys := map[*Descriptor][]string{}
	for _, it := range all {
		if it.kind != nil {
			keys[it.kind] = append(keys[it.kind], it.key)
		}
	}
	for _, d := range r.s.kinds {
		if d.prepare == nil || keys[d] == nil {
			continue
		}
		prepare := func(ctx context.Context) error { return d.prepare(ctx, keys[d]) }
		err := r.call("read", d, "", prepare)
		if r.isAway(err) {
			return
		}
		if err != nil {
			r.broken[d] = err
		}
	}
}

// blocked returns the reason why no value of the item's kind can be changed now.
func (r *run) blocked(it *item) error {
	if err := context.Cause(r.ctx); err != nil {
		return err
	}
	return r.broken[it.kind]
}

// ensure makes the wanted value of an item, after those that it depends on and before
// those that wait for it. It suspends a made value whose successor is pending.
func (r *run) ensure(it *item) {
	if it.wanted == nil || r.stopped || it.ensuring || r.failed[it.key] != nil {
		return
	}
	it.ensuring = true
	defer func() { it.ensuring = false }()
	for _, key := range it.needs {
		if d := r.s.items[key]; d != nil && r.scope[d] {
			r.ensure(d)
		}
	}
	if r.stopped {
		return
	}
	if r.s.isWaiting(it) {
		r.await(it)
		return
	}
	if len(r.s.missing(it)) > 0 {
		r.suspend(it)
		return
	}
	if it.made != nil && it.doubt == sure && it.equal(it.wanted) {
		r.done(it, it.wanted)
		return
	}
	fresh := !it.ready()
	if r.recreates(it) {
		r.remove(it)
		fresh = true
		if it.made != nil || r.failed[it.key] != nil || r.stopped {
			return
		}
	}
	if err := r.make(it, it.wanted); err != nil {
		r.fail(it, err)
		return
	}
	if fresh {
		r.ensureUsers(it.key)
	}
}

// ensureUsers makes the values that have waited for key.
func (r *run) ensureUsers(key string) {
	for _, user := range r.s.usersOf(key) {
		if !user.ready() {
			r.ensure(user)
		}
	}
}

// recreates reports whether the made value has to be removed before the wanted one can be made.
func (r *run) recreates(it *item) bool {
	return it.kind != nil && it.made != nil && it.kind.recreates(it.key, it.made, it.wanted)
}

// make calls the kind for the value v.
func (r *run) make(it *item, v *value) error {
	r.touch(it)
	if it.kind == nil {
		r.done(it, v)
		return nil
	}
	if err := r.blocked(it); err != nil {
		return err
	}
	if !v.isRead {
		return errDescribed
	}
	operation := "update"
	if it.made == nil || it.doubt != sure {
		operation = "create"
	}
	err := r.call(operation, it.kind, it.key, func(ctx context.Context) error {
		if operation == "create" {
			return it.kind.create(ctx, it.key, v)
		}
		return it.kind.update(ctx, it.key, it.made, v)
	})
	if err != nil {
		r.isAway(err)
		if unknown(err) {
			err = r.left(step{it, it.made, v, it.stands, it.doubt}, err)
		}
		return err
	}
	r.steps = append(r.steps, step{it: it, before: it.made, after: v, stood: it.stands})
	r.done(it, v)
	return nil
}

// unknown reports whether an error of Create or Update leaves open what the call has done.
func unknown(err error) bool {
	return !errors.Is(err, ErrForeign) && !errors.Is(err, ErrGone) && !errors.Is(err, errUnchanged)
}

// left is called after a call that has failed: any part of its value may be made. A run that
// reverts undoes it in its turn, others at once. left returns the error of the call, with that
// of the undoing.
func (r *run) left(st step, err error) error {
	it := st.it
	r.setMade(it, st.after)
	it.doubt = broken
	if r.reverts {
		r.steps = append(r.steps, st)
		return err
	}
	// What was made before may not be known either, or only described by Retrieve.
	if st.doubt == sure && (st.before == nil || st.before.isRead) {
		undo := guard(func() error { return r.undoStep(context.WithoutCancel(r.ctx), st) })
		if undo == nil {
			r.setMade(it, st.before)
			return err
		}
		r.isAway(undo)
		err = errors.Join(err, fmt.Errorf("undo: %w", undo))
	}
	if st.before != nil {
		r.unsure(st)
	}
	return err
}

// unsure records that a failed change may have been made or not. Values that use it stay, and
// the next attempt makes all of it.
func (r *run) unsure(st step) {
	it := st.it
	r.setMade(it, st.before)
	it.doubt = max(st.doubt, unread)
	it.uses = r.s.relate(it, it.uses, slices.Concat(it.uses, it.dependencies(st.after)))
}

// done records that v is made.
func (r *run) done(it *item, v *value) {
	if it.made != v || it.doubt != sure || it.err != nil || it.retry != nil {
		r.touch(it)
		r.setMade(it, v)
		it.err = nil
		r.s.setRetry(it, nil)
	}
}

// suspend makes the value that stands in for a pending one. Without such a value, or if it
// cannot be made, suspend removes what is made.
func (r *run) suspend(it *item) {
	v := it.substitute()
	if v == nil {
		r.remove(it)
		return
	}
	if r.stopped || it.removing || r.failed[it.key] != nil {
		return
	}
	if it.doubt == sure && it.equal(v) {
		r.done(it, v)
		return
	}
	it.removing = true
	free := r.removeUsers(it)
	it.removing = false
	if !free {
		return
	}
	if err := r.make(it, v); err != nil {
		waits := r.s.missing(it)
		if it.made != nil {
			r.remove(it)
		}
		if r.failed[it.key] == nil {
			r.fail(it, fmt.Errorf("while it waits for %q: %w", waits, err))
		}
	}
}

// remove removes the made value of an item, after those that use it.
func (r *run) remove(it *item) {
	if r.stopped || it.removing || r.failed[it.key] != nil {
		return
	}
	if it.made == nil {
		r.done(it, nil)
		return
	}
	if r.s.isWaiting(it) {
		r.await(it)
		return
	}
	it.removing = true
	defer func() { it.removing = false }()
	if !r.removeUsers(it) {
		return
	}
	r.touch(it)
	if it.kind != nil {
		if err := r.blocked(it); err != nil {
			r.fail(it, err)
			return
		}
		r.steps = append(r.steps, step{it: it, before: it.made, stood: it.stands}) // also if it fails halfway
		remove := func(ctx context.Context) error { return it.kind.remove(ctx, it.key, it.made) }
		if err := r.call("delete", it.kind, it.key, remove); err != nil {
			it.doubt = broken
			r.isAway(err)
			r.fail(it, err)
			return
		}
	}
	r.done(it, nil)
}

// removeUsers makes no value use the item any more, and reports whether that worked. A
// value that is about to change to one without the item is changed, not removed.
func (r *run) removeUsers(it *item) bool {
	for _, user := range r.s.usersOf(it.key) {
		if !slices.Contains(user.uses, it.key) {
			continue
		}
		if user.removing {
			r.postponed = true
			return false
		}
		if user.wanted != nil && !slices.Contains(user.needs, it.key) {
			r.ensure(user)
		}
		switch {
		case !slices.Contains(user.uses, it.key):
		case user.wanted != nil:
			r.suspend(user)
		default:
			r.remove(user)
		}
		if r.stopped {
			return false
		}
		if !slices.Contains(user.uses, it.key) {
			continue
		}
		if r.failed[user.key] != nil {
			r.fail(it, fmt.Errorf("it is still used by %s, which could not be removed", user.key))
		}
		r.postponed = true
		return false
	}
	return true
}

func (r *run) fail(it *item, err error) {
	r.touch(it)
	if r.s.isWaiting(it) && !r.reverts {
		r.await(it)
		return
	}
	if errors.Is(err, ErrGone) && !r.reverts {
		if !it.gone() {
			r.s.opt.Log.Info("a value waits for its release: its owner has ended", "key", it.key, "reason", err)
		}
		it.err = err
		return
	}
	it.err = err
	r.failed[it.key] = err
	r.stopped = r.stopped || r.reverts
}

// errUnknown is the reason why a failed change of a value in doubt is not undone.
var errUnknown = errors.New("what was made before it is not known")

// errDescribed is the reason why a change of what was only found is not undone.
var errDescribed = errors.New("what was there before it is not a value")

// undo undoes all steps in the opposite order, and restores what was wanted. It does not
// end with the context. It does not put back values that were not wanted before either.
func (r *run) undo() error {
	ctx := context.WithoutCancel(r.ctx)
	var errs []error
	for _, st := range slices.Backward(r.steps) {
		it := st.it
		if before := r.before[it]; it.wanted == nil && before.wanted == nil && before.made != nil {
			continue
		}
		if r.s.away != nil {
			r.undoAway(ctx, st)
			continue
		}
		if st.before != nil && st.doubt != sure {
			r.unsure(st)
			errs = append(errs, &controller.RemainError{Key: it.key, Err: errUnknown})
			continue
		}
		err := guard(func() error { return r.undoStep(ctx, st) })
		if r.isAway(err) {
			it.doubt = broken
			continue
		}
		if err != nil {
			if hasPanicked(err) && st.before != nil {
				r.setMade(it, st.before)
			}
			it.doubt = broken
			errs = append(errs, &controller.RemainError{Key: it.key, Err: err})
			continue
		}
		r.setMade(it, st.before)
		it.stands = st.stood
	}
	for it, before := range r.before {
		if it.kind == nil {
			r.setMade(it, before.made)
		}
		r.setWanted(it, before.wanted)
		if it.made != nil || it.wanted != nil {
			it.err = before.err
			r.s.setRetry(it, before.retry)
		} else {
			r.done(it, nil)
		}
		r.s.forget(it)
	}
	return errors.Join(errs...)
}

// undoAway undoes what a step has made beside a data plane that is away, such as links of the
// kernel. What is left is retrieved, and removed, before anything is made again.
func (r *run) undoAway(ctx context.Context, st step) {
	st.it.doubt = broken
	if st.before == nil && guard(func() error { return r.undoStep(ctx, st) }) == nil {
		r.setMade(st.it, nil)
	}
}

// undoStep undoes a step. After a step that could not be undone, those that need it fail.
func (r *run) undoStep(ctx context.Context, st step) error {
	it := st.it
	if st.before != nil && !st.before.isRead {
		return errDescribed
	}
	for _, key := range it.dependencies(st.before) {
		if d := r.s.items[key]; d == nil || !d.ready() || d.doubt == broken {
			return fmt.Errorf("%s is not made", key)
		}
	}
	if st.before == nil || st.stood {
		for _, user := range r.s.usersOf(it.key) {
			if slices.Contains(user.uses, it.key) {
				return fmt.Errorf("it is still used by %s", user.key)
			}
		}
	}
	switch {
	case st.before == nil:
		return it.kind.remove(ctx, it.key, st.after)
	case st.after == nil:
		return it.kind.create(ctx, it.key, st.before)
	case it.equal(st.before):
		return nil
	}
	return it.kind.update(ctx, it.key, st.after, st.before)
}

// finish plans the repetition of failed values, and ends that of others.
func (r *run) finish(policy controller.Retry) {
	for key, reason := range r.invalid {
		it := r.item(key)
		r.touch(it)
		it.err = errors.Join(reason, r.failed[key])
	}
	for it := range r.before {
		r.s.setRetry(it, nil)
		if r.failed[it.key] != nil {
			r.s.setRetry(it, r.s.plan(policy))
		}
		r.s.forget(it)
	}
}

// forget drops an item that holds nothing.
func (s *Scheduler) forget(it *item) {
	if it.wanted == nil && it.made == nil && it.err == nil {
		delete(s.items, it.key)
	}
}

// report returns the failures as ValueErrors.
func (r *run) report() error {
	if len(r.failed)+len(r.invalid) == 0 {
		return nil
	}
	errs := maps.Clone(r.failed)
	for key, err := range r.invalid {
		errs[key] = errors.Join(err, errs[key])
	}
	return errs
}

// combine returns the failures together with an error that is about more than single values.
func (r *run) combine(err error) error {
	if err == nil {
		return r.report()
	}
	return errors.Join(r.report(), err)
}
