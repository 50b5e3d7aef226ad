// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	// ErrUnknownOutcome is returned for a call of the provider that has not returned
	// by its deadline. Reading the provider shows what it has done.
	ErrUnknownOutcome = errors.New(
		"netresource: the provider has not answered in time: what the call has done is not known before the provider is read",
	)
	// ErrUnderWay is returned instead of a second call of a kind while the first one
	// has not returned.
	ErrUnderWay = errors.New("netresource: an earlier call of the same kind has not returned")
	// ErrPanicked is returned for a call of the provider that has panicked.
	ErrPanicked = errors.New("netresource: the provider has panicked")
)

// OverdueObserver is implemented by a MetricsAPI that shows how many calls of
// each operation are past their deadline and have not returned.
type OverdueObserver interface {
	SetOverdueCalls(operation string, calls int)
}

// calls makes the calls of the provider, each in its own goroutine: a call that hangs
// costs its caller at most the deadline, and a panic becomes an error. For one node
// there is one call of a kind at a time.
type calls struct {
	deadline time.Duration // of a call
	patience time.Duration // how long a call may go on after its context has ended
	now      func() time.Time
	log      *slog.Logger
	observer OverdueObserver // may be nil

	mu      sync.Mutex
	closed  bool
	kinds   map[operation]*call // calls that another one of their kind must not overlap
	all     map[*call]operation // calls that have not returned
	overdue map[string]int      // calls past their deadline, by operation
}

// operation names a call and its node.
type operation struct{ name, node string }

// kind returns the operation that excludes this one. Both ways to allocate addresses
// exclude each other, and so do CreateNetResource and Forget.
func (o operation) kind() operation {
	switch o.name {
	case opInterface:
		o.name = opAllocate
	case opForget:
		o.name = opCreate
	}
	return o
}

func (o operation) String() string {
	if o.node == "" {
		return o.name
	}
	return o.name + " for node " + o.node
}

// call is a call that has not returned. calls.mu guards the flags.
type call struct {
	since    time.Time
	keys     []string // addresses that it releases
	cancel   context.CancelFunc
	returned chan struct{}
	given    chan struct{} // closed when it has returned or its caller has stopped waiting
	left     bool          // its caller has stopped waiting
	overdue  bool
}

func newCalls(c *Config) *calls {
	observer, _ := c.Metrics.(OverdueObserver)
	return &calls{
		deadline: c.CallTimeout, patience: c.CallTimeout / 30, now: c.Now, log: c.Log, observer: observer,
		kinds: map[operation]*call{}, all: map[*call]operation{}, overdue: map[string]int{},
	}
}

// request is a call to make.
type request[T any] struct {
	operation
	do       func(context.Context) (T, error)
	keys     []string       // addresses that the call releases
	late     func(T, error) // gets the answer if the caller has stopped waiting; may be nil
	wait     time.Duration  // how long the caller waits; 0: until the deadline
	deadline time.Duration  // 0: that of calls
}

// run makes the call. The error is ErrUnknownOutcome if there is no answer in time.
func (r request[T]) run(ctx context.Context, c *calls) (answer T, err error) {
	if r.deadline == 0 {
		r.deadline = c.deadline
	}
	ctx2, cancel := context.WithTimeout(ctx, r.deadline)
	x := &call{keys: r.keys, cancel: cancel, returned: make(chan struct{}), given: make(chan struct{})}
	if err := c.begin(ctx2, r.operation, x); err != nil {
		cancel()
		return answer, err
	}
	var value T
	failed := fmt.Errorf("call %s: %w: it has ended its goroutine", r.operation, ErrPanicked)
	late := time.AfterFunc(r.deadline, func() { c.isOverdue(r.operation, x) })
	go func() {
		defer cancel()
		defer close(x.returned)
		defer func() { // also if the provider calls runtime.Goexit
			late.Stop()
			if left := c.end(r.operation, x); left && r.late != nil {
				r.late(value, failed)
			}
		}()
		value, failed = guarded(ctx2, c, r)
	}()
	if c.await(ctx2, x, r.wait) {
		return value, failed
	}
	return answer, fmt.Errorf("call %s: %w", r.operation, ErrUnknownOutcome)
}

// guarded makes the call, and turns a panic into an error.
func guarded[T any](ctx context.Context, c *calls, r request[T]) (value T, err error) {
	done := false
	defer func() {
		if p := recover(); p != nil || !done {
			c.log.Error("the provider has panicked",
				"operation", r.name, "node", r.node, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("call %s: %w: %v", r.operation, ErrPanicked, p)
		}
	}()
	value, err = r.do(ctx)
	done = true
	return value, err
}

// begin registers a call. It waits for an earlier call of the same kind whose caller
// still waits.
func (c *calls) begin(ctx context.Context, what operation, x *call) error {
	for {
		c.mu.Lock()
		before, closed := c.kinds[what.kind()], c.closed
		if before == nil && !closed {
			x.since = c.now()
			c.kinds[what.kind()], c.all[x] = x, what
		}
		left := before != nil && before.left
		c.mu.Unlock()
		switch {
		case closed:
			return fmt.Errorf("call %s: %w", what, ErrClosed)
		case before == nil:
			return nil
		case left:
			return fmt.Errorf("call %s: %w since %s", what, ErrUnderWay, before.since.Format(time.RFC3339))
		}
		select {
		case <-before.given:
		case <-ctx.Done():
			return fmt.Errorf("call %s: wait for the call before: %w", what, ctx.Err())
		}
	}
}

// end is called when a call has returned. It reports whether its caller has stopped waiting.
func (c *calls) end(what operation, x *call) (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[what.kind()] == x {
		delete(c.kinds, what.kind())
	}
	delete(c.all, x)
	if x.overdue {
		c.count(what.name, -1)
	}
	if !x.left {
		close(x.given)
	}
	return x.left
}

// await waits for the answer until wait has gone by or ctx has ended, and then a
// little longer for a provider that heeds its context. It reports whether the
// answer is there.
func (c *calls) await(ctx context.Context, x *call, wait time.Duration) bool {
	var enough <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		enough = t.C
	}
	ended := ctx.Done()
	for {
		select {
		case <-x.given:
			<-x.returned
			return true
		case <-ended:
			t := time.NewTimer(c.patience)
			defer t.Stop()
			ended, enough = nil, t.C
		case <-enough:
			c.mu.Lock()
			_, under := c.all[x]
			if x.left = under; under {
				close(x.given)
			}
			c.mu.Unlock()
			if under {
				return false
			}
		}
	}
}

// isOverdue notes that a call is past its deadline.
func (c *calls) isOverdue(what operation, x *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, under := c.all[x]; under {
		x.overdue = true
		c.count(what.name, 1)
		c.log.Warn("a call of the provider is past its deadline: other nodes go on, and its outcome is read back",
			"operation", what.name, "node", what.node)
	}
}

func (c *calls) count(name string, by int) {
	c.overdue[name] += by
	if c.observer != nil {
		c.observer.SetOverdueCalls(name, c.overdue[name])
	}
}

// resolve permits the next call of a kind: the outcome of the one under way is known.
func (c *calls) resolve(what operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kinds, what.kind())
}

// releasing returns the addresses that a call under way releases.
func (c *calls) releasing(node string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.kinds[operation{opRelease, node}]; x != nil {
		return x.keys
	}
	return nil
}

// shortWait returns how long a caller that must not be held up waits: the more calls
// hang, the shorter.
func (c *calls) shortWait() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	hang := 0
	for x := range c.all {
		if x.left {
			hang++
		}
	}
	return c.patience / time.Duration(1+hang)
}

// close permits no more calls, ends the contexts of those under way and waits for
// them to return, a sixth of the deadline at most. The error names those that have not.
func (c *calls) close() error {
	c.mu.Lock()
	c.closed = true
	all := maps.Clone(c.all)
	c.mu.Unlock()
	for x := range all {
		x.cancel()
	}
	enough := time.NewTimer(c.deadline / 6)
	defer enough.Stop()
	for x := range all {
		select {
		case <-x.returned:
			delete(all, x)
		case <-enough.C:
			enough.Reset(0)
		}
	}
	if len(all) == 0 {
		return nil
	}
	var left []string
	for _, what := range all {
		left = append(left, what.String())
	}
	slices.Sort(left)
	return fmt.Errorf(
		"close the manager of NetResourceSets: %d calls of the provider do not return: %s",
		len(left),
		strings.Join(left, ", "),
	)
}
