// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// queued is an event that was accepted. Its finish is the only caller of Done.
type queued struct {
	Event
	pushed   time.Time
	followTo *uint64 // sequence number of the event that this one follows
	finished bool
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

// queue is a bounded FIFO of events from producers, and an unbounded one of
// follow-ups before it (a handler cannot wait, and makes few).
type queue struct {
	mu        sync.Mutex
	limit     int
	events    []*queued
	followUps []*queued
	closed    bool
	ready     chan struct{} // has a token while something is queued
	room      chan struct{} // closed and made anew when room appears
	gone      chan struct{} // closed by close
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, ready: make(chan struct{}, 1), room: make(chan struct{}), gone: make(chan struct{})}
}

func (q *queue) push(ev *queued) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, isDB := ev.Event.(*DBResync) // which may be what all others wait for
	switch {
	case q.closed:
		return ErrClosedController
	case len(q.events) >= q.limit && !isDB:
		return ErrEventQueueFull
	}
	q.events = append(q.events, ev)
	q.signal()
	return nil
}

// pushWait pushes as soon as there is room.
func (q *queue) pushWait(ctx context.Context, ev *queued) error {
	for {
		q.mu.Lock()
		room := q.room
		q.mu.Unlock()
		err := q.push(ev)
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

// pushFollowUps puts events before all but the follow-ups that are queued.
func (q *queue) pushFollowUps(evs []*queued) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.followUps = append(q.followUps, evs...)
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// pop takes the next event, nil if there is none. Unless all may go it takes the
// first DBResync only, and the others keep their places.
func (q *queue) pop(all bool) *queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	var ev *queued
	switch {
	case !all:
		i := slices.IndexFunc(q.events, func(x *queued) bool { _, isDB := x.Event.(*DBResync); return isDB })
		if i < 0 {
			return nil
		}
		ev = q.events[i]
		q.events = slices.Delete(q.events, i, i+1)
	case len(q.followUps) > 0:
		ev, q.followUps[0] = q.followUps[0], nil
		q.followUps = q.followUps[1:]
	case len(q.events) > 0:
		ev, q.events[0] = q.events[0], nil
		q.events = q.events[1:]
	}
	if len(q.events) == q.limit-1 {
		close(q.room)
		q.room = make(chan struct{})
	}
	if len(q.followUps)+len(q.events) > 0 {
		q.signal()
	}
	return ev
}

// close refuses all further events and returns those that are queued.
func (q *queue) close() []*queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.closed = true
		close(q.gone)
	}
	left := append(q.followUps, q.events...)
	q.followUps, q.events = nil, nil
	return left
}

func (q *queue) lengths() (events, followUps int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.events), len(q.followUps)
}
