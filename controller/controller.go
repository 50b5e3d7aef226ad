// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Deps holds what the loop works with.
type Deps struct {
	Log        *slog.Logger
	Handlers   []EventHandler // in order: dependencies first; AddHandlers appends to them
	Committers []Committer    // in order; AddCommitters appends to them
	Sink       Sink
	Now        func() time.Time
	Observe    func(*Record) // called after each event; may be nil
}

// Controller runs the event loop. A program with a context calls Run. A plugin agent,
// such as Ligato's, calls Init, AfterInit and Close instead.
type Controller struct {
	cfg     Config
	life    lifecycle
	deps    Deps
	queue   *queue
	history *history
	status  status
	before  before

	// Of the loop only.
	caller    caller
	handed    handed
	hand      func() error // handed.do
	seq       uint64
	resyncs   int
	synced    bool  // a resync has succeeded
	remote    bool  // there was a DBResync that was not local
	revision  int64 // of the last of these
	kubeState KubeStateData
	wanted    *wanted         // what handlers have put
	external  sources         // what is merged with that
	applied   map[string]sent // what the sink was given, if that is not what handlers want

	healing      healing
	verification verification
	watchdog     *watchdog
	groups       bool            // events may share a commit: each Committer has savepoints
	stopped      <-chan struct{} // closed when the loop is to end
	finished     []EventHandler  // memory of run.finished
	handled      []HandlerRecord // memory of records that are not kept
	fatal        error
	broken       error // a committer has panicked: what is staged is not known
}

// status holds what any goroutine may read of the loop.
type status struct {
	mu sync.Mutex
	Status
}

// Status holds a snapshot of the loop.
type Status struct {
	Running      bool
	Resynced     bool   // a resync has succeeded since the start
	Healthy      bool   // no healing is due, the last resync succeeded
	LastError    string // what healing is due for
	Fatal        string
	Current      string // event being processed
	CurrentSince time.Time
	Stuck        bool // Current has taken longer than its deadline
	Processed    uint64
	Queued       int
	FollowUps    int

	VerificationFailures uint64 // verifications that have found something
}

// New returns a loop that does not run yet. It accepts events.
func New(cfg Config, deps Deps) *Controller {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Sink == nil {
		deps.Sink = &MemorySink{}
	}
	c := &Controller{
		cfg:       cfg,
		deps:      deps,
		life:      newLifecycle(),
		queue:     newQueue(cfg.QueueSize),
		history:   newHistory(cfg, deps.Now()),
		kubeState: KubeStateData{},
		wanted:    newWanted(cfg.EnableVerification),
		applied:   map[string]sent{},
	}
	c.hand = c.handed.do
	return c
}

// PushEvent queues an event, or fails at once; then Done will not be called. A handler
// may push with it only an event that does not block (ErrWaitInLoop).
func (c *Controller) PushEvent(event Event) error {
	ev, err := c.admit(event, false)
	if err != nil {
		return err
	}
	if err := c.queue.push(ev); err != nil {
		return fmt.Errorf("push event %s: %w", ev.name, err)
	}
	return nil
}

// PushEventWait queues an event as PushEvent does, but waits for room until ctx ends.
// Waiting producers get room in order of arrival. A handler that calls it gets
// ErrWaitInLoop.
func (c *Controller) PushEventWait(ctx context.Context, event Event) error {
	ev, err := c.admit(event, true)
	if err != nil {
		return err
	}
	if err := c.queue.pushWait(ctx, ev); err != nil {
		return fmt.Errorf("push event %s: %w", ev.name, err)
	}
	return nil
}

// Events returns the records from sequence number seq on, and a channel that closes
// when there are more.
func (c *Controller) Events(seq uint64) ([]Record, <-chan struct{}) { return c.history.since(seq) }

// Status returns a snapshot of the loop.
func (c *Controller) Status() Status {
	c.status.mu.Lock()
	defer c.status.mu.Unlock()
	s := c.status.Status
	s.Queued, s.FollowUps = c.queue.lengths()
	return s
}

func (c *Controller) setStatus(f func(*Status)) {
	c.status.mu.Lock()
	defer c.status.mu.Unlock()
	f(&c.status.Status)
}

// loop processes events until ctx ends or an error is fatal.
func (c *Controller) loop(ctx context.Context) error {
	c.setStatus(func(s *Status) { s.Running = true })
	deadline := time.NewTimer(c.cfg.StartupResyncDeadline)
	defer deadline.Stop()
	c.healing.start(c.cfg)
	defer c.healing.stop()
	defer c.caller.close()
	c.groups, c.stopped = c.haveSavepoints(), ctx.Done()
	// Once begun an event is finished, also while the agent is stopping.
	work := context.WithoutCancel(ctx)
	for c.fatal == nil && ctx.Err() == nil {
		select { // a healing that is due comes before what is queued
		case <-c.healing.timer.C:
			c.process(work, c.own(c.healing.event()))
			continue
		default:
		}
		select {
		case <-ctx.Done():
		case <-c.queue.ready:
			c.processQueued(ctx, work)
		case <-deadline.C:
			if c.resyncs == 0 {
				c.fatal = fmt.Errorf("%w: %w of %s", ErrFatal, errNoResync, c.cfg.StartupResyncDeadline)
			}
		case <-c.healing.periodic.C:
			if c.resyncs > 0 && !c.healing.due {
				c.process(work, c.own(&HealingResync{Type: Periodic}))
			}
		case <-c.healing.timer.C:
			c.process(work, c.own(c.healing.event()))
		}
	}
	return c.close(work)
}

// ending reports whether the loop ends after what it has begun.
func (c *Controller) ending() bool {
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

// atOnce bounds the events that are processed before the timers are looked at again; only
// the last of them may bring more events that share its commit.
const atOnce = 16

// processQueued processes what is queued, some of it.
func (c *Controller) processQueued(ctx, work context.Context) {
	for n := 0; n < atOnce; {
		// Until a resync has succeeded all but that wait, in the queue.
		ev, ok := c.queue.pop(c.synced)
		if !ok {
			return
		}
		n += c.process(work, ev)
		c.verify(ctx, work)
		if c.fatal != nil || c.healing.due || ctx.Err() != nil {
			return
		}
	}
}

// close ends the loop: it hands Shutdown to the handlers and answers what is queued.
func (c *Controller) close(ctx context.Context) error {
	left := c.queue.close()
	outcome := ErrClosedController
	if c.fatal != nil {
		outcome = ErrEventLoopIsAborting
		c.deps.Log.Error("event loop is aborting", "error", c.fatal)
	} else if c.synced {
		c.process(ctx, c.own(&Shutdown{}))
	}
	left = append(left, c.queue.close()...)
	for i := range left {
		c.finish(&left[i], outcome)
	}
	c.setStatus(func(s *Status) {
		s.Running = false
		if c.fatal != nil {
			s.Fatal = c.fatal.Error()
		}
	})
	if errors.Is(c.fatal, ErrFatal) {
		return c.fatal
	}
	return nil
}

// finish calls Done, once.
func (c *Controller) finish(ev *queued, err error) {
	if ev.finished {
		return
	}
	ev.finished = true
	if err := c.guard(func() error { ev.Done(err); return nil }); err != nil {
		c.deps.Log.Error("Done of an event panicked", "event", ev.name, "panic", err)
	}
}
