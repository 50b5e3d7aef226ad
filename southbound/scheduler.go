// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
)

var (
	// ErrPending fails a value of a transaction that reverts on failure, if a value that it
	// depends on is not made.
	ErrPending = errors.New("a value that it depends on is not made")
	// errClosed is returned after Close.
	errClosed = errors.New("southbound was closed")
)

// Options holds the options of New. The zero value is ready to use.
type Options struct {
	Log *slog.Logger // nil: no log
	// OnFailure is called from Run after the last attempt of a value failed; may be nil.
	// It may call Dump and Status.
	OnFailure func(key string, err error)
	// OnReturn is called from Run when a data plane that was away is back, with the values that
	// failed then. It may be nil.
	OnReturn func(failed controller.ValueErrors)
	// Spare reports whether an actual value stays although nothing wants it, because the
	// wanted values are not known completely. It is asked by each comparison with the actual
	// state, may be nil, and must not call the Scheduler. An update that deletes such a value
	// removes it.
	Spare func(key string, actual proto.Message) bool
	Now   func() time.Time                     // nil: time.Now
	After func(time.Duration) <-chan time.Time // nil: time.After
}

// Scheduler is a controller.Sink over kinds.
type Scheduler struct {
	opt    Options
	kinds  []*Descriptor
	wake   chan struct{}
	closed chan struct{}

	mu       sync.Mutex
	isClosed bool
	begun    bool // a transaction has come: before it, no value is known to be unwanted
	items    map[string]*item
	users    map[string]map[*item]int // by key: the items that need or use it, and how often
	retries  map[*item]struct{}       // that are to be tried again
	policy   controller.Retry         // of the last transaction, for repairs
	repairs  repairs
	away     error             // why all values wait for the data plane; nil: they do not
	spared   map[string]*value // actual values that Options.Spare has kept

	work background
}

var _ controller.Sink = (*Scheduler)(nil)

// New returns a scheduler. The first kind that handles a key makes its values.
func New(opt Options, kinds ...*Descriptor) *Scheduler {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.After == nil {
		opt.After = time.After
	}
	return &Scheduler{
		opt:     opt,
		kinds:   kinds,
		wake:    make(chan struct{}, 1),
		closed:  make(chan struct{}),
		items:   map[string]*item{},
		users:   map[string]map[*item]int{},
		retries: map[*item]struct{}{},
		repairs: repairs{},
		spared:  map[string]*value{},
		work:    newBackground(),
	}
}

// Close ends Run and closes the kinds. What was made stays.
func (s *Scheduler) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return nil
	}
	s.isClosed = true
	close(s.closed)
	var errs []error
	for _, d := range s.kinds {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Commit applies a transaction; see the package for failures. When ctx ends, the remaining
// values fail.
func (s *Scheduler) Commit(ctx context.Context, txn controller.Transaction) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return fmt.Errorf("commit to the southbound: %w", errClosed)
	}
	s.policy, s.begun = txn.Retry, true
	r := s.begin(ctx, txn.RevertOnFailure)
	wants := r.read(txn.Values)
	if r.reverts && len(r.invalid) > 0 {
		return r.report()
	}
	var err error
	if txn.Method == controller.Update {
		r.converge(r.want(wants))
	} else {
		err = r.resync(wants)
	}
	r.refusePending(wants)
	r.undone = r.reverts && (err != nil || r.stopped)
	s.requestSweeps(r, txn.Method != controller.Update)
	if r.undone {
		return r.combine(errors.Join(err, r.undo()))
	}
	r.finish(txn.Retry)
	return r.combine(err)
}

// read returns the valid values of a transaction; of several for a key, the last. A value that
// is to be removed has none.
func (r *run) read(values []controller.Value) (wants []wanted) {
	last := make(map[string]int, len(values))
	for i, v := range values {
		last[v.Key] = i
	}
	for i, v := range values {
		if last[v.Key] != i {
			continue
		}
		read, err := r.s.read(v)
		if err != nil {
			r.invalid[v.Key] = err
			continue
		}
		wants = append(wants, wanted{v.Key, read})
	}
	return wants
}

// want records what an update wants, and returns the keys that differ from what is made.
func (r *run) want(wants []wanted) (keys []string) {
	for _, w := range wants {
		r.unspare(w)
		it := r.s.items[w.key]
		if it == nil {
			if w.value == nil {
				continue
			}
			it = r.item(w.key)
		}
		if it.unchanged() && it.equal(w.value) {
			if it.wanted != w.value { // equal, and newer
				r.touch(it)
				it.wanted = w.value
			}
			continue
		}
		r.touch(it)
		r.setWanted(it, w.value)
		keys = append(keys, w.key)
	}
	return keys
}

// resync makes wants the wanted values and applies the difference to the actual ones. The
// error is about more than single values.
func (r *run) resync(wants []wanted) error {
	s := r.s
	put := make(map[string]bool, len(wants))
	for _, w := range wants {
		if w.value == nil {
			continue
		}
		put[w.key] = true
		it := r.item(w.key)
		r.touch(it)
		r.setWanted(it, w.value)
	}
	for key, it := range s.items {
		if !put[key] && r.invalid[key] == nil {
			r.touch(it)
			r.setWanted(it, nil)
		}
	}
	var errs []error
	away := s.away != nil && r.reverts // an undone resync would leave what waits for no one
	for _, d := range s.kinds {
		if away {
			break
		}
		actual, err := r.compared(d)
		if away = r.isAway(err); away {
			break
		}
		if err != nil {
			errs = append(errs, err)
			r.broken[d] = err
			r.unread(d)
			continue
		}
		r.adopt(d, actual)
	}
	if !away && len(errs) == 0 {
		s.away = nil
	}
	for key := range r.invalid { // leaves what is there
		if it := s.items[key]; it != nil && it.wanted == nil && it.made != nil {
			r.touch(it)
			r.setWanted(it, it.made)
		}
	}
	r.prepared = true
	r.converge(slices.Collect(maps.Keys(s.items)))
	return errors.Join(errs...)
}

// retrieve returns the actual values of a kind.
func (r *run) retrieve(d *Descriptor) (map[string]*value, error) {
	if err := context.Cause(r.ctx); err != nil {
		return nil, fmt.Errorf("retrieve the values of %s: %w", d.Name(), err)
	}
	var values []controller.Value
	err := guard(func() (err error) {
		values, err = d.retrieve(r.ctx, r.s.wantedOf(d))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("retrieve the values of %s: %w", d.Name(), err)
	}
	actual := make(map[string]*value, len(values))
	for _, v := range values {
		actual[v.Key] = r.s.found(d, v)
	}
	return actual, nil
}

// found returns a value that was retrieved. The message of the wanted one is not read again.
func (s *Scheduler) found(d *Descriptor, v controller.Value) *value {
	if it := s.items[v.Key]; it != nil && it.wanted != nil && it.wanted.message == v.Message {
		return it.wanted
	}
	found, _ := d.value(v.Key, v.Message) // it may only describe
	return found
}

// compared returns the actual values of a kind without those that stay although nothing
// has ever wanted them.
func (r *run) compared(d *Descriptor) (map[string]*value, error) {
	actual, err := r.retrieve(d)
	if r.s.opt.Spare == nil {
		return actual, err
	}
	if err != nil {
		return actual, err
	}
	maps.DeleteFunc(r.s.spared, func(key string, _ *value) bool { return d.Handles(key) })
	maps.DeleteFunc(actual, func(key string, v *value) bool {
		it := r.s.items[key]
		spare := (it == nil || it.wanted == nil && it.made == nil) && r.s.opt.Spare(key, v.message)
		if spare {
			r.s.spared[key] = v
		}
		return spare
	})
	return actual, nil
}

// unspare makes a spared value an item again if the update deletes it. A value that is
// wanted now is made as any other: its kind finds what is there.
func (r *run) unspare(w wanted) {
	actual, spared := r.s.spared[w.key]
	if !spared {
		return
	}
	delete(r.s.spared, w.key)
	if w.value == nil {
		it := r.item(w.key)
		r.touch(it)
		r.setMade(it, actual)
	}
}

// adopt takes the actual values of a kind as the made ones.
func (r *run) adopt(d *Descriptor, actual map[string]*value) {
	for key, v := range actual {
		it := r.item(key)
		r.touch(it)
		it.kind = d
		r.setMade(it, v)
	}
	for key, it := range r.s.items {
		if it.kind == d && actual[key] == nil && it.made != nil {
			r.touch(it)
			r.setMade(it, nil)
		}
	}
}

// unread marks all values of a kind as possibly not made.
func (r *run) unread(d *Descriptor) {
	for _, it := range r.s.items {
		if it.kind == d {
			r.touch(it)
			it.doubt = max(it.doubt, unread)
		}
	}
}

// wantedOf returns the wanted values of a kind, ordered by key.
func (s *Scheduler) wantedOf(d *Descriptor) []wanted {
	var all []wanted
	for _, it := range s.items {
		if it.kind == d && it.wanted != nil && it.wanted.isRead {
			all = append(all, wanted{it.key, it.wanted})
		}
	}
	slices.SortFunc(all, func(x, y wanted) int { return cmp.Compare(x.key, y.key) })
	return all
}

// refusePending fails the values of a transaction that reverts, if they are pending.
func (r *run) refusePending(wants []wanted) {
	if !r.reverts {
		return
	}
	for _, w := range wants {
		it := r.s.items[w.key]
		switch {
		case w.value == nil || it == nil || r.failed[w.key] != nil || r.stopped:
		case r.s.isWaiting(it):
			r.fail(it, fmt.Errorf("%w: %w", ErrPending, r.s.away))
		case !it.ready():
			r.fail(it, fmt.Errorf("%w: it waits for %q", ErrPending, r.s.missing(it)))
		}
	}
}

// Dump returns the actual values, and those that are only kept.
func (s *Scheduler) Dump(ctx context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed {
		return nil, fmt.Errorf("dump the southbound: %w", errClosed)
	}
	all := map[string]proto.Message{}
	for key, it := range s.items {
		if it.kind == nil && it.made != nil {
			all[key] = it.made.message
		}
	}
	r := s.begin(ctx, false)
	for _, d := range s.kinds {
		actual, err := r.retrieve(d)
		if err != nil {
			return nil, fmt.Errorf("dump the southbound: %w", err)
		}
		for key, v := range actual {
			all[key] = v.message
		}
	}
	return all, nil
}
