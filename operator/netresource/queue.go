// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// TriggerObserver sees the requests of one kind and what they led to.
type TriggerObserver interface {
	// QueueEvent is called for every request.
	QueueEvent(reason string)
	// PostRun is called after every run, with how long it has taken, how long the
	// first request for it has waited, and how many requests it has answered.
	PostRun(callDuration, latency time.Duration, folds int)
}

// queue has what is to be done, by key. Requests for one key that come while it
// waits become one run, and runs of one key never overlap. Before run and after
// it what is asked for is kept, and done by the next one.
type queue struct {
	now      func() time.Time
	interval time.Duration // least time between two runs of a key
	observer TriggerObserver

	mu    sync.Mutex
	items map[string]*item
	due   dueHeap
	wake  chan struct{}
}

// item is a key that waits or runs.
type item struct {
	key    string
	due    time.Time
	first  time.Time // request that is not answered yet; zero: none
	last   time.Time // run
	folds  int
	runs   bool
	place  int // in the heap, -1: not there
	forget bool
}

func newQueue(interval time.Duration, o TriggerObserver, now func() time.Time) *queue {
	return &queue{now: now, interval: interval, observer: o, items: map[string]*item{}, wake: make(chan struct{}, 1)}
}

// add asks for a run of key, not before d has gone by. A request that is due
// earlier counts.
func (q *queue) add(key, reason string, d time.Duration) {
	if q.observer != nil {
		q.observer.QueueEvent(reason)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it == nil {
		it = &item{key: key, place: -1}
		q.items[key] = it
	}
	now := q.now()
	due := now.Add(d)
	if soonest := it.last.Add(q.interval); !it.last.IsZero() && due.Before(soonest) {
		due = soonest
	}
	if it.folds == 0 {
		it.first, it.due = now, due
	} else if due.Before(it.due) {
		it.due = due
	}
	it.folds++
	it.forget = false
	q.place(it)
}

// place has an item wait, unless it runs: then it waits when that has ended.
func (q *queue) place(it *item) {
	switch {
	case it.runs:
		return
	case it.place >= 0:
		heap.Fix(&q.due, it.place)
	default:
		heap.Push(&q.due, it)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// remove forgets a key. A run that is under way ends by itself.
func (q *queue) remove(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it == nil {
		return
	}
	if it.place >= 0 {
		heap.Remove(&q.due, it.place)
	}
	it.folds, it.forget = 0, true
	if !it.runs {
		delete(q.items, key)
	}
}

// next is what is due; or else how long until something is, less than 0: nothing.
func (q *queue) next() (it *item, folds int, latency, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.due) == 0 {
		return nil, 0, 0, -1
	}
	now := q.now()
	if wait := q.due[0].due.Sub(now); wait > 0 {
		return nil, 0, 0, wait
	}
	it = heap.Pop(&q.due).(*item)
	folds, latency = it.folds, now.Sub(it.first)
	it.folds, it.runs, it.last = 0, true, now
	return it, folds, latency, 0
}

func (q *queue) finish(it *item, took, latency time.Duration, folds int) {
	if q.observer != nil {
		q.observer.PostRun(took, latency, folds)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	it.runs = false
	switch {
	case it.folds > 0:
		if soonest := it.last.Add(q.interval); it.due.Before(soonest) {
			it.due = soonest
		}
		q.place(it)
	case it.forget:
		delete(q.items, it.key)
	}
}

// run does what is due with up to workers at once, until ctx ends and what is
// under way has. A run that gives its place back (leave) does not count.
func (q *queue) run(ctx context.Context, workers int, do func(ctx context.Context, key string)) {
	var work sync.WaitGroup
	defer work.Wait()
	slots := make(chan struct{}, max(workers, 1))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		it, folds, latency, wait := q.next()
		if it != nil {
			work.Go(func() {
				leave := sync.OnceFunc(func() { <-slots })
				defer leave()
				began := q.now()
				do(withPlace(ctx, leave), it.key)
				q.finish(it, q.now().Sub(began), latency, folds)
			})
			continue
		}
		<-slots
		q.idle(ctx, timer, wait)
	}
}

// idle waits until something may be due.
func (q *queue) idle(ctx context.Context, timer *time.Timer, wait time.Duration) {
	var later <-chan time.Time
	if wait >= 0 {
		timer.Reset(wait)
		later = timer.C
	}
	select {
	case <-later:
	case <-q.wake:
	case <-ctx.Done():
	}
}

// dueHeap has the earliest item first.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if !h[i].due.Equal(h[j].due) {
		return h[i].due.Before(h[j].due)
	}
	return h[i].first.Before(h[j].first)
}
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *dueHeap) Push(x any) {
	it := x.(*item)
	it.place = len(*h)
	*h = append(*h, it)
}

// Pop implements heap.Interface.
func (h *dueHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	it.place = -1
	*h = old[:len(old)-1]
	return it
}
