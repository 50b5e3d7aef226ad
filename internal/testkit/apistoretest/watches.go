// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
)

// watchCases returns the cases about events of a Watch.
func watchCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"changes": func(x *harness) {
			x.network("old", "10.1.0.0/16")
			_, rev := x.list(kv.ClusterPrefix)
			x.network("a", "10.5.0.0/16") // before it is watched
			w := x.watch(kv.ClusterPrefix, rev+1)
			x.Expect(x.next(w)).To(Equal("cluster/network/a: 10.5.0.0/16"))
			x.network("a", "10.6.0.0/16")
			x.Expect(x.next(w)).To(Equal("cluster/network/a: 10.6.0.0/16"))
			x.remove(v1alpha1.Resource(v1alpha1.CustomNetworks), "a")
			x.Expect(x.next(w)).To(Equal("cluster/network/a gone"))
			x.network("a", "10.7.0.0/16")
			x.Expect(x.next(w)).To(Equal("cluster/network/a: 10.7.0.0/16"))
			x.write(nil, x.pool("p", 1))
			x.Expect(x.next(w)).To(Equal("cluster/pool/p: p 1"))
			x.write(nil, kvdb.Put(kv.PoolsKey, nil))
			x.Expect(x.next(w)).To(Equal("cluster/pools: "))
			w.Close()
			x.Expect(w.Events()).To(BeClosed())
			x.Expect(w.Err()).NotTo(HaveOccurred())
		},
		"this node": func(x *harness) {
			first := x.node(thisNode, "")
			_, rev := x.list(kv.ClusterPrefix, kv.NodePrefix(thisNode))
			shared, own := x.watch(kv.ClusterPrefix, rev+1), x.watch(kv.NodePrefix(thisNode), rev+1)
			x.node(otherNode, "10.1.2.0/24")
			x.node(thisNode, "10.1.1.0/24")
			x.Expect(x.next(shared)).To(Equal("cluster/node/node-a: node-a 10.1.1.0/24"))
			x.remove(nodes(), otherNode)
			x.remove(nodes(), thisNode)
			x.Expect(x.next(shared)).To(Equal("cluster/node/node-a gone"))
			x.Expect(x.node(thisNode, "10.1.3.0/24").GetUID()).NotTo(Equal(first.GetUID()))
			x.Expect(x.next(shared)).To(Equal("cluster/node/node-a: node-a 10.1.3.0/24"))
			y, _ := x.get(kv.NodeKey(thisNode))
			m := &kv.Node{}
			x.Expect(proto.Unmarshal(y.Value, m)).To(Succeed())
			x.Expect(m.Uid).NotTo(Equal(string(first.GetUID())))
			x.pod("q", otherNode, "10.1.2.2")
			x.pod("p", thisNode, "")
			x.Expect(x.next(own)).To(Equal("node/node-a/pod/default/p: node-a "))
			x.podIP("p", "10.1.3.2")
			x.Expect(x.next(own)).To(Equal("node/node-a/pod/default/p: node-a 10.1.3.2"))
			x.nodeConfig(otherNode, "192.168.16.2")
			x.remove(pods(), "q")
			x.remove(pods(), "p")
			x.Expect(x.upTo(own, "node/node-a/pod/default/p gone")).NotTo(ContainElement(ContainSubstring("/q")))
			x.nodeConfig(thisNode, "192.168.16.1")
			x.Expect(x.next(own)).To(Equal("node/node-a/config: node-a 192.168.16.1"))
		},
	}
}

// edgeCases returns the cases about begin and end of a Watch, and about a List of one
// moment.
func edgeCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"from now on": func(x *harness) {
			x.write(nil, x.pool("p", 1))
			w := x.watch(kv.PoolPrefix, 0)
			x.write(nil, x.pool("p", 2))
			x.Expect(x.next(w)).To(Equal("cluster/pool/p: p 2"))
		},
		"too long ago": func(x *harness) {
			x.write(nil, x.pool("p", 1))
			w, err := x.store.Watch(x.ctx, kv.PoolPrefix, 1)
			if err != nil {
				x.Expect(err).To(MatchError(kvdb.ErrCompacted))
				return
			}
			defer w.Close()
			for batch := range w.Events() { // a store that keeps its whole history may deliver
				if batch[0].Key == kv.PoolKey("p") && !batch[0].Deleted {
					return
				}
			}
			x.Expect(w.Err()).To(MatchError(kvdb.ErrCompacted))
		},
		"contexts": func(x *harness) {
			ctx, cancel := context.WithCancel(x.ctx)
			w, err := x.store.Watch(ctx, kv.ClusterPrefix, 0)
			x.Expect(err).NotTo(HaveOccurred())
			x.write(nil, x.pool("p", 1), x.pool("q", 1)) // that no one reads
			cancel()
			x.Eventually(w.Events(), patience).Should(BeClosed())
			x.Expect(w.Err()).NotTo(HaveOccurred())
			w.Close()
			w.Close()
		},
		"nothing to watch": func(x *harness) {
			w := x.watch(kv.ExternalKey(thisNode, ""), 0)
			x.write(nil, x.pool("p", 1))
			x.Consistently(w.Events(), 100*time.Millisecond).ShouldNot(Receive())
			w.Close()
		},
		// The writer's first object is never behind the second, nor ahead by more than one.
		"one moment": func(x *harness) {
			const n = 60
			work := x.writer(n)
			defer work.Wait()
			for stop := false; !stop; {
				kvs, rev, err := x.store.List(x.ctx, kv.NodeRecordPrefix, kv.PoolPrefix)
				x.Expect(err).NotTo(HaveOccurred())
				var record kv.NodeRecord
				var pool kv.Pool
				for _, y := range kvs {
					x.Expect(y.ModRevision).To(BeNumerically("<=", rev))
					if y.Key == kv.PoolKey("p") {
						x.Expect(proto.Unmarshal(y.Value, &pool)).To(Succeed())
					} else {
						x.Expect(proto.Unmarshal(y.Value, &record)).To(Succeed())
					}
				}
				if len(kvs) == 2 {
					x.Expect(record.Generation-pool.Generation).To(BeNumerically("<=", 1), "%v %v", &record, &pool)
				}
				stop = pool.Generation == n-1
			}
		},
	}
}

// randomCases returns the cases in which a List and its Watch must end in the state of
// the server.
func randomCases() map[string]func(*harness) {
	cases := map[string]func(*harness){}
	for seed := range uint64(4) {
		cases[fmt.Sprint("changes ", seed)] = func(x *harness) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			const n = 40
			work := x.writer(n)
			defer work.Wait()
			for range 5 {
				for range rnd.IntN(6) {
					x.change(rnd)
				}
				kvs, rev, err := x.store.List(x.ctx, kv.ClusterPrefix, kv.NodePrefix(thisNode))
				x.Expect(err).NotTo(HaveOccurred())
				for range rnd.IntN(6) {
					x.change(rnd)
				}
				state := newFollowed(kvs, rev)
				shared, own := x.watch(kv.ClusterPrefix, rev+1), x.watch(kv.NodePrefix(thisNode), rev+1)
				for range rnd.IntN(6) {
					x.change(rnd)
				}
				work.Wait()
				want, _ := x.list(kv.ClusterPrefix, kv.NodePrefix(thisNode))
				state.follow(x, []kvdb.Watcher{shared, own}, want)
				work = x.writer(0)
				shared.Close()
				own.Close()
			}
		}
	}
	return cases
}

// change changes some object.
func (x *harness) change(rnd *rand.Rand) {
	name, n := fmt.Sprint("x", rnd.IntN(2)), rnd.IntN(200)
	switch rnd.IntN(8) {
	case 0:
		x.network(name, fmt.Sprintf("10.%d.0.0/16", n))
	case 1:
		x.remove(v1alpha1.Resource(v1alpha1.CustomNetworks), name)
	case 2:
		x.write(nil, x.pool(name, n))
	case 3:
		x.write(nil, kvdb.Delete(kv.PoolKey(name)), kvdb.Put(kv.PoolsKey, nil))
	case 4:
		x.remove(pods(), name)
		x.pod(name, []string{thisNode, otherNode}[n%2], fmt.Sprintf("10.1.1.%d", n+1))
	case 5:
		x.remove(nodes(), thisNode)
		x.node(thisNode, fmt.Sprintf("10.1.%d.0/24", n))
	case 6:
		x.nodeConfig([]string{thisNode, otherNode}[n%2], fmt.Sprintf("192.168.16.%d", n))
	case 7:
		x.remove(v1alpha1.Resource(v1alpha1.NodeConfigs), thisNode)
	}
}

// followed holds the state of a client that lists and watches.
type followed struct {
	rev   int64
	state map[string]kvdb.KeyValue
}

func newFollowed(kvs []kvdb.KeyValue, rev int64) *followed {
	f := &followed{rev, map[string]kvdb.KeyValue{}}
	for _, y := range kvs {
		f.state[y.Key] = y
	}
	return f
}

// follow reads watches until the state is as wanted and no event follows. Each event
// must be later than the last one of its key.
func (f *followed) follow(x *harness, watches []kvdb.Watcher, want []string) {
	patience, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	for {
		calm, stop := context.WithTimeout(patience, 20*time.Millisecond)
		select {
		case batch, open := <-watches[0].Events():
			x.Expect(open).To(BeTrue(), "the watch ended: %v", watches[0].Err())
			f.take(x, batch[0])
		case batch, open := <-watches[1].Events():
			x.Expect(open).To(BeTrue(), "the watch ended: %v", watches[1].Err())
			f.take(x, batch[0])
		case <-calm.Done():
			if patience.Err() != nil || slices.Equal(f.words(), want) {
				stop()
				x.Expect(f.words()).To(Equal(want))
				return
			}
		}
		stop()
	}
}

func (f *followed) take(x *harness, ev kvdb.Event) {
	x.Expect(ev.ModRevision).To(And(BeNumerically(">", f.rev), BeNumerically(">", f.state[ev.Key].ModRevision)), ev.Key)
	if f.state[ev.Key] = ev.KeyValue; ev.Deleted {
		delete(f.state, ev.Key)
	}
}

func (f *followed) words() []string {
	all := []string{}
	for _, key := range slices.Sorted(maps.Keys(f.state)) {
		all = append(all, describe(f.state[key]))
	}
	return all
}
