// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
)

// maxGroup bounds the events that share a commit.
const maxGroup = 128

// maxGathering bounds the time in which the handlers process the events of a group: the first
// one is not answered before the last one is handled.
const maxGathering = 10 * time.Millisecond

// group is a run of queued events that share one durable commit. The handlers process one
// event after the other. Each event has a savepoint, so that the last one can be undone. Then
// all that is staged is committed once, and each event in turn is committed southbound and
// answered.
//
// The outcome of an event is the one that it has alone. Therefore an event that fails beside
// others, or that depends on their values, is undone and put back into the queue: it is the
// first one of the next group. If the shared commit fails, all events are put back, and each
// has its own commit. Only an abort or a fatal error is final at once.
type group struct {
	c       *Controller
	runs    []*run
	keys    map[string]bool          // GroupKeys of the events
	values  map[string]proto.Message // that they have put; nil: deleted
	aborted *run                     // withdrawn after the others; nil: none
}

// haveSavepoints reports whether each Committer is a SavepointCommitter.
func (c *Controller) haveSavepoints() bool {
	return !slices.ContainsFunc(c.deps.Committers, func(x Committer) bool {
		_, ok := x.(SavepointCommitter)
		return !ok
	})
}

// gather takes the events that share the commit of an event which the handlers have processed.
// It returns nil if there is none. It does not wait for any.
func (c *Controller) gather(r *run) *group {
	next, from := c.queue.first()
	if from == nil {
		return nil
	}
	key, ok := c.groupKey(r.ev.Event)
	if !ok {
		return nil
	}
	first := *r // a run that has its own commit stays on the stack
	g := &group{c: c, keys: map[string]bool{key: true}, values: map[string]proto.Message{}}
	g.join(&first)
	for from != nil && g.fits(&next) {
		further := &run{}
		c.open(further, c.queue.take(from))
		if !g.add(further) {
			break
		}
		next, from = c.queue.first()
	}
	if len(g.runs) == 1 && g.aborted == nil { // the one that was added is back in the queue
		c.rewatch(first.rec)
		return nil
	}
	return g
}

// mayShare reports whether a processed event may share its commit with later ones. Its
// follow-ups come before those.
func (r *run) mayShare() bool {
	if r.ev.alone || r.update == nil || len(r.errs) > 0 || len(r.txn.followUps) > 0 {
		return false
	}
	_, ok := r.ev.Event.(GroupedEvent)
	return ok
}

// groupKey returns the GroupKey of a GroupedEvent.
func (c *Controller) groupKey(event Event) (key string, ok bool) {
	e, grouped := event.(GroupedEvent)
	if !grouped {
		return "", false
	}
	err := c.guard(func() error { key = e.GroupKey(); return nil })
	return key, err == nil
}

// fits reports whether the next queued event may join the group, and notes its key.
func (g *group) fits(ev *queued) bool {
	last := g.runs[len(g.runs)-1]
	if len(g.runs) == maxGroup || g.c.ending() || ev.alone || ev.fault != nil || ev.method != Update ||
		last.rec.ProcessingStart.Sub(g.runs[0].rec.ProcessingStart) > maxGathering {
		return false
	}
	key, ok := g.c.groupKey(ev.Event)
	if !ok || g.keys[key] || g.c.expired(ev, g.c.deps.Now()) || ev.fault != nil {
		return false
	}
	g.keys[key] = true
	return true
}

// add processes one more event. It reports whether the group may take a further one.
func (g *group) add(r *run) bool {
	c := g.c
	c.rewatch(r.rec)
	for _, x := range c.deps.Committers {
		c.must(x.(SavepointCommitter).Mark)
	}
	if r.inspect() != nil {
		g.putBack(r)
		return false
	}
	r.begin()
	r.txn.earlier = g.values
	if stopped := r.handle(); !stopped && len(r.errs) == 0 && !r.txn.depends {
		g.join(r)
		return len(r.txn.followUps) == 0
	}
	final := r.special()
	r.withdraw(r.undoToMark)
	if final || r.special() { // the revert may have been fatal
		g.aborted = r
		return false
	}
	if r.reverts && !r.reverted {
		c.heal(errors.Join(r.errs...), false)
	}
	g.putBack(r)
	return false
}

// join adds an event whose handlers have succeeded.
func (g *group) join(r *run) {
	g.runs = append(g.runs, r)
	for k, m := range r.txn.changes {
		g.values[k] = m
	}
}

// undoToMark drops what the last event has staged.
func (r *run) undoToMark() {
	for _, x := range r.c.deps.Committers {
		r.c.must(x.(SavepointCommitter).UndoToMark)
	}
}

// putBack puts events that were undone back into the queue. They get their numbers again.
func (g *group) putBack(runs ...*run) {
	c := g.c
	events := make([]queued, 0, len(runs))
	for _, r := range runs {
		if r.tracing != nil {
			r.tracing.repeated(c.deps.Now())
			r.ev.again = true
		}
		events = append(events, r.ev)
	}
	c.seq = runs[0].rec.SeqNum
	c.queue.putBack(events...)
}

// commit makes the group durable and ends its events. It returns the number of events that
// it has ended or put back.
func (g *group) commit(work context.Context) int {
	c, first := g.c, g.runs[0]
	c.rewatch(first.rec)
	ctx, cancel := context.WithTimeout(work, c.cfg.EventTimeout)
	defer cancel()
	if err := commitTogether(ctx, g.runs...); err == nil {
		g.apply(work)
	} else {
		g.retry(work, err)
	}
	c.unwatch()
	n := len(g.runs)
	if r := g.aborted; r != nil {
		r.end(r.ended())
		n++
	}
	return n
}

// size returns the Group of the records: 0 for one event beside an aborted one.
func (g *group) size() int {
	if len(g.runs) == 1 {
		return 0
	}
	return len(g.runs)
}

// apply commits the events southbound, one after the other, and ends each of them.
func (g *group) apply(work context.Context) {
	c, took := g.c, g.runs[0].rec.CommitTook
	for i, r := range g.runs {
		if c.fatal != nil {
			g.abandon(work, g.runs[i:])
			return
		}
		if i > 0 {
			c.rewatch(r.rec)
		}
		r.rec.Group, r.rec.CommitTook = g.size(), took
		ctx, cancel := context.WithTimeout(work, c.cfg.EventTimeout)
		r.apply(ctx)
		cancel()
		r.end(r.healed())
	}
}

// retry undoes all events after their commit has failed with err, and puts them back: each
// has its own commit then. An abort among them is put back too, and comes after them.
func (g *group) retry(work context.Context, err error) {
	c := g.c
	failed := g.revert(work, g.runs)
	if errors.Is(err, ErrFatal) || errors.Is(failed, ErrFatal) {
		g.fail(err, failed)
		return
	}
	c.deps.Log.Warn("the shared commit of events failed: each is processed again by itself",
		"first", g.runs[0].rec.SeqNum, "events", len(g.runs), "error", err)
	if failed != nil {
		c.heal(failed, false)
	}
	again := g.runs
	if r := g.aborted; r != nil && !errors.Is(errors.Join(r.errs...), ErrFatal) {
		again, g.aborted = append(slices.Clip(again), r), nil
	}
	for _, r := range again {
		r.ev.alone = true
	}
	g.putBack(again...)
}

// revert reverts events in the opposite order, and commits what their handlers have staged
// for that: a part of the commit may be durable. It returns the errors.
func (g *group) revert(work context.Context, runs []*run) error {
	ctx, cancel := context.WithTimeout(work, g.c.cfg.EventTimeout)
	defer cancel()
	var errs []error
	for _, r := range slices.Backward(runs) {
		r.txn.followUps = nil
		if !r.reverts {
			continue
		}
		r.callRevert()
		errs = append(errs, r.errs...)
	}
	return errors.Join(append(errs, commitTogether(ctx, runs...))...)
}

// fail ends all events with the fatal error of their commit, or of its revert.
func (g *group) fail(commit, revert error) {
	for _, r := range g.runs {
		r.rec.Group, r.rec.CommitError = g.size(), commit.Error()
		r.end(r.outcome(commit, revert))
	}
}

// abandon reverts the events that were not committed southbound when the loop has failed.
func (g *group) abandon(work context.Context, runs []*run) {
	if err := g.revert(work, runs); err != nil {
		g.c.deps.Log.Error("events cannot be reverted", "events", len(runs), "error", err)
	}
	for _, r := range runs {
		r.rec.Group = g.size()
		r.end(ErrEventLoopIsAborting)
	}
}
