// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

// runs notes when each key was done, and that no key is done twice at once.
type runs struct {
	t    testing.TB
	took time.Duration

	mu     sync.Mutex
	active map[string]bool
	most   int
	at     map[string][]time.Duration
	began  time.Time
}

func (r *runs) do(_ context.Context, key string) {
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

// folds notes how many requests each run has answered.
type folds struct {
	queued int
	runs   []int
}

func (f *folds) QueueEvent(string) { f.queued++ }

func (f *folds) PostRun(_, _ time.Duration, folds int) { f.runs = append(f.runs, folds) }

func TestRequestsBecomeOneRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		f := &folds{}
		q := newQueue(time.Second, f, time.Now)
		r := &runs{t: t, took: 300 * time.Millisecond, active: map[string]bool{}, at: map[string][]time.Duration{}, began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		for range 5 {
			q.add("a", "before it runs", 0)
		}
		done := make(chan struct{})
		go func() { defer close(done); q.run(ctx, 2, r.do) }()
		synctest.Wait()
		q.add("a", "while it runs", 0)
		q.add("a", "while it runs", time.Hour)
		q.add("b", "later", 2*time.Second)
		q.add("c", "never", 2*time.Second)
		q.remove("c")
		q.remove("d")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.mu.Lock()
		g.Expect(r.at).To(Equal(map[string][]time.Duration{"a": {0, time.Second}, "b": {2 * time.Second}}), "the first at once, the next after the interval")
		g.Expect(f.queued).To(Equal(9))
		g.Expect(f.runs).To(Equal([]int{5, 2, 1}))
		r.mu.Unlock()
		cancel()
		<-done
		q.add("a", "kept for the next run", 0)
		ctx, cancel = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() { defer close(done); q.run(ctx, 2, r.do) }()
		time.Sleep(time.Second)
		cancel()
		<-done
		g.Expect(r.at["a"]).To(HaveLen(3))
	})
}

func TestWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		q := newQueue(0, nil, time.Now)
		r := &runs{t: t, took: time.Second, active: map[string]bool{}, at: map[string][]time.Duration{}, began: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 12 {
			q.add(string(rune('a'+i)), "", 0)
		}
		done := make(chan struct{})
		go func() { defer close(done); q.run(ctx, 4, r.do) }()
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		g.Expect(r.most).To(Equal(4))
		g.Expect(r.at).To(HaveLen(12))
		cancel() // while four are under way
		<-done
		g.Expect(r.active).To(BeEmpty(), "they were waited for")
	})
}

func TestTheBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		b := newBudget(10, 3, time.Now)
		began := time.Now()
		for _, want := range []time.Duration{0, 0, 0, 100, 200, 300} {
			g.Expect(b.take(t.Context())).To(Succeed())
			g.Expect(time.Since(began)).To(Equal(want * time.Millisecond))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		g.Expect(b.take(ctx)).NotTo(Succeed())
		g.Expect(b.take(t.Context())).To(Succeed())
		g.Expect(time.Since(began)).To(Equal(400*time.Millisecond), "whoever gives up leaves its token")
		time.Sleep(time.Hour)
		for range 3 {
			g.Expect(b.take(t.Context())).To(Succeed())
		}
		g.Expect(time.Since(began)).To(Equal(time.Hour+400*time.Millisecond), "no more than the burst is saved")
		g.Expect(newBudget(0, 0, time.Now).take(t.Context())).To(Succeed())
	})
}

func TestMetricsHaveTheirNames(t *testing.T) {
	g := NewWithT(t)
	m, r := NewMetrics("cadastre"), prometheus.NewPedanticRegistry()
	g.Expect(r.Register(m)).To(Succeed())
	m.IncAllocationAttempt("success", "s")
	m.AddIPAllocation("s", 3)
	m.AddIPRelease("s", 2)
	m.SetAllocatedIPs("used", 1)
	m.SetAvailableInterfaces(1)
	m.SetAvailableIPsPerSubnet("s", "z", 9)
	m.SetNetResourceSets("total", 1)
	m.IncResyncCount()
	for _, o := range []TriggerObserver{m.PoolMaintainerTrigger(), m.K8sSyncTrigger(), m.ResyncTrigger()} {
		o.QueueEvent("x")
		o.PostRun(time.Second, time.Second, 2)
	}
	all, err := r.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, f := range all {
		names = append(names, f.GetName())
	}
	want := []string{"ips", "available", "available_ips_per_subnet", "nodes", "allocation_ops", "release_ops", "interface_creation_ops", "resync_total"}
	for _, trigger := range []string{"deficit_resolver", "k8s_sync", "resync"} {
		want = append(want, trigger+"_queued_total", trigger+"_folds", trigger+"_duration_seconds", trigger+"_latency_seconds")
	}
	for i := range want {
		want[i] = "cadastre_ipam_" + want[i]
	}
	g.Expect(names).To(ConsistOf(want))
}
