// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// queued is an event that was accepted. Its finish is the only caller of Done.
type queued struct {
	Event
	pushed     time.Time
	isFollowUp bool
	followUpTo uint64 // sequence number of the event that this one follows
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

// queue is a bounded FIFO of events from producers, and an unbounded one of
// follow-ups before it (a handler cannot wait, and makes few).
type queue struct {
	mu        sync.Mutex
	limit     int
	events    ring
	followUps ring
	closed    bool
	ready     chan struct{} // has a token while something is queued
	room      chan struct{} // closed and made anew when there is room for somebody who waits
	waiting   bool          // somebody waits for room
	gone      chan struct{} // closed by close
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), room: make(chan struct{}), gone: make(chan struct{})}
}

func (q *queue) push(ev queued) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.pushLocked(ev)
}

func (q *queue) pushLocked(ev queued) error {
	_, isDB := ev.Event.(*DBResync) // which may be what all others wait for
	switch {
	case q.closed:
		return ErrClosedController
	case q.events.n >= q.limit && !isDB:
		return ErrEventQueueFull
	}
	q.events.push(ev)
	q.signal()
	return nil
}

// pushWait pushes as soon as there is room.
func (q *queue) pushWait(ctx context.Context, ev queued) error {
	for {
		q.mu.Lock()
		err := q.pushLocked(ev)
		q.waiting = q.waiting || err == ErrEventQueueFull
		room := q.room
		q.mu.Unlock()
		if err != ErrEventQueueFull {
			return err
		}
		select {
		case <-room:
		case <-q.gone:
			return ErrClosedController
		case <-ctx.Done():
			return fmt.Errorf("wait for room in the event queue: %w", context.Cause(ctx))
		}
	}
}

// pushFollowUp puts an event before all but the follow-ups that are queued.
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
	case q.followUps.n > 0:
		ev, ok = q.followUps.take(0), true
	case q.events.n > 0:
		ev, ok = q.events.take(0), true
	}
	if q.waiting && q.events.n < q.limit {
		close(q.room)
		q.room, q.waiting = make(chan struct{}), false
	}
	if q.followUps.n+q.events.n > 0 {
		q.signal()
	}
	return ev, ok
}

// close refuses all further events and returns those that are queued.
func (q *queue) close() []queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.gone)
	}
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
