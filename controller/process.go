// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
)

// run is the processing of one event.
type run struct {
	c        *Controller
	ev       *queued
	update   UpdateEvent // nil for a resync
	txn      *transaction
	rec      *Record
	finished []EventHandler // whose Update or Resync has succeeded
	errs     []error
	reverted bool
}

// process is an event from its acceptance to its Done.
func (c *Controller) process(ctx context.Context, ev *queued) {
	began := c.deps.Now()
	r := &run{c: c, ev: ev, rec: &Record{
		SeqNum: c.seq, ProcessingStart: began, Waited: began.Sub(ev.pushed),
		Name: ev.GetName(), Method: ev.Method(), IsFollowUp: ev.followTo != nil,
		Handlers: []HandlerRecord{}, Txn: []string{},
	}}
	_ = guard(func() error { r.rec.Description = ev.String(); return nil }) // a bad text is no reason to fail
	if ev.followTo != nil {
		r.rec.FollowUpTo = *ev.followTo
	}
	c.seq++
	if e, ok := ev.Event.(ExpiringEvent); ok && began.After(e.Deadline()) {
		r.end(fmt.Errorf("%s: %w (it waited %s)", ev.GetName(), ErrExpired, r.rec.Waited.Round(time.Millisecond)))
		return
	}
	c.setStatus(func(s *Status) { s.Current, s.CurrentSince, s.Stuck = r.rec.Name, began, false })
	watchdog := time.AfterFunc(c.cfg.EventTimeout, func() {
		c.setStatus(func(s *Status) { s.Stuck = s.CurrentSince == began })
		c.deps.Log.Error("event takes longer than its deadline", "event", r.rec.Name, "seq", r.rec.SeqNum, "deadline", c.cfg.EventTimeout)
	})
	// Once begun an event is finished, also while the agent is stopping.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.EventTimeout)
	err := r.do(ctx)
	cancel()
	watchdog.Stop()
	r.end(err)
}

// do runs the handlers and the commits, and heals.
func (r *run) do(ctx context.Context) error {
	c := r.c
	if r.ev.Method() == Update {
		u, ok := r.ev.Event.(UpdateEvent)
		if !ok {
			return fmt.Errorf("%s: %w", r.ev.GetName(), ErrNotUpdateEvent)
		}
		r.update = u
		r.patchCache()
		r.txn = newTransaction(c.wanted)
	} else {
		c.resyncs++
		if db, ok := r.ev.Event.(*DBResync); ok {
			c.kubeState = db.KubeState
		}
		r.txn = newTransaction(nil)
	}
	if r.ev.Method() == DownstreamResync {
		for k, m := range c.wanted {
			r.txn.Put(k, m)
		}
		err := r.commitSink(ctx)
		if err != nil {
			c.heal(err, false)
		}
		return err
	}
	stopped := r.handle()
	if err := r.special(); err != nil {
		return err
	}
	if !stopped {
		r.commit(ctx)
	} else {
		r.revert(ctx, false)
	}
	err := errors.Join(r.errs...)
	r.scheduleHealing(err)
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
	if r.c.kubeState == nil {
		r.c.kubeState = KubeStateData{}
	}
	if r.c.kubeState[change.Resource] == nil {
		r.c.kubeState[change.Resource] = map[string]proto.Message{}
	}
	r.c.kubeState[change.Resource][change.Key] = change.New
}

// handle calls the handlers; it is true where one of them stopped the event.
func (r *run) handle() (stopped bool) {
	handlers := slices.Clone(r.c.deps.Handlers)
	if r.update != nil && r.update.Direction() == Reverse {
		slices.Reverse(handlers)
	}
	for _, h := range handlers {
		wanted := true
		rec := HandlerRecord{Handler: h.String()}
		began := r.c.deps.Now()
		err := guard(func() (err error) {
			if wanted = h.HandlesEvent(r.ev.Event); !wanted {
				return nil
			}
			if r.update != nil {
				rec.Change, err = h.Update(r.ev.Event, r.txn)
				return err
			}
			return h.Resync(r.ev.Event, r.c.kubeState, r.c.resyncs, r.txn)
		})
		rec.Duration = r.c.deps.Now().Sub(began)
		if !wanted && err == nil {
			continue
		}
		if err == nil {
			r.finished = append(r.finished, h)
			r.rec.Handlers = append(r.rec.Handlers, rec)
			continue
		}
		rec.Error = err.Error()
		r.rec.Handlers = append(r.rec.Handlers, rec)
		r.errs = append(r.errs, fmt.Errorf("%s: %s: %w", h, r.ev.GetName(), err))
		if errors.Is(err, ErrFatal) || errors.Is(err, ErrAbort) || r.reverts() {
			return true
		}
	}
	return false
}

func (r *run) reverts() bool { return r.update != nil && r.update.TransactionType() == RevertOnFailure }

// guard turns a panic into an error.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// special ends the event for fatal and aborting errors: nothing is committed.
func (r *run) special() error {
	err := errors.Join(r.errs...)
	switch {
	case errors.Is(err, ErrFatal):
		r.c.fatal = err
	case errors.Is(err, ErrAbort):
		if r.update != nil {
			r.callRevert()
		}
		if r.update == nil {
			r.c.resynced(r.ev.Event, err)
		} else {
			r.c.heal(err, true)
		}
	default:
		return nil
	}
	r.undo()
	r.txn.followUps = nil
	return err
}

func (r *run) undo() {
	for _, x := range r.c.deps.Committers {
		x.Undo()
	}
}

// commit makes durable what was staged, then commits southbound.
func (r *run) commit(ctx context.Context) {
	if r.update == nil && len(r.errs) > 0 {
		r.undo() // half a resync is none: what the failed handler did not put would be taken away
		return
	}
	if err := r.commitStaged(ctx); err != nil {
		r.rec.CommitError = err.Error()
		r.errs = append(r.errs, err)
		if r.reverts() {
			r.revert(ctx, true)
		}
		return
	}
	if err := r.commitSink(ctx); err != nil {
		r.errs = append(r.errs, err)
		if r.reverts() {
			r.revert(ctx, true)
		}
	}
}

func (r *run) commitStaged(ctx context.Context) error {
	for i, x := range r.c.deps.Committers {
		if err := guard(func() error { return x.Commit(ctx) }); err != nil {
			for _, y := range r.c.deps.Committers[i+1:] {
				y.Undo()
			}
			return fmt.Errorf("%s: %w", r.ev.GetName(), err)
		}
	}
	return nil
}

// commitSink commits the transaction and remembers it as wanted.
func (r *run) commitSink(ctx context.Context) error {
	c, values := r.c, r.txn.values()
	if r.update != nil && len(values) == 0 {
		return nil
	}
	retry := Retry{c.cfg.EnableRetry, c.cfg.DelayRetry, c.cfg.MaxRetryAttempts, c.cfg.EnableExpBackoffRetry}
	txn := Transaction{Seq: r.rec.SeqNum, Method: r.ev.Method(), Description: r.describe(), Values: values, RevertOnFailure: r.reverts(), Retry: retry}
	for _, v := range values {
		op := "put "
		if v.Message == nil {
			op = "delete "
		}
		r.rec.Txn = append(r.rec.Txn, op+v.Key)
	}
	err := guard(func() error { return c.deps.Sink.Commit(ctx, txn) })
	if err != nil {
		err = fmt.Errorf("%s: commit southbound: %w", r.ev.GetName(), err)
		r.rec.TxnError = err.Error()
		if r.reverts() {
			return err
		}
	}
	if r.update == nil {
		c.wanted = r.txn.changes
		return err
	}
	for _, v := range values {
		if v.Message == nil {
			delete(c.wanted, v.Key)
		} else {
			c.wanted[v.Key] = v.Message
		}
	}
	return err
}

func (r *run) describe() string {
	s := r.ev.GetName()
	for _, h := range r.rec.Handlers {
		if h.Change != "" {
			s += "\n* " + h.Handler + ": " + h.Change
		}
	}
	return s
}

// revert undoes the event in the opposite order. Where its staged changes were
// committed already, the handlers stage the opposite, which is committed too;
// the event's own deadline may have been what failed it, so that has a new one.
func (r *run) revert(ctx context.Context, committed bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.c.cfg.EventTimeout)
	defer cancel()
	r.callRevert()
	if !committed {
		r.undo()
	} else if err := r.commitStaged(ctx); err != nil {
		r.errs = append(r.errs, fmt.Errorf("revert: %w", err))
		r.reverted = false
	}
	r.txn.followUps = nil
}

func (r *run) callRevert() {
	r.reverted = true
	for _, h := range slices.Backward(r.finished) {
		began := r.c.deps.Now()
		err := guard(func() error { return h.Revert(r.ev.Event) })
		rec := HandlerRecord{Handler: h.String(), Revert: true, Duration: r.c.deps.Now().Sub(began)}
		if err != nil {
			rec.Error = err.Error()
			r.errs = append(r.errs, fmt.Errorf("%s: revert %s: %w", h, r.ev.GetName(), err))
			r.reverted = false
		}
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
	if err != nil {
		rec.Error = err.Error()
		c.deps.Log.Error("event failed", "event", rec.Name, "seq", rec.SeqNum, "error", err)
	} else {
		c.deps.Log.Debug("event processed", "event", rec.Name, "seq", rec.SeqNum, "took", rec.ProcessingEnd.Sub(rec.ProcessingStart),
			"description", strings.ReplaceAll(rec.Description, "\n", " "))
	}
	if r.txn != nil && len(r.txn.followUps) > 0 {
		var follow []*queued
		for _, ev := range r.txn.followUps {
			follow = append(follow, &queued{Event: ev, pushed: rec.ProcessingEnd, followTo: &rec.SeqNum})
		}
		c.queue.pushFollowUps(follow)
	}
	c.setStatus(func(s *Status) {
		s.Current, s.CurrentSince, s.Stuck, s.Processed = "", time.Time{}, false, s.Processed+1
	})
	if c.cfg.RecordEventHistory {
		c.history.add(rec)
	}
	if c.deps.Observe != nil {
		_ = guard(func() error { c.deps.Observe(rec); return nil })
	}
	c.finish(r.ev, err)
}
