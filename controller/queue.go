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

// queued is an event that was accepted. Its finish is the only caller of Done.
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
	finished   bool
}

// finish calls Done, once.
func (q *queued) finish(err error, panicked func(any)) {
	if q.finished {
		return
	}
	q.finished = true
	defer func() {
		if r := recover(); r != nil {
			panicked(r)
		}
	}()
	q.Done(err)
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

// queue holds a bounded FIFO of events from producers, and one of follow-ups, which
// go first. Follow-ups need no room (a handler cannot wait), but after
// maxFollowUpsInARow of them the first event of a producer has its turn.
type queue struct {
	mu        sync.Mutex
	limit     int
	events    ring
	followUps ring
	inARow    int // follow-ups that were taken since the last event of a producer
	waiting   []*waiter
	closed    bool
	ready     chan struct{} // has a token while something is queued
}

// waiter is a producer that waits for room, in order of arrival.
type waiter struct {
	ev   queued
	over chan struct{} // closed when the event is queued, or err is set
	err  error
}

func newQueue(limit int) *queue { return &queue{limit: limit, ready: make(chan struct{}, 1)} }

func (q *queue) push(ev queued) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pushLocked(ev)
}

func (q *queue) pushLocked(ev queued) error {
	_, isDB := ev.Event.(*DBResync) // all other events may wait for it
	switch {
	case q.closed:
		return ErrClosedController
	case !q.hasRoom() && !isDB:
		return ErrEventQueueFull
	}
	q.events.push(ev)
	q.signal()
	return nil
}

func (q *queue) hasRoom() bool { return q.events.n < q.limit }

// pushWait pushes as soon as there is room and it is the caller's turn.
func (q *queue) pushWait(ctx context.Context, ev queued) error {
	q.mu.Lock()
	if err := q.pushLocked(ev); !errors.Is(err, ErrEventQueueFull) {
		q.mu.Unlock()
		return err
	}
	w := &waiter{ev: ev, over: make(chan struct{})}
	q.waiting = append(q.waiting, w)
	q.mu.Unlock()
	select {
	case <-w.over:
		return w.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 { // it was queued, or refused, in the meantime
		return w.err
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return fmt.Errorf("wait for room in the event queue: %w", context.Cause(ctx))
}

// admitWaiting queues the events of waiting producers in order of arrival while there is room.
func (q *queue) admitWaiting() {
	n := 0
	for ; n < len(q.waiting) && q.hasRoom(); n++ {
		q.events.push(q.waiting[n].ev)
		close(q.waiting[n].over)
	}
	q.waiting = slices.Delete(q.waiting, 0, n)
}

// pushFollowUp puts an event behind the follow-ups that are queued.
func (q *queue) pushFollowUp(ev queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.followUps.push(ev)
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
	switch {
	case !all:
		for i := range q.events.n {
			if _, ok = q.events.at(i).Event.(*DBResync); ok {
				ev = q.events.take(i)
				break
			}
		}
		if !ok {
			return ev, false
		}
	case q.followUps.n > 0 && (q.inARow < maxFollowUpsInARow || q.events.n == 0):
		ev, ok = q.followUps.take(0), true
		q.inARow++
	case q.events.n > 0:
		ev, ok = q.events.take(0), true
		q.inARow = 0
	}
	q.admitWaiting()
	if q.followUps.n+q.events.n > 0 {
		q.signal()
	}
	return ev, ok
}

// close refuses all further events and returns those that are queued.
func (q *queue) close() []queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, w := range q.waiting {
		w.err = ErrClosedController
		close(w.over)
	}
	q.waiting = nil
	var left []queued
	for _, r := range []*ring{&q.followUps, &q.events} {
		for r.n > 0 {
			left = append(left, r.take(0))
		}
	}
	return left
}

func (q *queue) lengths() (events, followUps int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.events.n, q.followUps.n
}
