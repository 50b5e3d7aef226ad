// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/faulty"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

func TestASnapshotAndThenChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pod("old", "10.1.5.2")
		r.put(kv.NodeKey("a"), &kv.Node{Name: "a", PodCidrs: []string{"10.1.5.0/24"}})
		r.put(kv.NodeRecordKey(5), &kv.NodeRecord{Id: 5, Name: "a"})
		r.putRaw("something/else", []byte("not for us"))
		r.run()
		defer r.end(t)
		synctest.Wait()
		base := map[string]string{
			podAt("old"): "pod old 10.1.5.2", kubestate.Nodes + " k8s/node/a": "node a 10.1.5.0/24", kubestate.NodeRecords + " nodes/5": "record 5 a",
		}
		r.comes(base)
		r.pod("new", "10.1.5.3")
		r.pod("old", "10.1.5.4")
		r.putRaw("something/else", []byte("still not"))
		synctest.Wait()
		base[podAt("new")], base[podAt("old")] = "pod new 10.1.5.3", "pod old 10.1.5.4"
		r.comes(base)
		r.remove(kv.NodeKey("a"))
		r.remove("something/else")
		synctest.Wait()
		delete(base, kubestate.Nodes+" k8s/node/a")
		r.comes(base)
		r.put(kv.NodeKey("a"), &kv.Node{Name: "a", PodCidrs: []string{"10.1.6.0/24"}}) // again
		synctest.Wait()
		base[kubestate.Nodes+" k8s/node/a"] = "node a 10.1.6.0/24"
		r.comes(base)
		_, resyncs, changes, _ := r.loop.seen()
		r.g.Expect([]int{resyncs, changes}).To(Equal([]int{1, 4}))
	})
}

// An empty store is a snapshot, too: the loop waits for one.
func TestAnEmptyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		_, resyncs, _, _ := r.loop.seen()
		r.g.Expect(resyncs).To(Equal(1))
	})
}

// spied is a store in which something is written as soon as it was listed, and
// whose open watches are counted.
type spied struct {
	kvdb.Store
	listed func()
	open   atomic.Int32
}

func (s *spied) List(ctx context.Context, prefix string) ([]kvdb.KeyValue, int64, error) {
	kvs, rev, err := s.Store.List(ctx, prefix)
	s.listed()
	return kvs, rev, err
}

func (s *spied) Watch(ctx context.Context, prefix string, rev int64) (kvdb.Watcher, error) {
	w, err := s.Store.Watch(ctx, prefix, rev)
	if err == nil {
		s.open.Add(1)
		w = &spiedWatch{Watcher: w, store: s}
	}
	return w, err
}

type spiedWatch struct {
	kvdb.Watcher
	store *spied
}

func (w *spiedWatch) Close() {
	w.store.open.Add(-1)
	w.Watcher.Close()
}

// What is written between the snapshot and the watch is not lost, and a watch
// whose snapshot is replaced does not go on beside the new one.
func TestAChangeBetweenTheSnapshotAndTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		n := 0
		store := &spied{Store: r.store, listed: func() { n++; r.pod("between", fmt.Sprint("10.1.5.", n)) }}
		r.Source = kubestate.New(kubestate.Deps{Log: slog.New(slog.DiscardHandler), Store: store, EventLoop: r.loop})
		r.pod("before", "10.1.5.99")
		r.run()
		defer r.end(t)
		for i := range 5 {
			synctest.Wait()
			r.comes(map[string]string{podAt("before"): "pod before 10.1.5.99", podAt("between"): fmt.Sprint("pod between 10.1.5.", i+1)})
			r.g.Expect(store.open.Load()).To(BeNumerically("==", 1))
			r.g.Expect(r.Resync(context.Background())).To(Succeed())
		}
	})
}

// Writers that never pause: nothing is lost, nothing comes twice, whatever the
// moment of the snapshot, also when snapshots are asked for meanwhile.
func TestConcurrentWriters(t *testing.T) {
	const writers, writes = 8, 40
	r := newRig(t)
	r.run()
	defer r.end(t)
	want := map[string]string{}
	var wg sync.WaitGroup
	for w := range writers {
		name := fmt.Sprint("w", w)
		want[podAt(name)] = fmt.Sprintf("pod %s 10.1.%d.%d", name, w, writes-1)
		if w%2 == 1 {
			delete(want, podAt(name))
		}
		wg.Go(func() {
			for i := range writes {
				r.pod(name, fmt.Sprintf("10.1.%d.%d", w, i))
			}
			if w%2 == 1 {
				r.remove("k8s/pod/ns/" + name)
			}
		})
	}
	wg.Go(func() {
		for range 5 {
			r.g.Expect(r.Resync(context.Background())).To(Succeed())
		}
	})
	wg.Wait()
	r.comes(want)
	_, resyncs, _, _ := r.loop.seen()
	r.g.Expect(resyncs).To(BeNumerically(">=", 6))
}

// What cannot be decoded harms nothing else: neither in the snapshot nor later.
func TestValuesThatCannotBeDecoded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		garbage := []byte{0xff, 0xff, 0xff}
		r.putRaw("k8s/pod/ns/bad", garbage)
		r.putRaw("nodes/bad", garbage)
		r.pod("good", "10.1.5.2")
		r.run()
		defer r.end(t)
		synctest.Wait()
		want := map[string]string{podAt("good"): "pod good 10.1.5.2"}
		r.comes(want)
		r.putRaw("k8s/pod/ns/bad", append(garbage, 0))
		r.putRaw("k8s/pod/ns/worse", garbage)
		r.remove("k8s/pod/ns/worse")
		synctest.Wait()
		_, resyncs, changes, _ := r.loop.seen()
		r.g.Expect([]int{resyncs, changes}).To(Equal([]int{1, 0}))
		r.comes(want)
		r.pod("bad", "10.1.5.3") // repaired
		synctest.Wait()
		want[podAt("bad")] = "pod bad 10.1.5.3"
		r.comes(want)
	})
}

// A transaction of several keys comes whole.
func TestATransactionOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pod("a", "10.1.5.2")
		r.run()
		defer r.end(t)
		synctest.Wait()
		_, err := r.store.Txn(context.Background(), nil, []kvdb.Op{
			kvdb.Delete("k8s/pod/ns/a"), kvdb.Put("k8s/pod/ns/b", nil), kvdb.Put("k8s/node/n", nil),
		})
		r.g.Expect(err).NotTo(HaveOccurred())
		synctest.Wait()
		r.comes(map[string]string{podAt("b"): "pod  ", kubestate.Nodes + " k8s/node/n": "node  "})
	})
}

// A watch that breaks is followed by a snapshot, which shows what was missed.
func TestAWatchThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faulty.On(faulty.Watch, 1, faulty.Cut(1)))
		r.pod("gone meanwhile", "10.1.5.9")
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.pod("a", "10.1.5.2")
		synctest.Wait()
		_, resyncs, changes, _ := r.loop.seen()
		r.g.Expect([]int{resyncs, changes}).To(Equal([]int{1, 1}))
		r.pod("b", "10.1.5.3")
		r.remove("k8s/pod/ns/gone meanwhile")
		synctest.Wait()
		_, resyncs, _, _ = r.loop.seen()
		r.g.Expect(resyncs).To(Equal(1), "it does not hammer the store")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2", podAt("b"): "pod b 10.1.5.3"})
		_, resyncs, _, _ = r.loop.seen()
		r.g.Expect(resyncs).To(Equal(2))
		r.pod("c", "10.1.5.4")
		synctest.Wait()
		_, resyncs, changes, _ = r.loop.seen()
		r.g.Expect([]int{resyncs, changes}).To(Equal([]int{2, 2}))
	})
}

// A store that fails, for some time, costs nothing but that time.
func TestAStoreThatFailsAndRecovers(t *testing.T) {
	for op, each := range map[string]int{faulty.List: 1, faulty.Watch: 2} { // operations of each attempt
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, faulty.Always(op, faulty.Fail()))
				r.pod("a", "10.1.5.2")
				before := r.store.Count()
				r.run()
				defer r.end(t)
				time.Sleep(10500 * time.Millisecond)
				synctest.Wait()
				_, resyncs, _, _ := r.loop.seen()
				r.g.Expect(resyncs).To(BeZero())
				r.g.Expect(r.store.Count()).To(Equal(before+11*each), "once a second, not more")
				r.store.Reset()
				time.Sleep(time.Second)
				synctest.Wait()
				r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2"})
			})
		})
	}
}

// Resync answers when the loop has processed the new snapshot, with its outcome.
func TestResyncWaitsForTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		gate := make(chan struct{})
		r.loop.set(func(l *loop) { l.gate, l.outcome = gate, errors.New("no such device") })
		answered := make(chan error, 1)
		go func() { answered <- r.Resync(context.Background()) }()
		synctest.Wait()
		r.g.Expect(answered).To(BeEmpty(), "the loop is not done with it")
		close(gate)
		synctest.Wait()
		r.g.Expect(<-answered).To(MatchError("no such device"))
		r.loop.set(func(l *loop) { l.outcome = nil })
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		_, resyncs, _, _ := r.loop.seen()
		r.g.Expect(resyncs).To(Equal(3))
	})
}

// Who does not want to wait any longer need not.
func TestResyncEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faulty.Always(faulty.List, faulty.Fail()))
		r.run()
		defer r.end(t)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.g.Expect(r.Resync(ctx)).To(MatchError(context.DeadlineExceeded))
	})
}

// A store that fails while a resync is asked for: the caller hears of it.
func TestResyncOfAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.store.Reset(faulty.Always(faulty.List, faulty.Fail()))
		r.g.Expect(r.Resync(context.Background())).To(MatchError(faulty.ErrInjected))
		r.store.Reset()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
	})
}

// The loop is closed: there is nobody left to feed, and whoever waits is told.
func TestTheLoopCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		synctest.Wait()
		r.loop.set(func(l *loop) { l.refuse = controller.ErrClosedController })
		r.g.Expect(r.Resync(context.Background())).To(MatchError(controller.ErrClosedController))
		synctest.Wait()
		r.g.Expect(r.ended).To(HaveLen(1), "Run has returned")
		r.end(t)
	})
}

func TestTheLoopClosesBeforeAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		synctest.Wait()
		r.loop.set(func(l *loop) { l.refuse = controller.ErrClosedController })
		r.pod("a", "10.1.5.2")
		synctest.Wait()
		r.g.Expect(r.ended).To(HaveLen(1))
		r.end(t)
	})
}

// The agent stops at whatever moment: Run returns, and no caller is left waiting.
func TestRunEndsWithItsContext(t *testing.T) {
	for name, c := range map[string]struct {
		plans []faulty.Plan
		gate  bool
	}{
		"while it watches":           {},
		"while the loop has no room": {gate: true},
		"while the store hangs":      {plans: []faulty.Plan{faulty.Always(faulty.List, faulty.Delay(time.Hour))}},
		"while the store fails":      {plans: []faulty.Plan{faulty.Always(faulty.List, faulty.Fail())}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, c.plans...)
				if c.gate {
					r.loop.gate = make(chan struct{})
				}
				r.run()
				synctest.Wait()
				r.stop()
				synctest.Wait()
				r.g.Expect(r.ended).To(HaveLen(1))
				r.end(t)
			})
		})
	}
}

func TestRunEndsWhileAResyncWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		synctest.Wait()
		r.loop.set(func(l *loop) { l.gate = make(chan struct{}) })
		answered := make(chan error, 1)
		go func() { answered <- r.Resync(context.Background()) }()
		synctest.Wait()
		r.stop()
		synctest.Wait()
		r.g.Expect(answered).To(HaveLen(1), "it is not left waiting")
		r.g.Expect(<-answered).To(MatchError(controller.ErrClosedController))
		r.end(t)
	})
}
