// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// openEtcd opens a store of a server.
func openEtcd(t etcdtest.TB, server *etcdtest.Server) *etcd.Store {
	s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/cadastre/", RequestTimeout: 2 * time.Second})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestEtcdIsWiped: a real store loses everything, goes back, and is away.
func TestEtcdIsWiped(t *testing.T) {
	server := etcdtest.Start(t)
	store := openEtcd(t, server)
	w := newWorld()
	populate(w)
	b := newBench(t, w, store, func(_ *Deps, s *timing) {
		*s = timing{retryIn: 10 * time.Millisecond, retryLimit: 100 * time.Millisecond, probe: 100 * time.Millisecond}
	})
	b.start()
	defer b.stop()
	reflected := func(more map[string]string) {
		t.Helper()
		wanted := w.wanted()
		for key, value := range more {
			wanted[key] = value
		}
		b.Eventually(func(g Gomega) {
			kvs, _, err := store.List(t.Context(), "")
			g.Expect(err).NotTo(HaveOccurred())
			all := map[string]string{}
			for _, x := range kvs {
				all[x.Key] = string(x.Value)
			}
			g.Expect(all).To(Equal(wanted))
		}).WithContext(patient(t)).WithPolling(20 * time.Millisecond).Should(Succeed())
	}
	reflected(nil)
	kept, err := server.Snapshot()
	b.Expect(err).NotTo(HaveOccurred())
	w.put(node("c"))
	w.remove(pod("default", "web-0", ""))
	reflected(nil)
	b.Expect(server.Restore(kept)).To(Succeed())
	reflected(nil)
	b.Expect(server.Wipe()).To(Succeed())
	reflected(nil)
	b.Expect(server.Stop()).To(Succeed())
	w.put(node("d"))
	w.remove(node("b"))
	b.Expect(server.Restart()).To(Succeed())
	reflected(nil)
	b.Expect(b.stop()).To(Succeed())
}

// loop is an event loop that keeps the first state that it is given.
type loop struct{ states chan controller.KubeStateData }

func (l loop) PushEvent(ev controller.Event) error {
	if r, ok := ev.(*controller.DBResync); ok {
		l.states <- r.KubeState
	}
	return nil
}

func (l loop) PushEventWait(_ context.Context, ev controller.Event) error { return l.PushEvent(ev) }

// TestAgentsReadIt: what is written is what a node's agent reads, and of pods
// and configurations its own only.
func TestAgentsReadIt(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, store *mem.Store) {
		b := newBench(t, w, store)
		populate(w)
		b.start()
		defer b.stop()
		advance(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		l := loop{make(chan controller.KubeStateData, 10)}
		source := kubestate.New(kubestate.Deps{Node: "a", Store: store, EventLoop: l, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		ended := make(chan error)
		go func() { ended <- source.Run(ctx) }()
		state := <-l.states
		cancel()
		b.Expect(<-ended).To(Succeed())
		b.Expect(state[kv.PodResource]).To(HaveLen(1))
		b.Expect(state[kv.NodeResource]).To(HaveLen(2))
		b.Expect(state[kv.NodeConfigResource]).To(HaveLen(1))
		b.Expect(state[kv.CustomNetworkResource]).To(HaveLen(1))
		expect := func(resource, key string, m proto.Message) {
			b.Expect(state[resource][key]).To(BeComparableTo(m, protocmp.Transform()))
		}
		expect(kv.PodResource, "node/a/pod/default/web-0", &kv.Pod{Namespace: "default", Name: "web-0", Uid: "uid-3", Node: "a", IpAddresses: []string{"10.1.1.2", "fd00::2"}})
		expect(kv.NodeResource, "cluster/node/a", &kv.Node{Name: "a", Uid: "uid-1", PodCidrs: []string{"10.1.1.0/24", "fd00::/64"}})
		expect(kv.CustomNetworkResource, "cluster/network/blue", &kv.CustomNetwork{Name: "blue", Uid: "uid-6", SubnetCidr: "10.5.0.0/16", SubnetOneNodePrefixLen: 24})
		expect(kv.NodeConfigResource, "node/a/config", &kv.NodeConfig{NodeName: "a", Gateway: "192.168.16.1"})
	})
}

// benchPods counts the pods of a benchmark; it has a hundredth as many nodes.
const benchPods = 10_000

// benchmark measures from the start of a reflector to the last key in the store,
// and then a restart, where there is nothing to write.
func benchmark(b *testing.B, open func() kvdb.Store) {
	w := newWorld()
	for i := range benchPods {
		w.put(pod("default", fmt.Sprint("pod-", i), fmt.Sprint("node-", i%(benchPods/100)), fmt.Sprintf("10.%d.%d.2", i/256, i%256)))
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	run := func(store kvdb.Store) (took time.Duration) {
		began := time.Now()
		r := New(Deps{Client: w.client, Dynamic: w.dynamic, Store: store, Log: quiet})
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		for !r.Status().Synced {
			select {
			case err := <-ended:
				b.Fatal(err)
			case <-time.After(time.Millisecond):
			}
		}
		took = time.Since(began)
		cancel()
		<-ended
		return took
	}
	var first, again time.Duration
	for b.Loop() {
		store := open()
		first += run(store)
		again += run(store)
		_ = store.Close()
	}
	b.ReportMetric(benchPods*float64(b.N)/first.Seconds(), "pods/s")
	b.ReportMetric(again.Seconds()*1000/float64(b.N), "ms/restart")
}

func BenchmarkReflectIntoMemory(b *testing.B) {
	benchmark(b, func() kvdb.Store { return mem.New() })
}

func BenchmarkReflectIntoEtcd(b *testing.B) {
	server := etcdtest.Start(b)
	i := 0
	benchmark(b, func() kvdb.Store {
		i++
		s, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: fmt.Sprintf("/bench%d/", i), RequestTimeout: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		return s
	})
}
