// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
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
		node := kubestate.Nodes + " " + kv.NodeKey("a")
		base := map[string]string{
			podAt("old"): "pod old 10.1.5.2", node: "node a 10.1.5.0/24", kubestate.NodeRecords + " " + kv.NodeRecordKey(5): "record 5 a",
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
		delete(base, node)
		r.comes(base)
		r.put(kv.NodeKey("a"), &kv.Node{Name: "a", PodCidrs: []string{"10.1.6.0/24"}}) // again
		synctest.Wait()
		base[node] = "node a 10.1.6.0/24"
		r.comes(base)
		r.g.Expect(r.counts()).To(Equal([]int{1, 4}))
	})
}

// The Source does not read values of another node or unknown keys.
func TestValuesOfOtherNodesAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		others := []kvdb.Op{
			kvdb.Put(kv.PodKey("node-b", kv.PodID{Namespace: "ns", Name: "a"}), nil), kvdb.Put(kv.PodKey(thisNode+"2", kv.PodID{Namespace: "ns", Name: "a"}), nil),
			kvdb.Put(kv.NodeConfigKey("node-b"), nil), kvdb.Put(kv.ExternalKey("node-b", kv.SinkNode), nil), kvdb.Put(kv.BeatKey(5), nil),
			kvdb.Put(kv.ClusterPrefix+"other/thing", nil), kvdb.Put(kv.NodePrefix(thisNode)+"other", nil), kvdb.Put(kv.ExternalKey(thisNode, "other"), nil),
		}
		r.txn(others...)
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.txn(others...)
		for _, op := range others {
			r.remove(op.Key)
		}
		synctest.Wait()
		r.comes(map[string]string{})
		r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
	})
}

// All kinds of what there is, in a snapshot and as changes.
func TestAllResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		all := map[string]proto.Message{
			kv.NodeRecordKey(5): &kv.NodeRecord{Id: 5}, kv.NodeKey("a"): &kv.Node{Name: "a"}, kv.PoolKey("p"): &kv.Pool{Name: "p"},
			kv.CustomNetworkKey("n"): &kv.CustomNetwork{Name: "n"}, podKey("a"): &kv.Pod{Name: "a"}, kv.NodeConfigKey(thisNode): &kv.NodeConfig{NodeName: thisNode},
			kv.NetResourceSetKey(thisNode):        &kv.NetResourceSet{Name: thisNode},
			kv.PrefixClaimPrefix + "default.a":    &kv.PrefixClaim{Node: "a"},
			kv.ExternalKey(thisNode, kv.SinkNode): &kv.NodeNetwork{Id: 5}, kv.ExternalKey(thisNode, "route/10.9.0.0/16"): &kv.NodeRoute{Dst: "10.9.0.0/16"},
			kv.ExternalKey(thisNode, "pod/pods/c1/eth0"): &kv.PodNetwork{Name: "a"},
		}
		write := func() map[string]string {
			want := map[string]string{}
			for key, m := range all {
				r.put(key, m)
				resource, _ := kv.ResourceOf(key)
				at := resource.Name + " " + key
				if sinkKey, ok := kv.External(key); ok {
					at = "external " + sinkKey
				}
				want[at] = describe(m)
			}
			return want
		}
		want := write()
		r.g.Expect(want).To(HaveLen(len(kv.Resources()) + 3))
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.comes(want)
		for key := range all {
			r.remove(key)
		}
		synctest.Wait()
		r.comes(map[string]string{})
		write()
		synctest.Wait()
		r.comes(want)
		r.g.Expect(r.counts()).To(Equal([]int{1, 2 * len(all)}))
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		r.comes(want)
	})
}

// A snapshot is one List and two Watches, for any content of the store.
func TestOperationsOfASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for i := range 500 {
			r.pod(fmt.Sprint("p", i), "10.1.5.2")
		}
		var ops []string
		r.store.Reset(func(op string, _ int) faulty.Fault { ops = append(ops, op); return faulty.Fault{} })
		r.run()
		defer r.end(t)
		synctest.Wait()
		once := []string{faulty.List, faulty.Watch, faulty.Watch}
		r.g.Expect(ops).To(Equal(once))
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		r.g.Expect(ops).To(Equal(append(once, once...)))
		time.Sleep(time.Hour)
		r.g.Expect(ops).To(HaveLen(6), "nothing is asked for nothing")
	})
}

// An empty store is a snapshot, too: the loop waits for one.
func TestAnEmptyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
	})
}

// spied is a store in which something is written as soon as it was listed, and
// whose open watches are counted.
type spied struct {
	kvdb.Store
	listed func()
	open   atomic.Int32
}

func (s *spied) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	kvs, rev, err := s.Store.List(ctx, prefixes...)
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
		store := &spied{Store: r.store}
		store.listed = func() {
			n++
			r.txn(kvdb.Put(podKey("between"), marshal(r.g, &kv.Pod{Name: "between", IpAddresses: []string{fmt.Sprint("10.1.5.", n)}})),
				kvdb.Put(kv.NodeKey("between"), marshal(r.g, &kv.Node{Name: fmt.Sprint(n)})))
		}
		r.with(func(d *kubestate.Deps) { d.Store = store })
		r.pod("before", "10.1.5.99")
		r.run()
		defer r.end(t)
		for i := range 5 {
			synctest.Wait()
			r.comes(map[string]string{
				podAt("before"): "pod before 10.1.5.99", podAt("between"): fmt.Sprint("pod between 10.1.5.", i+1),
				kubestate.Nodes + " " + kv.NodeKey("between"): fmt.Sprint("node ", i+1, " "),
			})
			r.g.Expect(store.open.Load()).To(BeNumerically("==", 2))
			r.g.Expect(r.Resync(context.Background())).To(Succeed())
		}
	})
}

// A watch that was opened is closed where the other one cannot be.
func TestOneWatchOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faulty.On(faulty.Watch, 2, faulty.Fail()))
		store := &spied{Store: r.store, listed: func() {}}
		r.with(func(d *kubestate.Deps) { d.Store = store }).run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(r.Status().Error).To(ContainSubstring("watch the store"))
		r.g.Expect(store.open.Load()).To(BeZero())
		time.Sleep(time.Second)
		synctest.Wait()
		r.g.Expect(store.open.Load()).To(BeNumerically("==", 2))
	})
}

// Writers that never pause: nothing is lost, nothing comes twice, for any
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
				r.remove(podKey(name))
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
		r.putRaw(podKey("bad"), garbage)
		for _, key := range []string{
			kv.NodeRecordPrefix + "bad", kv.NodeKey("bad"), kv.PoolKey("bad"), kv.CustomNetworkKey("bad"), kv.NodeConfigKey(thisNode), kv.ExternalKey(thisNode, kv.SinkNode),
		} {
			r.putRaw(key, garbage)
		}
		r.pod("good", "10.1.5.2")
		r.run()
		defer r.end(t)
		synctest.Wait()
		want := map[string]string{podAt("good"): "pod good 10.1.5.2"}
		r.comes(want)
		r.putRaw(podKey("bad"), append(garbage, 0))
		r.putRaw(podKey("worse"), garbage)
		r.remove(podKey("worse"))
		synctest.Wait()
		r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
		r.comes(want)
		r.g.Expect(r.Status().Unreadable).To(BeEmpty(), "of no ID")
		r.putRaw(kv.NodeRecordKey(7), garbage)
		r.put(kv.NodeRecordKey(3), &kv.NodeRecord{Id: 4})
		synctest.Wait()
		r.comes(want)
		r.g.Expect(r.Status().Unreadable).To(Equal([]string{kv.NodeRecordKey(3), kv.NodeRecordKey(7)}))
		r.g.Expect(r.Resync(t.Context())).To(Succeed())
		r.g.Expect(r.Status().Unreadable).To(HaveLen(2))
		r.remove(kv.NodeRecordKey(3))
		r.remove(kv.NodeRecordKey(7))
		synctest.Wait()
		r.g.Expect(r.Status().Unreadable).To(BeEmpty())
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
		r.txn(kvdb.Delete(podKey("a")), kvdb.Put(podKey("b"), nil), kvdb.Put(kv.NodeKey("n"), nil), kvdb.Put(kv.NodeKey("m"), nil))
		synctest.Wait()
		r.comes(map[string]string{podAt("b"): "pod  ", kubestate.Nodes + " " + kv.NodeKey("n"): "node  ", kubestate.Nodes + " " + kv.NodeKey("m"): "node  "})
	})
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

// The loop is closed: Run ends, and a waiting caller gets an error.
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
		r.g.Expect(r.ended).To(HaveLen(1), "Run has returned")
		r.end(t)
	})
}

// The agent stops at any moment: Run returns, and no caller keeps waiting.
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
				r.g.Expect(r.ended).To(HaveLen(2))
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
