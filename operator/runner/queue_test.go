// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/runner"
)

// runs records when each key was processed, and fails if runs of one key overlap.
type runs struct {
	t    testing.TB
	took time.Duration

	mu     sync.Mutex
	active map[string]bool
	most   int
	at     map[string][]time.Duration
	began  time.Time
}

func (r *runs) process(_ context.Context, key string) {
	r.mu.Lock()
	if r.active[key] {
		r.t.Errorf("%s runs twice at once", key)
	}
	r.active[key] = true
	r.most = max(r.most, len(r.active))
	r.at[key] = append(r.at[key], time.Since(r.began))
	r.mu.Unlock()
	time.Sleep(r.took)
	r.mu.Lock()
	delete(r.active, key)
	r.mu.Unlock()
}

// folds records how many requests each run has answered.
type folds struct {
	queued int
	runs   []int
}

func (f *folds) QueueEvent(string) { f.queued++ }

func (f *folds) PostRun(_, _ time.Duration, folds int) { f.runs = append(f.runs, folds) }

func TestQueueFoldsRequestsIntoOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := &folds{}
		q := runner.NewQueue(time.Second, f, time.Now)
		r := &runs{t: t, took: 300 * time.Millisecond, active: map[string]bool{}, at: map[string][]time.Duration{}, began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		for range 5 {
			q.Add("a", "before it runs", 0)
		}
		done := make(chan struct{})
		go func() { defer close(done); q.Run(ctx, 2, r.process) }()
		synctest.Wait()
		q.Add("a", "while it runs", 0)
		q.Add("a", "while it runs", time.Hour)
		q.Add("b", "later", 2*time.Second)
		q.Add("c", "never", 2*time.Second)
		q.Remove("c")
		q.Remove("d")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.mu.Lock()
		g.Expect(r.at).To(Equal(map[string][]time.Duration{"a": {0, time.Second}, "b": {2 * time.Second}}), "the first at once, the next after the interval")
		g.Expect(f.queued).To(Equal(9))
		g.Expect(f.runs).To(Equal([]int{5, 2, 1}))
		r.mu.Unlock()
		cancel()
		<-done
		q.Add("a", "kept for the next run", 0)
		ctx, cancel = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() { defer close(done); q.Run(ctx, 2, r.process) }()
		time.Sleep(time.Second)
		cancel()
		<-done
		g.Expect(r.at["a"]).To(HaveLen(3))
	})
}

func TestQueueLimitsWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		q := runner.NewQueue(0, nil, time.Now)
		r := &runs{t: t, took: runner.Patience / 2, active: map[string]bool{}, at: map[string][]time.Duration{}, began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 12 {
			q.Add(string(rune('a'+i)), "", 0)
		}
		done := make(chan struct{})
		go func() { defer close(done); q.Run(ctx, 4, r.process) }()
		time.Sleep(runner.Patience + runner.Patience/4)
		synctest.Wait()
		g.Expect(r.most).To(Equal(4))
		g.Expect(r.at).To(HaveLen(12))
		cancel() // while four run
		<-done
		g.Expect(r.active).To(BeEmpty(), "Run waits for them")
	})
}

func TestALongRunOfAQueueDelaysNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		q := runner.NewQueue(0, nil, time.Now)
		r := &runs{t: t, took: time.Hour, active: map[string]bool{}, at: map[string][]time.Duration{}, began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		for _, key := range []string{"a", "b", "c"} {
			q.Add(key, "", 0)
		}
		done := make(chan struct{})
		go func() { defer close(done); q.Run(ctx, 1, r.process) }()
		time.Sleep(3 * runner.Patience)
		synctest.Wait()
		q.Add("a", "", 0)
		time.Sleep(time.Minute)
		g.Expect(r.at).To(Equal(map[string][]time.Duration{"a": {0}, "b": {runner.Patience}, "c": {2 * runner.Patience}}))
		cancel()
		<-done
	})
}

func TestQueueTakesDueKeysInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		q := runner.NewQueue(0, nil, nil)
		take := func() (keys []string) {
			for len(q.Ready()) > 0 {
				<-q.Ready()
				if key, ok := q.Take(); ok {
					keys = append(keys, key)
				}
			}
			return keys
		}
		g.Expect(take()).To(BeEmpty())
		for _, key := range []string{"c", "a", "b", "a", "d"} {
			q.Add(key, "", 0)
		}
		q.Add("e", "", time.Second)
		q.Remove("b")
		g.Expect(q.Len()).To(Equal(4))
		g.Expect(take()).To(Equal([]string{"c", "a", "d"}), "each once, in the order of the first request")
		g.Expect(q.Len()).To(Equal(1), "e is not due")
		q.Add("a", "", 0)
		g.Expect(take()).To(Equal([]string{"a"}))
		time.Sleep(time.Second)
		key, ok := q.Take()
		g.Expect(key).To(Equal("e"))
		g.Expect(ok).To(BeTrue())
		_, ok = q.Take()
		g.Expect(ok).To(BeFalse())
	})
}
