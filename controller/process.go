// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
)

// run is the processing of one event.
type run struct {
	c         *Controller
	ev        queued
	update    UpdateEvent // nil for a resync
	reverts   bool        // an update that an error reverts
	reverse   bool        // an update that goes through the handlers backwards
	txn       *transaction
	rec       *Record
	finished  []EventHandler // whose Update or Resync has succeeded
	errs      []error        // what healing is for
	outside   []error        // of values from outside, which no handler can heal
	reverted  bool
	unchanged bool     // a verification has found nothing to apply
	group     *group   // of events that share the durable commit of this one; nil: it has its own
	tracing   *tracing // nil: the event is not traced
}

// process is an event from its acceptance to its Done, and the events that share its commit.
// It returns the number of events that it has taken.
func (c *Controller) process(ctx context.Context, ev queued) int {
	if !c.synced { // it is a resync
		c.before.end(true)
		defer func() { c.before.end(c.synced) }()
	}
	r := &run{}
	c.open(r, ev)
	if r.rec.Note = c.seen(ev.Event); r.rec.Note != "" {
		r.end(nil)
		return 1
	}
	if c.expired(&r.ev, r.rec.ProcessingStart) {
		r.end(fmt.Errorf("%s: %w (it waited %s)", ev.name, ErrExpired, r.rec.Waited.Round(time.Millisecond)))
		return 1
	}
	deadline, cancel := context.WithTimeout(ctx, c.cfg.EventTimeout)
	c.watch(r.rec)
	err := r.do(deadline)
	cancel()
	if r.group != nil {
		return r.group.commit(ctx) // which unwatches
	}
	c.unwatch()
	r.end(err)
	return 1
}

// open begins the run of an event, and its record.
func (c *Controller) open(r *run, ev queued) {
	began := c.deps.Now()
	*r = run{c: c, ev: ev, finished: c.finished[:0], rec: &Record{
		SeqNum: c.seq, ProcessingStart: began, Waited: began.Sub(ev.pushed),
		Name: ev.name, Method: ev.method, IsFollowUp: ev.isFollowUp, FollowUpTo: ev.followUpTo,
		Handlers: []HandlerRecord{}, Txn: []string{},
	}}
	c.finished = nil // until the event has ended
	r.describeEvent()
	r.trace()
	c.seq++
}

// expired reports whether the event's producer has given it up.
func (c *Controller) expired(q *queued, now time.Time) (late bool) {
	if e, ok := q.Event.(ExpiringEvent); ok && q.fault == nil {
		q.fault = c.guard(func() error { late = now.After(e.Deadline()); return nil })
	}
	return late
}

// kept reports whether records outlive their events.
func (c *Controller) kept() bool { return c.cfg.RecordEventHistory || c.deps.Observe != nil }

// describeEvent makes the text of an event if the record is kept or logged.
func (r *run) describeEvent() {
	if !r.c.kept() && !r.c.deps.Log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	_ = r.c.guard(func() error { r.rec.Description = r.ev.String(); return nil }) // a bad text does not fail the event
}

// seen says why an event is not processed: what it brings has come already.
func (c *Controller) seen(ev Event) (note string) {
	revision := int64(0)
	switch ev := ev.(type) {
	case *DBResync:
		if ev.Local && c.remote {
			return "dropped: a local resync after one with the database itself would go back"
		}
	case *KubeStateChange:
		revision = ev.Revision
	case *ExternalConfigChange:
		if ev.Source == ExternalDB {
			revision = ev.Revision
		}
	}
	if revision > 0 && revision <= c.revision {
		return fmt.Sprintf("dropped: the resync at revision %d has brought revision %d", c.revision, revision)
	}
	return ""
}

// watchdog reports an event that takes longer than its deadline. One serves all
// events until it has barked.
type watchdog struct {
	timer *time.Timer
	event *Record // being processed; under the status's lock
}

// watch begins with an event.
func (c *Controller) watch(rec *Record) {
	c.status.mu.Lock()
	defer c.status.mu.Unlock()
	c.status.Current, c.status.CurrentSince, c.status.Stuck = rec.Name, rec.ProcessingStart, false
	if c.watchdog == nil {
		w := &watchdog{event: rec}
		w.timer = time.AfterFunc(c.cfg.EventTimeout, func() { c.bark(w) })
		c.watchdog = w
		return
	}
	c.watchdog.event = rec
	c.watchdog.timer.Reset(c.cfg.EventTimeout)
}

// unwatch ends with the event. A watchdog that may be barking still is not used again.
func (c *Controller) unwatch() {
	c.status.mu.Lock()
	defer c.status.mu.Unlock()
	c.watchdog.event = nil
	if !c.watchdog.timer.Stop() {
		c.watchdog = nil
	}
}

// rewatch ends with one event and begins with another one.
func (c *Controller) rewatch(rec *Record) {
	c.unwatch()
	c.watch(rec)
}

func (c *Controller) bark(w *watchdog) {
	c.status.mu.Lock()
	rec := w.event
	c.status.Stuck = c.status.Stuck || rec != nil
	c.status.mu.Unlock()
	if rec != nil {
		c.deps.Log.Error("event takes longer than its deadline",
			"event", rec.Name, "seq", rec.SeqNum, "deadline", c.cfg.EventTimeout)
	}
}

// do runs the handlers and the commits, and heals. It leaves the commits to r.group if other
// events share them.
func (r *run) do(ctx context.Context) error {
	if err := r.inspect(); err != nil {
		return err
	}
	c := r.c
	r.begin()
	r.takeExternal()
	if r.ev.method == DownstreamResync {
		err := r.commitSink(ctx)
		if err != nil && !errors.Is(err, ErrFatal) {
			c.heal(err, false)
		}
		return r.outcome(err)
	}
	stopped := r.handle()
	if r.special() {
		r.withdraw(r.undo)
		return r.ended()
	}
	if c.groups && r.mayShare() {
		if r.group = c.gather(r); r.group != nil {
			return nil
		}
	}
	if _, ok := r.ev.Event.(*VerificationResync); ok {
		r.findings()
	}
	if !stopped {
		r.commit(ctx)
	} else {
		r.revert(ctx, false)
	}
	return r.healed()
}

// healed returns the outcome of the event, and schedules the healing that it needs.
func (r *run) healed() error {
	err := r.outcome(r.errs...)
	if r.c.fatal == nil {
		r.scheduleHealing(errors.Join(r.errs...))
	}
	return err
}

// begin brings the loop's state up to the event, and opens its transaction.
func (r *run) begin() {
	c := r.c
	r.announce()
	if r.update != nil {
		r.patchCache()
		r.txn = newUpdate(c.wanted, r.ev.depth)
		return
	}
	c.resyncs++
	if db, ok := r.ev.Event.(*DBResync); ok {
		r.takeKubeState(db.KubeState)
		if !db.Local {
			c.remote, c.revision = true, db.Revision
		}
	}
	r.txn = newResync(c.wanted, r.ev.depth)
}

// announce names the event whose changes are staged next.
func (r *run) announce() {
	for _, x := range r.c.deps.Committers {
		if e, ok := x.(EventCommitter); ok {
			r.c.must(func() { e.BeginEvent(r.rec.SeqNum, r.rec.Name) })
		}
	}
}

// outcome joins errs with those of values from outside. A fatal one among them, of
// a committer, a revert or the southbound, ends the loop.
func (r *run) outcome(errs ...error) error {
	err := errors.Join(append(errs, r.outside...)...)
	if errors.Is(err, ErrFatal) {
		r.c.fatal = err
	}
	return err
}

// patchCache applies a KubeStateChange before the handlers see it.
func (r *run) patchCache() {
	change, ok := r.ev.Event.(*KubeStateChange)
	if !ok {
		return
	}
	if change.New == nil {
		delete(r.c.kubeState[change.Resource], change.Key)
		return
	}
	if r.c.kubeState[change.Resource] == nil {
		r.c.kubeState[change.Resource] = map[string]proto.Message{}
	}
	r.c.kubeState[change.Resource][change.Key] = change.New
}

// handle calls the handlers; it is true where one of them stopped the event.
func (r *run) handle() (stopped bool) {
	handlers := r.c.deps.Handlers
	r.rec.Handlers, r.c.handled = r.c.handled[:0], nil // until the event has ended
	if r.c.kept() {
		r.rec.Handlers = make([]HandlerRecord, 0, len(handlers))
	}
	began := r.c.deps.Now()
	for i := range handlers {
		h := handlers[i]
		if r.reverse {
			h = handlers[len(handlers)-1-i]
		}
		change, wanted, err := r.call(h)
		if !wanted && err == nil {
			continue
		}
		if err == nil {
			r.finished = append(r.finished, h)
		}
		if misuse := r.txn.misuse; misuse != nil {
			r.txn.misuse = nil
			if !errors.Is(err, misuse) {
				err = errors.Join(err, misuse)
			}
		}
		rec := HandlerRecord{Handler: h.String(), Change: change}
		if err != nil {
			rec.Error = err.Error()
		}
		if r.c.kept() || r.tracing != nil {
			now := r.c.deps.Now()
			r.tracing.handled(&rec, began, now)
			rec.Duration, began = now.Sub(began), now
		}
		if err == nil {
			r.rec.Handlers = append(r.rec.Handlers, rec)
			continue
		}
		r.rec.Handlers = append(r.rec.Handlers, rec)
		r.errs = append(r.errs, fmt.Errorf("%s: %s: %w", h, r.ev.name, err))
		if errors.Is(err, ErrFatal) || errors.Is(err, ErrAbort) || r.reverts {
			return true
		}
	}
	return false
}

// handed is the call of a handler. The loop keeps one: a closure for each would cost an
// allocation for each handler and event.
type handed struct {
	r       *run
	handler EventHandler
	change  string
	wanted  bool
}

// do hands the event to the handler, if it is wanted.
func (x *handed) do() (err error) {
	r, h := x.r, x.handler
	if x.wanted = h.HandlesEvent(r.ev.Event); !x.wanted {
		return nil
	}
	if r.update != nil {
		x.change, err = h.Update(r.ev.Event, r.txn)
		return err
	}
	return h.Resync(r.ev.Event, r.c.kubeState, r.c.resyncs, r.txn)
}

// call hands the event to a handler, if it is wanted.
func (r *run) call(h EventHandler) (change string, wanted bool, err error) {
	x := &r.c.handed
	*x = handed{r: r, handler: h}
	err = r.c.guard(r.c.hand)
	return x.change, x.wanted, err
}

// special reports whether a handler has failed with a fatal or an aborting error. Then
// nothing of the event is committed: withdraw and ended end it.
func (r *run) special() bool {
	err := errors.Join(r.errs...)
	return errors.Is(err, ErrFatal) || errors.Is(err, ErrAbort)
}

// withdraw reverts the event unless an error is fatal, and drops with undo what it has staged.
func (r *run) withdraw(undo func()) {
	if r.reverts && !errors.Is(errors.Join(r.errs...), ErrFatal) {
		r.callRevert()
	}
	undo()
	r.txn.followUps = nil
}

// ended returns the outcome of an event that was withdrawn. A resync follows unless the error
// is fatal.
func (r *run) ended() error {
	err := r.outcome(r.errs...)
	switch {
	case r.c.fatal != nil:
	case r.update == nil:
		r.c.resynced(r.ev.Event, err)
	default:
		r.c.heal(err, true)
	}
	return err
}

func (r *run) undo() {
	for _, x := range r.c.deps.Committers {
		r.c.must(x.Undo)
	}
}

// commit makes durable what was staged, then commits southbound.
func (r *run) commit(ctx context.Context) {
	if r.update == nil && len(r.errs) > 0 {
		r.undo() // half a resync is none: what the failed handler did not put would be taken away
		return
	}
	if err := commitTogether(ctx, r); err != nil {
		r.rec.CommitError = err.Error()
		r.errs = append(r.errs, err)
		if r.reverts {
			r.revert(ctx, true)
		}
		return
	}
	r.apply(ctx)
}

// apply commits southbound an event whose staged changes are durable.
func (r *run) apply(ctx context.Context) {
	err := r.commitSink(ctx)
	if err == nil {
		return
	}
	r.errs = append(r.errs, err)
	if !r.reverts {
		return
	}
	_, remains := errors.AsType[*RemainError](err)
	if _, panicked := errors.AsType[*panicError](err); panicked {
		remains = true
	}
	if ev, ok := r.ev.Event.(RemainingEvent); ok && remains {
		r.errs = append(r.errs, r.c.guard(func() error { ev.Remains(err); return nil }))
	}
	r.revert(ctx, true)
	r.reverted = r.reverted && !remains // a resync restores it
}

func (r *run) commitStaged(ctx context.Context) error {
	began := r.c.deps.Now()
	defer func() { r.rec.CommitTook += r.c.deps.Now().Sub(began) }()
	if r.c.broken != nil {
		return fmt.Errorf("%s: %w", r.ev.name, r.c.broken)
	}
	for i, x := range r.c.deps.Committers {
		if err := r.c.guard(func() error { return x.Commit(ctx) }); err != nil {
			for _, y := range r.c.deps.Committers[i+1:] {
				r.c.must(y.Undo)
			}
			return fmt.Errorf("%s: %w", r.ev.name, err)
		}
	}
	return nil
}

// revert undoes the event in the opposite order. Where its staged changes were
// committed already, the handlers stage the opposite, which is committed too. The
// revert has a new deadline, since the event's own one may have been what failed it.
func (r *run) revert(ctx context.Context, committed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.cfg.EventTimeout)
	defer cancel()
	r.callRevert()
	if !committed {
		r.undo()
	} else if err := commitTogether(ctx, r); err != nil {
		r.errs = append(r.errs, fmt.Errorf("revert: %w", err))
		r.reverted = false
	}
	r.txn.followUps = nil
}

func (r *run) callRevert() {
	r.reverted = true
	r.announce() // other events of a group may have staged since
	for _, h := range slices.Backward(r.finished) {
		began := r.c.deps.Now()
		err := r.c.guard(func() error { return h.Revert(r.ev.Event) })
		ended := r.c.deps.Now()
		rec := HandlerRecord{Handler: h.String(), Revert: true, Duration: ended.Sub(began)}
		if err != nil {
			rec.Error = err.Error()
			r.errs = append(r.errs, fmt.Errorf("%s: revert %s: %w", h, r.ev.name, err))
			r.reverted = false
		}
		r.tracing.handled(&rec, began, ended)
		r.rec.Handlers = append(r.rec.Handlers, rec)
	}
}

func (r *run) scheduleHealing(err error) {
	switch {
	case r.update == nil:
		r.c.resynced(r.ev.Event, err)
	case err == nil || r.update.TransactionType() == BestEffortIgnoreErrors || r.reverted:
	default:
		r.c.heal(err, false)
	}
}

// end records the event, queues what follows, and calls Done.
func (r *run) end(err error) {
	c, rec := r.c, r.rec
	rec.ProcessingEnd = c.deps.Now()
	if s, ok := r.ev.Event.(SubjectEvent); ok && c.kept() {
		_ = c.guard(func() error { rec.Subject = s.Subject(); return nil }) // a bad subject does not fail the event
	}
	switch {
	case err != nil:
		rec.Error = err.Error()
		level := slog.LevelError
		if _, reported := r.ev.Event.(ReportedEvent); reported {
			level = slog.LevelDebug
		}
		c.deps.Log.Log(context.Background(), level, "event failed", "event", rec.Name, "seq", rec.SeqNum, "error", err)
	case c.deps.Log.Enabled(context.Background(), slog.LevelDebug):
		c.deps.Log.Debug("event processed",
			"event", rec.Name, "seq", rec.SeqNum, "took", rec.ProcessingEnd.Sub(rec.ProcessingStart),
			"description", strings.ReplaceAll(rec.Description, "\n", " "), "note", rec.Note)
	}
	if r.txn != nil {
		for _, ev := range r.txn.followUps {
			ev.pushed, ev.isFollowUp, ev.followUpTo = rec.ProcessingEnd, true, rec.SeqNum
			ev.depth, ev.verified = r.ev.depth+1, r.ev.verified
			c.queue.pushFollowUp(ev)
		}
	}
	r.noteOutcome(err)
	c.setStatus(func(s *Status) {
		s.Current, s.CurrentSince, s.Stuck, s.Processed = "", time.Time{}, false, s.Processed+1
	})
	if c.cfg.RecordEventHistory {
		c.history.add(rec)
	}
	if c.deps.Observe != nil {
		_ = c.guard(func() error { c.deps.Observe(rec); return nil })
	}
	r.tracing.end(rec, rec.ProcessingEnd)
	c.finished = r.finished
	if !c.kept() {
		c.handled = rec.Handlers
	}
	c.finish(&r.ev, err)
}
