// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queued is an event that was accepted. Controller.finish is the only caller of Done.
type queued struct {
	Event
	name       string
	method     EventMethodType
	fault      error // why it cannot be processed
	pushed     time.Time
	isFollowUp bool
	followUpTo uint64 // sequence number of the event that this one follows
	depth      int    // number of events that it follows, one after the other
	verified   bool   // it follows a verification
	alone      bool   // its commit is not shared
	again      bool   // it was put back
	class      EventClass
	arrival    uint64 // number of the event among those of producers
	behind     uint64 // arrival of the Ordered event that an Urgent one must not overtake
	finished   bool
}

// ring is a FIFO that keeps its memory.
type ring struct {
	slots   []queued
	head, n int
}

func (r *ring) at(i int) *queued { return &r.slots[(r.head+i)%len(r.slots)] }

func (r *ring) push(x queued) {
	if r.n == len(r.slots) {
		more := make([]queued, max(16, 2*r.n))
		for i := range r.n {
			more[i] = *r.at(i)
		}
		r.slots, r.head = more, 0
	}
	r.n++
	*r.at(r.n - 1) = x
}

// pushFront puts x before the others.
func (r *ring) pushFront(x queued) {
	r.push(queued{})
	r.head = (r.head + len(r.slots) - 1) % len(r.slots)
	*r.at(0) = x
}

// take removes one; those before it keep their order.
func (r *ring) take(i int) queued {
	x := *r.at(i)
	for ; i > 0; i-- {
		*r.at(i) = *r.at(i - 1)
	}
	*r.at(0) = queued{}
	r.head, r.n = (r.head+1)%len(r.slots), r.n-1
	return x
}

// maxFollowUpsInARow bounds the follow-ups that are taken before one event of a producer.
const maxFollowUpsInARow = 16

// maxOvertaking bounds the Urgent events that overtake before the event that they overtake
// has its turn.
const maxOvertaking = 128

// line is a FIFO of the events of producers, and the producers that wait for room in it, in
// order of arrival.
type line struct {
	ring
	waiting []*waiter
}

// queue holds two bounded FIFOs of events from producers, one of Urgent events and one of
// all others, and a FIFO of follow-ups, which go first. Follow-ups need no room (a handler
// cannot wait), but after maxFollowUpsInARow of them the next event of a producer has its
// turn. Events of producers go in order of arrival, except that Urgent ones overtake
// Background ones.
type queue struct {
	mu         sync.Mutex
	limit      int // of each line
	urgent     line
	events     line
	followUps  ring
	arrivals   uint64 // number of events that producers have queued
	ordered    uint64 // arrival of the newest Ordered event
	inARow     int    // follow-ups that were taken since the last event of a producer
	overtaking int    // Urgent events that have overtaken the first one of events
	closed     bool
	ready      chan struct{} // has a token while something is queued
}

// waiter is a producer that waits for room, in order of arrival.
type waiter struct {
	ev   queued
	over chan struct{} // closed when the event is queued, or err is set
	err  error
}

func newQueue(limit int) *queue { return &queue{limit: limit, ready: make(chan struct{}, 1)} }

// lineOf returns the line for events of a class.
func (q *queue) lineOf(class EventClass) *line {
	if class == Urgent {
		return &q.urgent
	}
	return &q.events
}

func (q *queue) push(ev queued) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pushLocked(ev)
}

func (q *queue) pushLocked(ev queued) error {
	_, isDB := ev.Event.(*DBResync) // all other events may wait for it
	l := q.lineOf(ev.class)
	switch {
	case q.closed:
		return ErrClosedController
	case l.n >= q.limit && !isDB:
		return ErrEventQueueFull
	}
	q.admit(l, ev)
	q.signal()
	return nil
}

// admit puts an event at the end of its line.
func (q *queue) admit(l *line, ev queued) {
	q.arrivals++
	ev.arrival, ev.behind = q.arrivals, q.ordered
	if ev.class == Ordered {
		q.ordered = ev.arrival
	}
	l.push(ev)
}

// pushWait pushes as soon as there is room and it is the caller's turn.
func (q *queue) pushWait(ctx context.Context, ev queued) error {
	q.mu.Lock()
	if err := q.pushLocked(ev); !errors.Is(err, ErrEventQueueFull) {
		q.mu.Unlock()
		return err
	}
	w := &waiter{ev: ev, over: make(chan struct{})}
	l := q.lineOf(ev.class)
	l.waiting = append(l.waiting, w)
	q.mu.Unlock()
	select {
	case <-w.over:
		return w.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(l.waiting, w)
	if i < 0 { // it was queued, or refused, in the meantime
		return w.err
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	return fmt.Errorf("wait for room in the event queue: %w", context.Cause(ctx))
}

// admitWaiting queues the events of waiting producers in order of arrival while there is room.
func (q *queue) admitWaiting(l *line) {
	n := 0
	for ; n < len(l.waiting) && l.n < q.limit; n++ {
		q.admit(l, l.waiting[n].ev)
		close(l.waiting[n].over)
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
}

// pushFollowUp puts an event behind the follow-ups that are queued.
func (q *queue) pushFollowUp(ev queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.followUps.push(ev)
	q.signal()
}

// putBack puts events that were taken back to their places.
func (q *queue) putBack(events ...queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ev := range slices.Backward(events) {
		q.lineOf(ev.class).pushFront(ev)
	}
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop takes the next event, if there is one. Unless all may go it takes the
// first DBResync only, and the others keep their places.
func (q *queue) pop(all bool) (ev queued, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !all {
		return q.popResync()
	}
	if l := q.next(); l != nil {
		return q.takeFirst(l), true
	}
	if q.followUps.n == 0 {
		return ev, false
	}
	q.inARow++
	ev = q.followUps.take(0)
	q.signalMore()
	return ev, true
}

// popResync takes the first DBResync.
func (q *queue) popResync() (ev queued, ok bool) {
	for i := range q.events.n {
		if _, ok = q.events.at(i).Event.(*DBResync); ok {
			ev = q.events.take(i)
			q.admitWaiting(&q.events)
			q.signalMore()
			break
		}
	}
	return ev, ok
}

// first returns the event of a producer that pop would take, and its line; no line if it
// would take a follow-up or nothing. Only the loop takes events, so that event stays the
// first one of its line until the loop takes it.
func (q *queue) first() (ev queued, from *line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if from = q.next(); from != nil {
		ev = *from.at(0)
	}
	return ev, from
}

// take takes the event that first has returned.
func (q *queue) take(from *line) queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takeFirst(from)
}

// next returns the line of the producers' event that comes next, nil if a follow-up or
// nothing comes next.
func (q *queue) next() *line {
	u, e := &q.urgent, &q.events
	switch {
	case q.followUps.n > 0 && (q.inARow < maxFollowUpsInARow || u.n+e.n == 0), u.n+e.n == 0:
		return nil
	case u.n == 0:
		return e
	case e.n == 0 || u.at(0).arrival < e.at(0).arrival:
		return u
	case u.at(0).behind < e.at(0).arrival && q.overtaking < maxOvertaking:
		return u // every event before it is a Background one
	}
	return e
}

// takeFirst takes the first event of a line.
func (q *queue) takeFirst(l *line) queued {
	ev := l.take(0)
	q.inARow = 0
	switch {
	case l == &q.events:
		q.overtaking = 0
	case q.events.n > 0 && q.events.at(0).arrival < ev.arrival:
		q.overtaking++
	}
	q.admitWaiting(l)
	q.signalMore()
	return ev
}

// signalMore signals if something is queued.
func (q *queue) signalMore() {
	if q.followUps.n+q.urgent.n+q.events.n > 0 {
		q.signal()
	}
}

// close refuses all further events and returns those that are queued: the follow-ups, then
// the others in order of arrival.
func (q *queue) close() []queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, l := range []*line{&q.urgent, &q.events} {
		for _, w := range l.waiting {
			w.err = ErrClosedController
			close(w.over)
		}
		l.waiting = nil
	}
	var left []queued
	for q.followUps.n > 0 {
		left = append(left, q.followUps.take(0))
	}
	for u, e := &q.urgent, &q.events; u.n+e.n > 0; {
		l := e
		if e.n == 0 || u.n > 0 && u.at(0).arrival < e.at(0).arrival {
			l = u
		}
		left = append(left, l.take(0))
	}
	return left
}

func (q *queue) lengths() (events, followUps int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.urgent.n + q.events.n, q.followUps.n
}
