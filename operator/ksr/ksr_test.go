// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/operator/runner"
)

// populate makes objects of all kinds.
func populate(w *world) {
	w.put(node("a", "10.1.1.0/24", "fd00::/64"))
	w.put(node("b"))
	w.put(pod("default", "web-0", "a", "10.1.1.2", "fd00::2"))
	w.put(pod("default", "web-1", "b"))
	w.put(pod("default", "unscheduled", ""))
	w.put(network("blue", "10.5.0.0/16"))
	w.put(nodeConfig("a", "192.168.16.1"))
}

func TestReflects(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		b.writeAll(store, others())
		b.write(kvdb.Put("cluster/node/gone", []byte("x")), kvdb.Put("node/gone/pod/default/x", []byte("x")), kvdb.Put("cluster/network/gone", nil),
			kvdb.Put("node/gone/config", nil), kvdb.Put("node/a/pod/default/web-0", []byte("old")))
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		b.expectReflected(store, others(), "at the start")
		status := b.Status()
		b.Expect(status.Synced).To(BeTrue())
		b.Expect(status.Connected).To(BeTrue())
		b.Expect(status.Pending).To(BeZero())
		b.Expect(status.kinds).To(ConsistOf(kindStatus{"pod", stateSynced, 2, ""}, kindStatus{"node", stateSynced, 2, ""}, kindStatus{"customnetwork", stateSynced, 1, ""}, kindStatus{"nodeconfig", stateSynced, 1, ""}))

		w.put(node("c", "10.1.3.0/24"))
		w.put(pod("default", "unscheduled", "c"))
		w.put(pod("default", "web-1", "b", "10.1.2.2"))
		w.put(network("blue", "10.6.0.0/16"))
		w.remove(nodeConfig("a", ""))
		w.remove(node("b"))
		advance(time.Second)
		b.expectReflected(store, others(), "changes")
		b.Expect(b.has(store)).To(HaveKey("node/c/pod/default/unscheduled"))

		w.put(pod("default", "web-1", "c", "10.1.3.9"))
		advance(time.Second)
		b.expectReflected(store, others(), "a pod that moves")
		b.Expect(b.has(store)).NotTo(HaveKey("node/b/pod/default/web-1"))
		b.Expect(b.stop()).To(Succeed())
	})
}

// TestWritesNothingNeedless: a change of an object that is not stored is not a
// reason to write, nor is a restart, nor what the reflector has written itself.
func TestWritesNothingNeedless(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		populate(w)
		b.start()
		advance(time.Second)
		_, before, err := store.List(t.Context())
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(before).To(BeNumerically("==", 1), "one transaction for all")
		p := pod("default", "web-0", "a", "10.1.1.2", "fd00::2")
		p.UID, p.Labels = "uid-3", map[string]string{"kubelet": "was here"}
		w.put(p)
		w.breakWatches()
		advance(2 * time.Hour)
		b.Expect(b.stop()).To(Succeed())
		again := newBench(t, w, store)
		again.start()
		advance(time.Second)
		b.Expect(again.stop()).To(Succeed())
		_, after, err := store.List(t.Context())
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(after).To(Equal(before))
		b.expectReflected(store, nil)
		b.Expect(b.metric("sweeps_total")).To(BeNumerically(">", 10), "there were sweeps")
	})
}

// TestBatches: transactions are as large as they may be, and no larger.
func TestBatches(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		for i := range 2*kvdb.MaxOps + 50 {
			w.put(pod("default", fmt.Sprintf("p%d", i), "a"))
		}
		b.start()
		advance(time.Second)
		b.expectReflected(store, nil)
		_, rev, err := store.List(t.Context())
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(rev).To(BeNumerically("==", 3))

		b.Expect(b.stop()).To(Succeed()) // so that only the test takes keys
		for i := range 10 {
			n := node(fmt.Sprintf("n%d", i))
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: strings.Repeat("x", maxValue-100)}}
			o, err := kinds(b.deps)[1].reduce(n)
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(b.feeds[1].known().Add(o)).To(Succeed())
			b.enqueue(o.(*object).key)
		}
		for b.queue.Len() > 0 {
			size := 0
			for _, op := range b.batch() {
				size += len(op.Key) + len(op.Value)
			}
			b.Expect(size).To(And(BeNumerically(">", 0), BeNumerically("<=", maxBytes)))
		}
	})
}

// TestForeignChangesAreRepaired: changes of reflected keys are repaired,
// and other keys stay.
func TestForeignChangesAreRepaired(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store, func(_ *Deps, s *timing) { s.sweep, s.probe = 24*time.Hour, 24*time.Hour })
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		b.write(kvdb.Put("cluster/node/a", []byte("mine")), kvdb.Delete("node/a/pod/default/web-0"), kvdb.Put("node/x/pod/default/y", nil), kvdb.Put("node/a/config", []byte("\xff")))
		b.writeAll(store, others())
		advance(time.Second)
		b.expectReflected(store, others())

		w.remove(pod("default", "web-0", ""))
		advance(time.Second)
		b.write(kvdb.Put("node/a/pod/default/web-0", []byte("back")))
		advance(time.Second)
		b.expectReflected(store, others(), "after a deletion of our own")
		b.write(kvdb.Put("node/a/pod/default/web-0", []byte("back")), kvdb.Delete("cluster/node-id/1"))
		b.write(kvdb.Delete("node/a/pod/default/web-0"))
		advance(time.Second)
		more := others()
		delete(more, "cluster/node-id/1")
		b.expectReflected(store, more)
		b.Expect(b.Status().kinds[0].stored).To(Equal(1))
		b.Expect(b.stored).To(HaveLen(5), "what is gone is forgotten")
	})
}

// TestObjectsThatCannotBeStored affect no other object, and their keys keep their values.
func TestObjectsThatCannotBeStored(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		var log bytes.Buffer
		b := newBench(t, w, store, func(d *Deps, _ *timing) { d.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		before := b.has(store)

		bad := custom("CustomNetwork", "blue", map[string]any{"subnetCIDR": int64(5)})
		w.put(bad)
		w.put(pod("default", "web-0", "a", "10.1.1.\xff"))
		large := node("large")
		large.Spec.PodCIDRs = []string{strings.Repeat("x", maxValue)}
		w.put(large)
		w.put(pod("default", "good", "a"))
		advance(time.Hour) // with some sweeps
		now := b.has(store)
		b.Expect(now).To(HaveKey("node/a/pod/default/good"))
		b.Expect(now).To(HaveLen(len(before) + 1))
		b.Expect(now["cluster/network/blue"]).To(Equal(before["cluster/network/blue"]))
		b.Expect(now["node/a/pod/default/web-0"]).To(Equal(before["node/a/pod/default/web-0"]))
		b.Expect(b.Status().rejected).To(ConsistOf(
			And(HaveField("Key", "cluster/network/blue"), HaveField("Error", ContainSubstring("CustomNetwork"))),
			And(HaveField("Key", "node/a/pod/default/web-0"), HaveField("Error", ContainSubstring("UTF-8"))),
			And(HaveField("Key", "cluster/node/large"), HaveField("Error", ContainSubstring("too large"))),
		))
		b.Expect(strings.Count(log.String(), "level=ERROR")).To(Equal(3), "each is said once:\n%s", &log)
		b.Expect(b.metric(`errors_total{what="object"}`)).To(Equal(3.))

		w.put(network("blue", "10.7.0.0/16"))
		w.put(pod("default", "web-0", "a", "10.1.1.2"))
		w.remove(large)
		advance(time.Second)
		b.expectReflected(store, nil)
		b.Expect(b.Status().rejected).To(BeEmpty())
	})
}

// TestFence: nothing is written by who may not lead, and who does not is told.
func TestFence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		var answer atomic.Value
		answer.Store([]error{errDown})
		b := newBench(t, w, store, func(d *Deps, _ *timing) {
			d.Fence = func(context.Context) error { return answer.Load().([]error)[0] }
		})
		populate(w)
		b.start()
		advance(time.Minute)
		b.Expect(b.has(store)).To(BeEmpty())
		b.Expect(b.Status().Error).To(ContainSubstring("connection refused"))
		b.Expect(b.Status().Connected).To(BeFalse())
		b.Expect(b.Status().Synced).To(BeFalse())
		b.Expect(b.metric(`errors_total{what="fence"}`)).To(BeNumerically(">", 1))

		answer.Store([]error{nil})
		advance(time.Minute)
		b.expectReflected(store, nil)
		b.Expect(b.Status().Error).To(BeEmpty())

		answer.Store([]error{fmt.Errorf("no: %w", runner.ErrDeposed)})
		advance(time.Hour)
		b.Expect(b.Status().Connected).To(BeTrue(), "there was nothing to write")
		w.put(node("later"))
		advance(time.Second)
		b.Expect(b.has(store)).NotTo(HaveKey("cluster/node/later"))
		b.Expect(b.stop()).To(MatchError(runner.ErrDeposed), "it has ended by itself")
	})
}

// TestMetrics: what is counted can be scraped, under the names that are documented.
func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		w.remove(node("b"))
		advance(time.Second)
		for name, value := range map[string]float64{
			`objects{resource="pod"}`: 2, `objects{resource="node"}`: 1, `objects{resource="customnetwork"}`: 1, `objects{resource="nodeconfig"}`: 1,
			`synced{resource="pod"}`: 1, `synced{resource="nodeconfig"}`: 1, "bad_objects": 0, "pending": 0, "connected": 1, "sweeps_total": 1,
			`writes_total{op="put",resource="pod"}`: 2, `writes_total{op="put",resource="node"}`: 2, `writes_total{op="delete",resource="node"}`: 1,
			"last_sweep_timestamp_seconds": float64(b.Status().lastSweep.Unix()),
		} {
			b.Expect(b.metric(name)).To(Equal(value), name)
		}
	})
}

// TestTheStoreIsClosed: there is nothing more to be done.
func TestTheStoreIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		b.start()
		advance(time.Second)
		b.Expect(store.Close()).To(Succeed())
		advance(time.Minute)
		b.Expect(b.stop()).To(MatchError(kvdb.ErrClosed))
	})
}
