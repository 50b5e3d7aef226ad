// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// TestNothingIsDeletedForWantOfEvidence: while the API server does not answer,
// or only for some, the store stays as it is.
func TestNothingIsDeletedForWantOfEvidence(t *testing.T) {
	for _, lost := range []string{"", "pods", "nodes"} {
		t.Run("no "+lost, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, store *mem.Store) {
				b := newBench(t, w, store)
				before := map[string]string{"node/a/pod/default/old": "1", "cluster/node/old": "2", "cluster/network/old": "3", "node/old/config": "4"}
				b.writeAll(store, before)
				populate(w)
				if lost == "" {
					w.goDown()
				} else {
					w.lose(lost, errDown)
				}
				b.start()
				defer b.stop()
				advance(time.Hour)
				b.Expect(b.has(store)).To(Equal(before))
				b.Expect(b.Status().Synced).To(BeFalse())
				b.Expect(b.Status().kinds).To(ContainElement(And(HaveField("State", stateWaiting), HaveField("Error", ContainSubstring("refused")))))
				w.comeUp()
				w.lose("pods", nil)
				w.lose("nodes", nil)
				advance(time.Minute)
				b.expectReflected(store, nil)
				b.Expect(b.Status().Synced).To(BeTrue())
			})
		})
	}
}

// TestTheAPIServerGoesAway: what has changed meanwhile is found, deletions too.
func TestTheAPIServerGoesAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		before := b.has(store)
		w.goDown()
		w.remove(node("a"))
		w.remove(pod("default", "web-0", ""))
		w.remove(pod("default", "web-1", ""))
		w.put(pod("default", "web-1", "c")) // another one of that name
		w.remove(network("blue", ""))
		w.put(nodeConfig("b", "192.168.16.1"))
		advance(time.Hour)
		b.Expect(b.has(store)).To(Equal(before))
		w.comeUp()
		advance(time.Minute)
		b.expectReflected(store, nil)
	})
}

// TestKindsThatAreMissing: a kind that the API server does not have, or does not
// let us read, stops no other kind; it is logged once, and looked for again.
func TestKindsThatAreMissing(t *testing.T) {
	forbidden := apierrors.NewForbidden(v1alpha1.Resource(v1alpha1.NodeConfigs).GroupResource(), "", fmt.Errorf("no such role"))
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		var log bytes.Buffer
		b := newBench(t, w, store, func(d *Deps, _ *timing) { d.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		kept := map[string]string{"cluster/network/old": "1", "node/old/config": "2"}
		b.writeAll(store, kept)
		w.put(pod("default", "web-0", "a"))
		w.lose(v1alpha1.CustomNetworks, noSuchResource(v1alpha1.CustomNetworks))
		w.lose(v1alpha1.NodeConfigs, forbidden)
		b.start()
		defer b.stop()
		advance(time.Hour)
		b.expectReflected(store, kept, "keys of what is not there are left alone")
		b.Expect(b.Status().Synced).To(BeTrue())
		b.Expect(b.Status().kinds).To(ContainElements(HaveField("State", stateMissing), HaveField("State", stateMissing)))
		b.Expect(strings.Count(log.String(), "is not reflected")).To(Equal(2), "%s", &log)

		w.put(network("blue", "10.5.0.0/16"))
		w.lose(v1alpha1.CustomNetworks, nil)
		advance(time.Minute)
		b.expectReflected(store, map[string]string{"node/old/config": "2"}, "now there are custom networks")
		w.put(network("green", "10.6.0.0/16"))
		advance(time.Second)
		b.expectReflected(store, map[string]string{"node/old/config": "2"}, "and they are watched")

		// The definition is deleted, and all objects with it, of which the last is not seen.
		w.remove(network("blue", ""))
		advance(time.Second)
		w.lose(v1alpha1.CustomNetworks, noSuchResource(v1alpha1.CustomNetworks))
		advance(time.Hour)
		b.expectReflected(store, map[string]string{"node/old/config": "2"}, "what was not seen to go stays")
		b.Expect(b.Status().kinds[2].State).To(Equal(stateMissing))
		w.remove(network("green", ""))
		w.lose(v1alpha1.CustomNetworks, nil)
		w.lose(v1alpha1.NodeConfigs, nil)
		advance(time.Minute)
		b.expectReflected(store, nil)
		b.Expect(b.has(store)).To(HaveLen(1))
	})
}

// TestAKindThatFails: an API server that cannot serve one kind of custom
// resource (its conversion fails, say) holds up no other.
func TestAKindThatFails(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		kept := map[string]string{"cluster/network/old": "1"}
		b.writeAll(store, kept)
		w.lose(v1alpha1.CustomNetworks, apierrors.NewInternalError(errDown))
		w.put(pod("default", "web-0", "a"))
		w.put(nodeConfig("a", "192.168.16.1"))
		b.start()
		defer b.stop()
		advance(time.Hour)
		b.expectReflected(store, kept)
		w.lose(v1alpha1.CustomNetworks, nil)
		advance(time.Minute)
		b.expectReflected(store, nil)
	})
}

// TestTheStoreIsExchanged: empty or older, with or without a word, and whatever
// is in it.
func TestTheStoreIsExchanged(t *testing.T) {
	for _, loud := range []bool{true, false} {
		t.Run(fmt.Sprintf("loud %v", loud), func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, first *mem.Store) {
				stores := newExchange(first)
				defer stores.Close()
				b := newBench(t, w, stores)
				b.writeAll(first, others())
				populate(w)
				b.start()
				defer b.stop()
				advance(time.Second)
				b.expectReflected(stores, others())

				stores.replace(mem.New(), loud)
				advance(20 * time.Second)
				b.expectReflected(stores, nil, "empty")

				w.put(node("c"))
				advance(time.Second)
				older := mem.New()
				b.writeTo(older, kvdb.Put("cluster/node/gone", []byte("x")), kvdb.Put("node/a/pod/default/web-0", []byte("x")), kvdb.Put("cluster/node-id/1", []byte("record")))
				stores.replace(older, loud)
				advance(20 * time.Second)
				b.expectReflected(stores, map[string]string{"cluster/node-id/1": "record"}, "older")

				stores.replace(mem.New(), false)
				w.put(node("d"))
				advance(time.Second)
				b.expectReflected(stores, nil, "found by what is written")
			})
		})
	}
}

// TestFaultAtEveryCall: one call of the store fails, is lost on its way back, or
// takes for ever; once that is over the store is as the API server.
func TestFaultAtEveryCall(t *testing.T) {
	faults := map[string]faulty.Fault{
		"fail": faulty.Fail(), "tear": faulty.Tear(), "cut 0": faulty.Cut(0), "cut 1": faulty.Cut(1), "slow": faulty.Delay(8 * time.Second), "stuck": faulty.Delay(time.Hour),
	}
	script := func(b *bench) {
		populate(b.world)
		b.start()
		advance(time.Second)
		b.world.put(pod("default", "web-1", "c"))
		b.remove(node("a"))
		advance(time.Second)
		b.world.put(network("green", "10.6.0.0/16"))
		advance(3 * time.Minute)
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			for n, last := 1, 1; n <= last; n++ {
				bubble(t, func(t *testing.T, w *world, store *mem.Store) {
					s := faulty.New(store, faulty.At(n, fault))
					defer s.Close()
					b := newBench(t, w, s, func(_ *Deps, set *timing) { set.probe = time.Minute })
					b.writeAll(store, others())
					b.writeTo(store, kvdb.Put("cluster/node/gone", []byte("x")))
					script(b)
					b.expectReflected(store, others(), "fault in call %d", n)
					b.Expect(b.Status().Connected).To(BeTrue())
					b.Expect(b.stop()).To(Succeed())
					last = min(s.Count(), 12)
				})
			}
		})
	}
}

// TestALateTransaction: what an old leader has sent arrives when the new one
// works already. The new one puts it right.
func TestALateTransaction(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		release := make(chan struct{})
		slow := faulty.New(store, faulty.On(faulty.Txn, 1, faulty.Hold(release)))
		populate(w)
		old := newBench(t, w, slow, func(_ *Deps, s *timing) { s.callTimeout = time.Hour })
		old.start()
		advance(time.Second)
		old.Expect(old.has(store)).To(BeEmpty(), "it is on its way")
		w.remove(pod("default", "web-0", ""))
		w.put(node("a", "10.1.7.0/24"))
		advance(time.Second)

		b := newBench(t, w, store, func(_ *Deps, s *timing) { s.sweep, s.probe = 24*time.Hour, 24*time.Hour })
		b.start()
		defer b.stop()
		advance(time.Second)
		b.expectReflected(store, nil)
		close(release)
		ended := make(chan error)
		go func() { ended <- old.stop() }()
		advance(time.Second)
		b.Expect(<-ended).To(Succeed())
		b.expectReflected(store, nil, "after the old leader's")
		b.Expect(b.has(store)).NotTo(HaveKey("node/a/pod/default/web-0"))
	})
}

// TestTwoReflectors that both believe that they lead end with the same.
func TestTwoReflectors(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		one, two := newBench(t, w, store), newBench(t, w, store)
		populate(w)
		one.start()
		two.start()
		advance(time.Second) // the clientset forgets what comes between a list and its watch
		for i := range 50 {
			w.put(pod("default", fmt.Sprint("p", i%7), fmt.Sprint("n", i%3), fmt.Sprint("10.0.0.", i)))
			if i%4 == 0 {
				w.remove(pod("default", fmt.Sprint("p", i%5), ""))
			}
		}
		advance(time.Second)
		one.expectReflected(store, nil)
		_, before, err := store.List(t.Context())
		one.Expect(err).NotTo(HaveOccurred())
		advance(time.Hour)
		_, after, err := store.List(t.Context())
		one.Expect(err).NotTo(HaveOccurred())
		one.Expect(after).To(Equal(before), "and then neither writes")
		one.Expect(one.stop()).To(Succeed())
		one.Expect(two.stop()).To(Succeed())
	})
}

// TestAProcessThatAlwaysWritesAgain does not keep a reflector busy: it leaves the
// store alone for a while, and says so.
func TestAProcessThatAlwaysWritesAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		w.put(pod("default", "web-0", "a"))
		b.start()
		defer b.stop()
		advance(time.Second)
		const key = "node/a/pod/default/web-0"
		ctx, cancel := context.WithCancel(t.Context())
		watch, err := store.Watch(ctx, key, 0)
		b.Expect(err).NotTo(HaveOccurred())
		foe := make(chan int)
		go func() {
			writes := 0
			for range watch.Events() {
				if _, err := store.Txn(ctx, nil, []kvdb.Op{kvdb.Put(key, []byte("foe"))}); err == nil {
					writes++
				}
				<-watch.Events() // its own
			}
			foe <- writes
		}()
		b.write(kvdb.Put(key, []byte("foe")))
		advance(time.Minute)
		b.Expect(b.Status().Connected && b.Status().Error == "").To(BeFalse())
		b.Expect(b.Status().Error).To(ContainSubstring("another process writes"))
		cancel()
		watch.Close()
		b.Expect(<-foe).To(BeNumerically("<", 60*maxConflicts), "in a minute")
		advance(time.Minute)
		b.expectReflected(store, nil)
	})
}

// TestAFightIsForgotten: only writes that follow each other closely are one, and
// what comes after it is repaired at once again.
func TestAFightIsForgotten(t *testing.T) {
	const key, sweeps = "node/a/pod/default/web-0", "sweeps_total"
	for name, c := range map[string]struct {
		probe, between time.Duration
		sweeps         float64 // one, and one after each fight
	}{
		"with a probe between two writes": {5 * time.Second, 6 * time.Second, 1},
		"without, and one write more":     {24 * time.Hour, time.Millisecond, 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world, store *mem.Store) {
				b := newBench(t, w, store, func(_ *Deps, s *timing) { s.probe, s.sweep = c.probe, 24*time.Hour })
				w.put(pod("default", "web-0", "a"))
				b.start()
				defer b.stop()
				advance(time.Second)
				for range maxConflicts + 1 {
					b.write(kvdb.Put(key, []byte("foe")))
					advance(c.between)
				}
				advance(time.Second)
				b.Expect(b.metric(sweeps)).To(Equal(c.sweeps))
				b.write(kvdb.Put(key, []byte("foe")))
				advance(time.Second)
				b.expectReflected(store, nil)
				b.Expect(b.Status().Connected).To(BeTrue())
				b.Expect(b.metric(sweeps)).To(Equal(c.sweeps))
			})
		})
	}
}
