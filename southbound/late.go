// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/backoff"
)

// ErrNotOpen fails a value of a transaction that reverts on failure, and an inspection,
// while the descriptors cannot be opened.
var ErrNotOpen = errors.New("the data plane is not open yet")

// Opener returns the descriptors of a data plane.
type Opener struct {
	Name string // of the data plane, such as vpp
	Open func(ctx context.Context) ([]Descriptor, error)
	// Opened is called from Run once, after the wanted values were applied. values has those
	// that failed: a resync repeats them. It may be nil.
	Opened func(values controller.ValueErrors)
}

// Late is a Scheduler whose descriptors Run opens, because another program must be there
// first. Until then all values are pending: a resync and an update succeed, except for an
// update that reverts on failure and wants a value. With the descriptors Run applies the
// wanted values as one resync, or if none has come yet reads the actual state. If that cannot
// be read, Run closes the descriptors and opens them again.
type Late struct {
	opt    Options
	opener Opener

	mu        sync.Mutex
	isClosed  bool
	scheduler *Scheduler               // nil: not open
	wanted    map[string]proto.Message // nil: no resync has come yet
	policy    controller.Retry         // of the last transaction
	problem   error                    // of the last attempt
}

var _ controller.Sink = (*Late)(nil)

// NewLate returns a scheduler over descriptors that Run opens.
func NewLate(opt Options, opener Opener) *Late { return &Late{opt: opt, opener: opener} }

// opened returns the scheduler, nil while it is not open.
func (l *Late) opened() *Scheduler {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.scheduler
}

// NotOpen returns the reason why the descriptors are not open, nil if they are.
func (l *Late) NotOpen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.scheduler != nil {
		return nil
	}
	return l.notOpen()
}

// Commit applies a transaction, or keeps its values until the descriptors are open.
func (l *Late) Commit(ctx context.Context, txn controller.Transaction) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.scheduler != nil:
		return l.scheduler.Commit(ctx, txn)
	case l.isClosed:
		return fmt.Errorf("commit to the southbound: %w", errClosed)
	}
	if refused := l.refuse(txn); len(refused) > 0 {
		return refused
	}
	l.policy = txn.Retry
	if txn.Method != controller.Update {
		l.wanted = map[string]proto.Message{}
	}
	for _, v := range txn.Values {
		switch {
		case l.wanted == nil: // the resync that comes has all values
		case v.Message == nil:
			delete(l.wanted, v.Key)
		default:
			l.wanted[v.Key] = v.Message
		}
	}
	return nil
}

// refuse returns the errors of the values that a caller takes for made once Commit succeeds.
func (l *Late) refuse(txn controller.Transaction) controller.ValueErrors {
	refused := controller.ValueErrors{}
	for _, v := range txn.Values {
		if txn.RevertOnFailure && v.Message != nil {
			refused[v.Key] = l.notOpen()
		}
	}
	return refused
}

// notOpen returns the reason why nothing is made.
func (l *Late) notOpen() error {
	if l.problem == nil {
		return fmt.Errorf("%w: %s is being opened", ErrNotOpen, l.opener.Name)
	}
	return fmt.Errorf("%w: open %s: %w", ErrNotOpen, l.opener.Name, l.problem)
}

// Run opens the descriptors, and again after a failure, and then runs the scheduler, until
// ctx ends.
func (l *Late) Run(ctx context.Context) error {
	after := l.opt.After
	if after == nil {
		after = time.After
	}
	policy := backoff.Policy{First: firstPause, Limit: longestPause / 4}
	for failures := 1; ; failures++ {
		err := l.attempt(ctx)
		switch {
		case ctx.Err() != nil, errors.Is(err, errClosed):
			return nil //nolint:nilerr // Run was stopped
		case err == nil:
			return l.opened().Run(ctx)
		}
		if l.opt.Log != nil {
			l.opt.Log.Warn("the data plane cannot be opened yet", "dataplane", l.opener.Name, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-after(policy.After(failures)):
		}
	}
}

// attempt opens the descriptors and applies what is wanted so far.
func (l *Late) attempt(ctx context.Context) error {
	var descriptors []Descriptor
	err := guard(func() (err error) {
		descriptors, err = l.opener.Open(ctx)
		return err
	})
	var failed controller.ValueErrors
	if err == nil {
		failed, err = l.use(ctx, descriptors)
	}
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.problem = err
		return err
	}
	if l.opener.Opened != nil {
		l.opener.Opened(failed)
	}
	return nil
}

// use makes the wanted values with the descriptors, or closes them.
func (l *Late) use(ctx context.Context, descriptors []Descriptor) (failed controller.ValueErrors, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := New(l.opt, descriptors...)
	if l.isClosed {
		return nil, errors.Join(errClosed, s.Close())
	}
	// The first resync may be still to come. It must not fail, as all events wait for it.
	if l.wanted == nil {
		_, err = s.Dump(ctx)
	} else {
		err = s.Commit(ctx, l.transaction())
	}
	// Only an error of nothing but values leaves the actual state known.
	if failed, _ = any(err).(controller.ValueErrors); err != nil && len(failed) == 0 {
		return nil, errors.Join(err, s.Close())
	}
	l.scheduler, l.wanted = s, nil
	return failed, nil
}

// transaction returns all wanted values as a resync.
func (l *Late) transaction() controller.Transaction {
	txn := controller.Transaction{
		Method:      controller.DownstreamResync,
		Description: "the data plane " + l.opener.Name + " is open",
		Retry:       l.policy,
	}
	for _, key := range slices.Sorted(maps.Keys(l.wanted)) {
		txn.Values = append(txn.Values, controller.Value{Key: key, Message: l.wanted[key]})
	}
	return txn
}

// Close ends Run and closes the descriptors that are io.Closers. What was made stays.
func (l *Late) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isClosed = true
	if l.scheduler == nil {
		return nil
	}
	return l.scheduler.Close()
}

// Dump returns the actual values, and an error while the descriptors are not open.
func (l *Late) Dump(ctx context.Context) (map[string]proto.Message, error) {
	if s := l.opened(); s != nil {
		return s.Dump(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return nil, fmt.Errorf("dump the southbound: %w", l.notOpen())
}

// Status returns the state of all values.
func (l *Late) Status() Status {
	if s := l.opened(); s != nil {
		return s.Status()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Status{Notes: []string{l.notOpen().Error()}}
	for key := range l.wanted {
		st.Pending = append(st.Pending, Pending{key, []string{"data plane " + l.opener.Name}})
	}
	slices.SortFunc(st.Pending, func(x, y Pending) int { return strings.Compare(x.Key, y.Key) })
	return st
}

// Problem returns the reason why the wanted value under key is not made, nil if it is made.
func (l *Late) Problem(key string) error {
	if s := l.opened(); s != nil {
		return s.Problem(key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%s is not made: %w", key, l.notOpen())
}

// Inspect compares the value under key with the actual state.
func (l *Late) Inspect(ctx context.Context, key string) error {
	if s := l.opened(); s != nil {
		return s.Inspect(ctx, key)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("inspect %s: %w", key, l.notOpen())
}
