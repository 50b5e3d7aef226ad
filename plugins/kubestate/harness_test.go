// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// thisNode is the node whose Source is tested.
const thisNode = "node-a"

// loop is an event loop that follows the cluster's state and finds fault with
// every event that does not fit the earlier ones.
type loop struct {
	mu       sync.Mutex
	state    map[string]proto.Message // by resource and key; of the southbound by "external" and key
	revision int64                    // of the last snapshot
	taken    map[string]bool          // keys and revisions of the changes since then
	most     map[string]uint64        // the highest generation of each pool that came
	resyncs  int
	came     []*controller.KubeStateChange
	locals   int // of the resyncs
	dropped  int // local ones after one of the store
	changes  int
	faults   []string
	check    func(*controller.DBResync) string // finds fault with a snapshot
	outcome  error                             // of every DBResync
	refuse   error                             // of every push
	gate     chan struct{}                     // not nil: a push waits for it
}

func (l *loop) PushEvent(ev controller.Event) error {
	return l.PushEventWait(context.Background(), ev)
}

func (l *loop) PushEventWait(ctx context.Context, ev controller.Event) error {
	l.mu.Lock()
	gate, refuse := l.gate, l.refuse
	l.mu.Unlock()
	if refuse != nil {
		return fmt.Errorf("push: %w", refuse)
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l.mu.Lock()
	l.apply(ev)
	outcome := l.outcome
	l.mu.Unlock()
	ev.Done(outcome)
	return nil
}

func (l *loop) apply(ev controller.Event) {
	switch ev := ev.(type) {
	case *controller.DBResync:
		l.resync(ev)
	case *controller.KubeStateChange:
		at := ev.Resource + " " + ev.Key
		if have := l.state[at]; (have == nil) != (ev.Prev == nil) || have != nil && !proto.Equal(have, ev.Prev) {
			l.fault("%s: it was %v, the change says %v", at, have, ev.Prev)
		}
		l.came = append(l.came, ev)
		l.change(at, ev.Revision, ev.New)
	case *controller.ExternalConfigChange:
		if ev.Source != controller.ExternalDB {
			l.fault("external configuration of source %s", ev.Source)
		}
		for key, m := range ev.Values {
			l.change("external "+key, ev.Revision, m)
		}
	default:
		l.fault("unexpected event %s", ev.GetName())
	}
}

func (l *loop) resync(ev *controller.DBResync) {
	if ev.Local && l.resyncs > l.locals {
		l.dropped++ // as the real one
		return
	}
	l.resyncs++
	if ev.Local {
		l.locals++
	}
	if l.check != nil {
		if fault := l.check(ev); fault != "" {
			l.fault("%s", fault)
		}
	}
	l.state, l.taken, l.revision = map[string]proto.Message{}, map[string]bool{}, ev.Revision
	for _, r := range kv.Resources() {
		if ev.KubeState[r.Name] == nil {
			l.fault("a snapshot without %s", r.Name)
		}
	}
	for resource, messages := range ev.KubeState {
		for key, m := range messages {
			l.state[resource+" "+key] = m
		}
	}
	for key, m := range ev.ExternalConfig {
		l.state["external "+key] = m
	}
	for _, m := range ev.KubeState[kubestate.Pools] {
		l.followed(m)
	}
}

// followed notes a pool that the loop follows from now on.
func (l *loop) followed(m proto.Message) {
	p, ok := m.(*kv.Pool)
	if !ok {
		return
	}
	if l.most == nil {
		l.most = map[string]uint64{}
	}
	l.most[p.Name] = max(l.most[p.Name], p.Generation)
}

func (l *loop) change(at string, revision int64, m proto.Message) {
	l.changes++
	once := fmt.Sprint(at, "@", revision)
	switch {
	case l.resyncs == l.locals:
		l.fault("a change before the first snapshot of the store: %s", at)
	case revision <= l.revision:
		l.fault("%s: revision %d is in the snapshot of %d", at, revision, l.revision)
	case l.taken[once]:
		l.fault("%s came twice", once)
	}
	if l.state == nil {
		return
	}
	l.followed(m)
	l.taken[once], l.state[at] = true, m
	if m == nil {
		delete(l.state, at)
	}
}

func (l *loop) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// seen returns the present state of the loop.
func (l *loop) seen() (state map[string]string, resyncs, changes int, faults []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state = map[string]string{}
	for at, m := range l.state {
		state[at] = describe(m)
	}
	return state, l.resyncs, l.changes, append([]string{}, l.faults...)
}

func (l *loop) set(change func(*loop)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *loop) localResyncs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locals
}

func describe(m proto.Message) string {
	switch m := m.(type) {
	case *kv.Pod:
		return "pod " + m.Name + " " + strings.Join(m.IpAddresses, ",")
	case *kv.Node:
		return "node " + m.Name + " " + strings.Join(m.PodCidrs, ",")
	case *kv.NodeRecord:
		return fmt.Sprint("record ", m.Id, " ", m.Name)
	case *kv.Pool:
		return fmt.Sprint("pool ", m.Name, " ", m.Generation, " ", m.Draining)
	}
	return prototext.MarshalOptions{}.Format(m)
}

// rig is a Source that runs over a store and feeds a loop.
type rig struct {
	*kubestate.Source
	g     Gomega
	store *faulty.Store
	loop  *loop
	ended chan error
	stop  context.CancelFunc
}

// newRig is a Source that does not run yet.
func newRig(t *testing.T, plans ...faulty.Plan) *rig {
	t.Helper()
	r := &rig{g: NewWithT(t), store: faulty.New(mem.New(), plans...), loop: &loop{}, ended: make(chan error, 2)}
	return r.with(func(*kubestate.Deps) {})
}

// with makes another Source of the same rig, with other dependencies.
func (r *rig) with(change func(*kubestate.Deps)) *rig {
	deps := kubestate.Deps{Log: slog.New(slog.DiscardHandler), Node: thisNode, Store: r.store, EventLoop: r.loop}
	change(&deps)
	r.Source = kubestate.New(deps)
	return r
}

// run starts the Source; what it returned is checked and the store closed by end.
func (r *rig) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
	go func() { r.ended <- r.StartLocal(ctx) }()
}

// halt ends the Source; the store stays.
func (r *rig) halt(t *testing.T) {
	r.stop()
	for range cap(r.ended) {
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	}
}

func (r *rig) end(t *testing.T) {
	r.halt(t)
	if err := r.store.Close(); err != nil && !errors.Is(err, kvdb.ErrClosed) {
		t.Error(err)
	}
}

func (r *rig) put(key string, m proto.Message) { r.putRaw(key, marshal(r.g, m)) }

func marshal(g Gomega, m proto.Message) []byte {
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	return value
}

func (r *rig) putRaw(key string, value []byte) { r.txn(kvdb.Put(key, value)) }

func (r *rig) remove(key string) { r.txn(kvdb.Delete(key)) }

func (r *rig) txn(ops ...kvdb.Op) {
	_, err := r.store.Txn(context.Background(), nil, ops)
	r.g.Expect(err).NotTo(HaveOccurred())
}

// podKey returns the key of a pod of this node.
func podKey(name string) string {
	return kv.PodKey(thisNode, kv.PodID{Namespace: "ns", Name: name})
}

// pod puts a pod with an address.
func (r *rig) pod(name, ip string) {
	r.put(podKey(name), &kv.Pod{Namespace: "ns", Name: name, IpAddresses: []string{ip}})
}

// podAt returns the name of a pod in the loop's state.
func podAt(name string) string { return kubestate.Pods + " " + podKey(name) }

// comes waits until the loop has seen exactly this, and found no fault with it.
func (r *rig) comes(want map[string]string) {
	r.g.Eventually(func() map[string]string {
		state, _, _, _ := r.loop.seen()
		return state
	}, 5*time.Second, time.Millisecond).Should(Equal(maps.Clone(want)))
	_, _, _, faults := r.loop.seen()
	r.g.Expect(faults).To(BeEmpty())
}

// counts are the resyncs and the changes that the loop has seen.
func (r *rig) counts() []int {
	_, resyncs, changes, _ := r.loop.seen()
	return []int{resyncs, changes}
}
