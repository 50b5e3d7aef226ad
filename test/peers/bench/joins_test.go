// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// joining is the number of nodes that join in BenchmarkJoins.
const joining = 10_000

// BenchmarkJoins is the latency of a durable ADD on an agent's socket while 10 000 nodes
// join as fast as the store takes them. It also measures an ADD while no node joins (idle).
// The store is in memory; agent, store, database and client share the machine. An operation
// is one such cluster.
func BenchmarkJoins(b *testing.B) {
	for _, mode := range []struct{ name, conf string }{
		{"nodeid", "cadastre: {coolDown: 0s, nodeIDs: {quarantine: 0s}, kvdb: {type: etcd, endpoints: [\"127.0.0.1:1\"]}}"},
		{"podcidr", "cadastre: {coolDown: 0s, podBlocks: podcidr, nodeIDs: {quarantine: 0s}, kvdb: {type: etcd, endpoints: [\"127.0.0.1:1\"]}}"},
	} {
		b.Run(fmt.Sprintf("%s/%d", mode.name, joining), func(b *testing.B) {
			var idle, busy []time.Duration
			var took time.Duration
			for range b.N {
				b.StopTimer()
				a := startAgent(b, clusterConf+mode.conf)
				for range 100 {
					idle = append(idle, a.pod(b))
				}
				b.StartTimer()
				began, joined := time.Now(), make(chan error, 1)
				go func() { joined <- a.join(b.Context(), joining) }()
				for a.seen.Load() < int64(len(resources()))*joining { // its own objects do not matter
					busy = append(busy, a.pod(b))
				}
				took += time.Since(began)
				if err := <-joined; err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				a.stop()
			}
			for _, x := range []struct {
				name string
				all  []time.Duration
			}{{"idle", idle}, {"add", busy}} {
				slices.Sort(x.all)
				for _, q := range []struct {
					name string
					of   int // of 1000
				}{{"p50", 500}, {"p99", 990}, {"max", 1000}} {
					at := x.all[min(len(x.all)*q.of/1000, len(x.all)-1)]
					b.ReportMetric(float64(at.Microseconds())/1000, x.name+"-"+q.name+"-ms")
				}
			}
			b.ReportMetric(float64(len(busy))/float64(b.N), "adds")
			b.ReportMetric(took.Seconds()/float64(b.N), "join-s")
		})
	}
}

// BenchmarkSocket is an ADD and a DEL on an agent's socket, durable, of one caller and of a
// hundred at once; the time is the elapsed one over all pairs.
func BenchmarkSocket(b *testing.B) {
	for _, callers := range []int{1, 100} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			a := startAgent(b, clusterConf+"cadastre: {coolDown: 0s}")
			defer a.stop()
			var pairs atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for i := pairs.Add(1); i <= int64(b.N); i = pairs.Add(1) {
						if err := cmp.Or(a.ask("ADD", i), a.ask("DEL", i)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
		})
	}
}

// realAgent is a whole agent in this process, over a store in memory.
type realAgent struct {
	store  *mem.Store
	client http.Client
	seen   atomic.Int64 // objects of nodes that the loop knows
	pods   int64
	stop   func()
}

// startAgent starts an agent and waits until it serves.
func startAgent(tb testing.TB, text string) *realAgent {
	tb.Helper()
	conf, _, err := contivconf.Parse([]byte(text))
	if err != nil {
		tb.Fatal(err)
	}
	a := &realAgent{store: mem.New(mem.History(1 << 20))} // etcd keeps more than the agent may lag behind, too
	own := &kv.Node{Name: "bench", Uid: "bench", PodCidrs: []string{blockOf(2 * joining).String()}}
	if err := a.put(tb.Context(), map[string]proto.Message{kv.NodeKey(own.Name): own}); err != nil {
		tb.Fatal(err)
	}
	node := agent.DefaultNode()
	node.Name, node.StateDir, node.RunDir = own.Name, tempDir(tb), runDir(tb)
	program, err := agent.New(conf, agent.WithNode(node), agent.WithStore(a.store),
		agent.WithSouthbound(&controller.MemorySink{}),
		agent.WithEventHandlers(func(agent.Plugins) []controller.EventHandler {
			return []controller.EventHandler{&counter{&a.seen}}
		}))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- program.Run(ctx) }()
	a.stop = func() {
		a.client.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	}
	a.client.Transport = &http.Transport{MaxIdleConnsPerHost: 100, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(node.RunDir, "agent.sock"))
	}}
	NewWithT(tb).Eventually(func() error { return cmp.Or(a.ask("ADD", a.pods), a.ask("DEL", a.pods)) }, 30*time.Second).Should(Succeed())
	return a
}

// put writes objects to the store.
func (a *realAgent) put(ctx context.Context, objects map[string]proto.Message) error {
	var ops []kvdb.Op
	for key, m := range objects {
		value, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		ops = append(ops, kvdb.Put(key, value))
	}
	_, err := a.store.Txn(ctx, nil, ops)
	return err
}

// join writes what n nodes and their controllers write.
func (a *realAgent) join(ctx context.Context, n int) error {
	for i := range n {
		if err := a.put(ctx, others(i)); err != nil {
			return err
		}
	}
	return nil
}

// pod adds and deletes a pod, and returns how long the ADD has taken.
func (a *realAgent) pod(tb testing.TB) time.Duration {
	tb.Helper()
	a.pods++
	began := time.Now()
	err := a.ask("ADD", a.pods)
	took := time.Since(began)
	if err == nil {
		err = a.ask("DEL", a.pods)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return took
}

// ask sends a CNI request for a pod, as cadastre-cni does.
func (a *realAgent) ask(command string, pod int64) error {
	_, err := cniclient.Ask(context.Background(), a.client.Do, cni.Request{
		Command: command, Network: "cadastre", ContainerID: containerID(pod), IfName: "eth0", Netns: "/run/netns/bench",
		Pod: cni.Pod{Namespace: "default", Name: fmt.Sprint("web-", pod), UID: "8a1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"},
	})
	return err
}

// counter counts the changes of the cluster's state, and handles none.
type counter struct{ seen *atomic.Int64 }

func (*counter) String() string { return "counter" }

func (c *counter) HandlesEvent(ev controller.Event) bool {
	change, ok := ev.(*controller.KubeStateChange)
	if ok && change.Prev == nil && slices.Contains(resources(), change.Resource) {
		c.seen.Add(1)
	}
	return !ok
}

// Resync counts anew: a watch that is too slow for the store begins with a snapshot again.
func (c *counter) Resync(_ controller.Event, state controller.KubeStateData, _ int, _ controller.ResyncOperations) error {
	objects := 0
	for _, resource := range resources() {
		objects += len(state[resource])
	}
	c.seen.Store(int64(objects))
	return nil
}

// resources returns the resources of which each node that joins has an object.
func resources() []string {
	return []string{kv.NodeRecordResource, kv.NodeResource, kv.PrefixClaimResource}
}

func (*counter) Update(controller.Event, controller.UpdateOperations) (string, error) { return "", nil }

func (*counter) Revert(controller.Event) error { return nil }
