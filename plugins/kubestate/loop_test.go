// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// recorder is a handler that keeps the cluster's state and a log, and puts a
// route for each node.
type recorder struct {
	mu      sync.Mutex
	state   map[string]string
	log     []string
	failing int           // resyncs that fail from now on
	gate    chan struct{} // not nil: a change waits for it
}

func (h *recorder) String() string                           { return "recorder" }
func (h *recorder) Revert(controller.Event) error            { return nil }
func (h *recorder) HandlesEvent(event controller.Event) bool { return event.GetName() != "Shutdown" }

func routeTo(node string) (key string, m *kv.NodeRoute) {
	return kv.SinkRoutePrefix + node, &kv.NodeRoute{NodeName: node}
}

func (h *recorder) Resync(ev controller.Event, data controller.KubeStateData, _ int, txn controller.ResyncOperations) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	what := "resync"
	if db, ok := ev.(*controller.DBResync); ok && db.Local {
		what = "local resync"
	}
	if h.failing > 0 {
		h.failing--
		h.log = append(h.log, what+" fails")
		return errors.New("no such device")
	}
	h.log = append(h.log, what)
	h.state = map[string]string{}
	for resource, messages := range data {
		for key, m := range messages {
			h.state[resource+" "+key] = describe(m)
			if n, ok := m.(*kv.Node); ok {
				at, r := routeTo(n.Name)
				txn.Put(at, r)
			}
		}
	}
	return nil
}

func (h *recorder) Update(ev controller.Event, txn controller.UpdateOperations) (string, error) {
	h.mu.Lock()
	gate := h.gate
	h.mu.Unlock()
	if gate != nil {
		<-gate
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	change, ok := ev.(*controller.KubeStateChange)
	if !ok {
		h.log = append(h.log, ev.GetName())
		return "", nil
	}
	at := change.Resource + " " + change.Key
	before := ""
	if change.Prev != nil {
		before = describe(change.Prev)
	}
	if h.state[at] != before {
		h.log = append(h.log, fmt.Sprintf("FAULT: %s was %q, the change says %q", at, h.state[at], before))
	}
	delete(h.state, at)
	if change.New != nil {
		h.state[at] = describe(change.New)
		h.log = append(h.log, h.state[at])
	} else {
		h.log = append(h.log, before+" gone")
	}
	for _, m := range []proto.Message{change.Prev, change.New} {
		if n, ok := m.(*kv.Node); ok {
			at, r := routeTo(n.Name)
			if txn.Delete(at); change.New == m {
				txn.Put(at, r)
			}
		}
	}
	return "", nil
}

func (h *recorder) lines() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.log...)
}

func (h *recorder) set(change func(*recorder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// agent is a Source that feeds a real event loop.
type agent struct {
	*rig
	handler *recorder
	sink    *controller.MemorySink
	control *controller.Controller
	far     *remote
	mirror  *memMirror
}

// withAgent runs f with an agent.
func withAgent(t *testing.T, change func(*agent), f func(a *agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New()
		a := &agent{
			rig:     &rig{g: NewWithT(t), store: faulty.New(inner), ended: make(chan error, 3)},
			handler: &recorder{}, sink: &controller.MemorySink{}, mirror: &memMirror{},
		}
		a.far = newRemote(a.store)
		a.control = controller.New(controller.DefaultConfig(), controller.Deps{Handlers: []controller.EventHandler{a.handler}, Sink: a.sink})
		a.Source = kubestate.New(kubestate.Deps{
			Log: slog.New(slog.DiscardHandler), Node: thisNode, Store: a.far, EventLoop: a.control, Mirror: a.mirror,
			Timing: kubestate.Timing{DelayLocal: 5 * time.Second},
		})
		change(a)
		ctx, stop := context.WithCancel(context.Background())
		a.stop = stop
		go func() { a.ended <- a.control.Run(ctx) }()
		go func() { a.ended <- a.Run(ctx) }()
		go func() { a.ended <- a.StartLocal(ctx) }()
		defer a.end(t)
		synctest.Wait()
		f(a)
		synctest.Wait()
		for _, line := range a.handler.lines() {
			a.g.Expect(line).NotTo(HavePrefix("FAULT"))
		}
	})
}

// same expects that the handler has what the store has.
func (a *agent) same() {
	want := a.inStore()
	for at := range want {
		if strings.HasPrefix(at, "external ") {
			delete(want, at)
		}
	}
	a.handler.set(func(h *recorder) { a.g.Expect(h.state).To(Equal(want)) })
}

// southbound is a value of the sink, "" for none.
func (a *agent) southbound(key string) string {
	values, err := a.sink.Dump(context.Background())
	a.g.Expect(err).NotTo(HaveOccurred())
	if m := values[key]; m != nil {
		return describe(m)
	}
	return ""
}

func node(name string) *kv.Node { return &kv.Node{Name: name} }

func TestTheRealLoopFollowsTheStore(t *testing.T) {
	withAgent(t, func(a *agent) { a.fill() }, func(a *agent) {
		a.same()
		a.pod("b", "10.1.5.3")
		synctest.Wait()
		a.put(kv.NodeKey("node-b"), node("node-b"))
		synctest.Wait()
		a.same()
		a.far.breaks()
		a.remove(kv.NodeKey("node-b"))
		a.pod("c", "10.1.5.4")
		time.Sleep(time.Minute)
		a.same()
		a.g.Expect(a.handler.lines()).To(Equal([]string{"resync", "pod b 10.1.5.3", "node node-b ", "resync"}))
		a.g.Expect(a.Resync(context.Background())).To(Succeed())
		a.g.Expect(a.handler.lines()).To(HaveLen(5))
	})
}

// Until a resync has succeeded changes wait; then they come in their order.
func TestChangesWaitForAResync(t *testing.T) {
	withAgent(t, func(a *agent) { a.handler.failing = 1; a.pod("a", "10.1.5.1") }, func(a *agent) {
		for i := range 5 {
			a.pod("a", fmt.Sprint("10.1.5.", i+2))
			synctest.Wait()
		}
		a.put(kv.NodeKey("n"), node("n"))
		synctest.Wait()
		a.remove(kv.NodeKey("n"))
		synctest.Wait()
		a.g.Expect(a.handler.lines()).To(Equal([]string{"resync fails"}))
		time.Sleep(10 * time.Second)
		a.g.Expect(a.handler.lines()).To(Equal([]string{
			"resync fails", "resync", "pod a 10.1.5.2", "pod a 10.1.5.3", "pod a 10.1.5.4", "pod a 10.1.5.5", "pod a 10.1.5.6", "node n ", "node n  gone",
		}))
		a.same()
	})
}

// A waiting change that a snapshot contains is not pushed.
func TestRevisionsAreSeenOnce(t *testing.T) {
	withAgent(t, func(a *agent) { a.handler.failing = 1 }, func(a *agent) {
		a.pod("a", "10.1.5.2")
		synctest.Wait()
		a.put(kv.ExternalKey(thisNode, kv.SinkNode), &kv.NodeNetwork{Id: 7})
		synctest.Wait()
		a.g.Expect(a.Resync(context.Background())).To(Succeed())
		a.pod("a", "10.1.5.3")
		synctest.Wait()
		a.g.Expect(a.handler.lines()).To(Equal([]string{"resync fails", "resync", "pod a 10.1.5.3"}))
		a.same()
		a.g.Expect(a.southbound(kv.SinkNode)).To(Equal(describe(&kv.NodeNetwork{Id: 7})))
	})
}

// A snapshot while the loop is behind: nothing is lost, and nothing goes back.
func TestASnapshotWhileTheLoopIsBehind(t *testing.T) {
	withAgent(t, func(*agent) {}, func(a *agent) {
		gate := make(chan struct{})
		a.handler.set(func(h *recorder) { h.gate = gate })
		for i := range 20 {
			a.pod(fmt.Sprint("p", i%3), fmt.Sprint("10.1.5.", i))
		}
		a.remove(podKey("p1"))
		a.far.breaks()
		time.Sleep(time.Second)
		a.pod("p9", "10.1.5.99")
		synctest.Wait()
		close(gate)
		time.Sleep(10 * time.Second)
		a.same()
	})
}

// The queue of the loop is bounded: the Source waits for room, the store's watch
// for the Source, and nothing is lost.
func TestMoreChangesThanTheLoopHasRoomFor(t *testing.T) {
	withAgent(t, func(*agent) {}, func(a *agent) {
		gate := make(chan struct{})
		a.handler.set(func(h *recorder) { h.gate = gate })
		for i := range 3000 { // more than the store remembers, too
			a.pod(fmt.Sprint("p", i%7), fmt.Sprint(i))
		}
		synctest.Wait()
		close(gate)
		time.Sleep(time.Minute)
		a.same()
	})
}

// What is in the store for the southbound is merged with what handlers put, also
// across resyncs, and goes when it is deleted.
func TestExternalConfigurationIsMerged(t *testing.T) {
	at, _ := routeTo("node-b")
	external := kv.ExternalKey(thisNode, at)
	both := describe(&kv.NodeRoute{NodeName: "node-b", Gateway: "192.168.16.9"})
	for name, before := range map[string]bool{"before the start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			write := func(a *agent) { a.put(external, &kv.NodeRoute{Gateway: "192.168.16.9"}) }
			withAgent(t, func(a *agent) {
				a.put(kv.NodeKey("node-b"), node("node-b"))
				if before {
					write(a)
				}
			}, func(a *agent) {
				if !before {
					a.g.Expect(a.southbound(at)).To(Equal(describe(&kv.NodeRoute{NodeName: "node-b"})))
					write(a)
				}
				synctest.Wait()
				a.g.Expect(a.southbound(at)).To(Equal(both))
				a.g.Expect(a.Resync(context.Background())).To(Succeed())
				a.g.Expect(a.southbound(at)).To(Equal(both))
				a.remove(kv.NodeKey("node-b"))
				synctest.Wait()
				a.g.Expect(a.southbound(at)).To(Equal(describe(&kv.NodeRoute{Gateway: "192.168.16.9"})))
				a.put(kv.NodeKey("node-b"), node("node-b"))
				a.putRaw(external, []byte{0xff}) // counts as deleted
				synctest.Wait()
				a.g.Expect(a.southbound(at)).To(Equal(describe(&kv.NodeRoute{NodeName: "node-b"})))
				write(a)
				synctest.Wait()
				a.g.Expect(a.southbound(at)).To(Equal(both))
				a.far.goes() // and is deleted meanwhile
				a.remove(external)
				a.far.comes(a.store)
				time.Sleep(time.Minute)
				a.g.Expect(a.southbound(at)).To(Equal(describe(&kv.NodeRoute{NodeName: "node-b"})))
				a.same()
			})
		})
	}
}

// The store is away when the agent starts: the loop goes on from the mirror, and
// from the store's state when that is back, which alone decides from then on.
func TestTheRealLoopStartsFromTheMirror(t *testing.T) {
	old := map[string][]byte{}
	for _, name := range []string{"node-b", "node-c"} {
		value, err := proto.Marshal(node(name))
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		old[kv.NodeKey(name)] = value
	}
	value, err := proto.Marshal(&kv.NodeNetwork{Id: 7})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	old[kv.ExternalKey(thisNode, kv.SinkNode)] = value
	withAgent(t, func(a *agent) {
		a.far.goes()
		a.mirror.kvs, a.mirror.revision = old, 999 // of a store that was newer
	}, func(a *agent) {
		time.Sleep(5*time.Second - time.Millisecond)
		a.g.Expect(a.handler.lines()).To(BeEmpty())
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		a.g.Expect(a.handler.lines()).To(Equal([]string{"local resync"}))
		a.g.Expect(a.control.Status().Resynced).To(BeTrue())
		b, _ := routeTo("node-b")
		c, _ := routeTo("node-c")
		a.g.Expect(a.southbound(b)).NotTo(BeEmpty())
		a.g.Expect(a.southbound(kv.SinkNode)).To(Equal(describe(&kv.NodeNetwork{Id: 7})))
		a.put(kv.NodeKey("node-c"), node("node-c"))
		a.far.comes(a.store)
		time.Sleep(time.Minute)
		a.same()
		a.g.Expect(a.southbound(b)).To(BeEmpty())
		a.g.Expect(a.southbound(c)).NotTo(BeEmpty())
		a.g.Expect(a.southbound(kv.SinkNode)).To(BeEmpty())
		a.pod("a", "10.1.5.2") // at a revision far below the mirror's
		synctest.Wait()
		a.same()
		a.g.Expect(a.handler.lines()).To(Equal([]string{"local resync", "resync", "pod a 10.1.5.2"}))
		a.g.Expect(a.mirror.state()).To(HaveLen(1), "the pod is to come")
	})
}
