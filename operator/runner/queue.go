// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"cmp"
	"container/heap"
	"context"
	"sync"
	"time"
)

// Observer sees the requests of a Queue and the runs that answer them.
type Observer interface {
	// QueueEvent is called for every request.
	QueueEvent(reason string)
	// PostRun is called after every run, with its duration, how long the first
	// request for it has waited, and how many requests it has answered.
	PostRun(callDuration, latency time.Duration, folds int)
}

// Queue holds keys to be processed, each when it is due. Requests for a key that
// come while it waits become one run, and runs of one key never overlap. Keys
// that are added while the queue does not run wait for its next run.
//
// A queue is used in one of two ways: Run processes keys with several workers;
// Ready and Take hand keys that were added without a delay to one consumer.
type Queue struct {
	now      func() time.Time
	interval time.Duration // least time between two runs of a key
	observer Observer      // may be nil

	mu    sync.Mutex
	items map[string]*item
	due   dueHeap
	added uint64 // requests that made a key wait
	ready chan struct{}
}

// item is a key that waits or runs, or ran less than interval ago.
type item struct {
	key     string
	due     time.Time
	order   uint64    // of the first request, among those that are due at once
	first   time.Time // first request that is not answered yet
	last    time.Time // start of the last run
	folds   int       // requests that are not answered yet
	running bool
	removed bool
	place   int // in the heap, -1: not there
}

// Patience limits the time for which a run keeps its worker to itself. A run that waits
// for longer, for an API server or a cloud, delays no other key.
const Patience = time.Second

// NewQueue returns an empty queue in which two runs of a key begin at least
// interval apart. observer may be nil. now must advance like the timers of
// package time; nil stands for time.Now.
func NewQueue(interval time.Duration, observer Observer, now func() time.Time) *Queue {
	if now == nil {
		now = time.Now
	}
	return &Queue{
		now:      now,
		interval: interval,
		observer: observer,
		items:    map[string]*item{},
		ready:    make(chan struct{}, 1),
	}
}

// Add requests a run of key after d. The earliest of several requests counts.
func (q *Queue) Add(key, reason string, d time.Duration) {
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
		q.added++
		it.first, it.due, it.order = now, due, q.added
	} else if due.Before(it.due) {
		it.due = due
	}
	it.folds++
	it.removed = false
	q.schedule(it)
}

// schedule puts an item into the heap. If it runs, finish does so afterwards.
func (q *Queue) schedule(it *item) {
	switch {
	case it.running:
		return
	case it.place >= 0:
		heap.Fix(&q.due, it.place)
	default:
		heap.Push(&q.due, it)
	}
	q.signal()
}

func (q *Queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Remove cancels the requests for a key. A run that has begun goes on.
func (q *Queue) Remove(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.items[key]
	if it == nil {
		return
	}
	if it.place >= 0 {
		heap.Remove(&q.due, it.place)
	}
	it.folds, it.removed = 0, true
	if !it.running {
		delete(q.items, key)
	}
}

// Len returns how many keys wait.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.due)
}

// Ready receives a value when there may be a key to take.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// Take returns the next key that is due, and ends its run at once.
func (q *Queue) Take() (key string, ok bool) {
	it, folds, latency, _ := q.next()
	if it == nil {
		return "", false
	}
	q.finish(it, 0, latency, folds)
	if q.Len() > 0 {
		q.signal()
	}
	return it.key, true
}

// next starts the run of the item that is due. If none is, wait says how long
// until then; it is negative if no key waits.
func (q *Queue) next() (it *item, folds int, latency, wait time.Duration) {
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
	it.folds, it.running, it.last = 0, true, now
	return it, folds, latency, 0
}

// finish ends a run. Requests that came during it wait for the next one.
func (q *Queue) finish(it *item, took, latency time.Duration, folds int) {
	if q.observer != nil {
		q.observer.PostRun(took, latency, folds)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	it.running = false
	switch {
	case it.folds > 0:
		if soonest := it.last.Add(q.interval); it.due.Before(soonest) {
			it.due = soonest
		}
		q.schedule(it)
	case it.removed || q.interval == 0:
		delete(q.items, it.key)
	}
}

// Run processes keys that are due, up to workers at once, until ctx ends and all
// runs have returned. After Patience another key takes the place of a run that goes on.
func (q *Queue) Run(ctx context.Context, workers int, process func(ctx context.Context, key string)) {
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
				late := time.AfterFunc(Patience, leave)
				defer late.Stop()
				began := q.now()
				defer func() { q.finish(it, q.now().Sub(began), latency, folds) }() // also if it ends its goroutine
				process(ctx, it.key)
			})
			continue
		}
		<-slots
		q.idle(ctx, timer, wait)
	}
}

// idle waits until a key may be due.
func (q *Queue) idle(ctx context.Context, timer *time.Timer, wait time.Duration) {
	var later <-chan time.Time
	if wait >= 0 {
		timer.Reset(wait)
		later = timer.C
	}
	select {
	case <-later:
	case <-q.ready:
	case <-ctx.Done():
	}
}

// dueHeap orders items by when they are due, the earliest first.
type dueHeap []*item

func (h dueHeap) Len() int { return len(h) }

func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].due.Compare(h[j].due), cmp.Compare(h[i].order, h[j].order)) < 0
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
