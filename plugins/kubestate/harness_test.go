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
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/faulty"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loop is an event loop that follows the cluster's state and finds fault with
// every change that does not fit what it was told before.
type loop struct {
	mu      sync.Mutex
	state   map[string]proto.Message // by resource and key
	resyncs int
	changes int
	faults  []string
	outcome error         // of every DBResync
	refuse  error         // of every push
	gate    chan struct{} // not nil: a push waits for it
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
		l.resyncs++
		l.state = map[string]proto.Message{}
		for resource, messages := range ev.KubeState {
			for key, m := range messages {
				l.state[resource+" "+key] = m
			}
		}
	case *controller.KubeStateChange:
		l.changes++
		at := ev.Resource + " " + ev.Key
		if l.resyncs == 0 {
			l.faults = append(l.faults, "a change before the first snapshot: "+at)
		}
		if have := l.state[at]; (have == nil) != (ev.Prev == nil) || have != nil && !proto.Equal(have, ev.Prev) {
			l.faults = append(l.faults, fmt.Sprintf("%s: it was %v, the change says %v", at, have, ev.Prev))
		}
		l.state[at] = ev.New
		if ev.New == nil {
			delete(l.state, at)
		}
	default:
		l.faults = append(l.faults, "unexpected event "+ev.GetName())
	}
}

// seen is what the loop knows now.
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

func describe(m proto.Message) string {
	switch m := m.(type) {
	case *kv.Pod:
		return "pod " + m.Name + " " + strings.Join(m.IpAddresses, ",")
	case *kv.Node:
		return "node " + m.Name + " " + strings.Join(m.PodCidrs, ",")
	case *kv.NodeRecord:
		return fmt.Sprint("record ", m.Id, " ", m.Name)
	}
	return fmt.Sprint(m)
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
	r := &rig{g: NewWithT(t), store: faulty.New(mem.New(), plans...), loop: &loop{}, ended: make(chan error, 1)}
	r.Source = kubestate.New(kubestate.Deps{Log: slog.New(slog.DiscardHandler), Store: r.store, EventLoop: r.loop})
	return r
}

// run starts the Source; what it returned is checked and the store closed by end.
func (r *rig) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
}

func (r *rig) end(t *testing.T) {
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	if err := r.store.Close(); err != nil && !errors.Is(err, kvdb.ErrClosed) {
		t.Error(err)
	}
}

func (r *rig) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	r.g.Expect(err).NotTo(HaveOccurred())
	r.putRaw(key, value)
}

func (r *rig) putRaw(key string, value []byte) {
	_, err := r.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	r.g.Expect(err).NotTo(HaveOccurred())
}

func (r *rig) remove(key string) {
	_, err := r.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(key)})
	r.g.Expect(err).NotTo(HaveOccurred())
}

// pod puts a pod with an address.
func (r *rig) pod(name, ip string) {
	r.put(kv.PodKey(kv.PodID{Namespace: "ns", Name: name}), &kv.Pod{Namespace: "ns", Name: name, IpAddresses: []string{ip}})
}

// podAt is how the loop sees a pod.
func podAt(name string) string { return kubestate.Pods + " k8s/pod/ns/" + name }

// comes waits until the loop has seen exactly this, and found no fault with it.
func (r *rig) comes(want map[string]string) {
	r.g.Eventually(func() map[string]string {
		state, _, _, _ := r.loop.seen()
		return state
	}, 5*time.Second, time.Millisecond).Should(Equal(maps.Clone(want)))
	_, _, _, faults := r.loop.seen()
	r.g.Expect(faults).To(BeEmpty())
}
