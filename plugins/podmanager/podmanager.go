// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package podmanager turns the requests of container runtimes into AddPod and
// DeletePod events, and knows the sandboxes of this node.
//
// Serve answers CNI requests from any goroutine; it waits for the event's Done.
// Update and Resync are called from the loop. The sandboxes are derived: after
// a restart they are those that the ledger has leases for.
//
// Three promises are kept here: a DEL cancels every ADD of the same attachment
// that was accepted before it; the lease of an ADD whose caller is gone before
// the answer is released again; a DEL that found no agent is applied before
// anything is served (Recover), and before the next ADD of its attachment.
//
// Example:
//
//	reply, err := p.Serve(ctx, cni.Request{Command: "ADD", Network: "pods", ContainerID: "4f1c", IfName: "eth0"})
//	reply.IPs[0].Address    // 10.1.5.2/24
package podmanager

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// API is what other plugins may ask.
type API interface {
	// NewestSandbox returns the key of the main attachment of the newest sandbox of a pod.
	NewestSandbox(pod kv.PodID) (key ledger.Key, found bool)
}

// Book holds the ledger's methods that the plugin calls.
type Book interface {
	ByKey(ledger.Key) []ledger.Lease
	Leases() []ledger.Lease
	Stats() []ledger.BlockStat
	Suspended() string
	Release(context.Context, ledger.Selector) ([]ledger.Lease, error)
}

// Deps is what the plugin is given.
type Deps struct {
	controller.PluginDeps
	EventLoop controller.EventLoop
	Ledger    Book
	IntentDir string                 // where DELs wait that found no agent
	UID       int                    // the agent's user, who owns IntentDir
	Timeout   time.Duration          // of one request; 0: a minute
	Now       func() time.Time       // nil: time.Now
	IsPodPool func(name string) bool // whether pods may have addresses of it, besides the default pool; may be nil
	Ready     func() error           // why ADD cannot be served; nil: it can
	Observe   func(Served)           // called for each request; may be nil
	// Unsynced reports whether the loop waits for its first resync, and until then
	// takes none of this plugin's events; nil: it never does.
	Unsynced func() bool
}

// Served is one request and its outcome, for metrics.
type Served struct {
	Command string
	Code    uint // 0: success
	Took    time.Duration
}

// PodManager is the plugin.
type PodManager struct {
	Deps
	seq       *sequencer
	sandboxes sandboxes
	orphans   orphans
	applying  chan struct{} // has room for one: who applies an intent
}

var (
	_ API                     = (*PodManager)(nil)
	_ controller.EventHandler = (*PodManager)(nil)
)

// NewPlugin makes the plugin.
func NewPlugin(deps Deps) *PodManager {
	deps.Name = "podmanager"
	if deps.Timeout == 0 {
		deps.Timeout = time.Minute
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Unsynced == nil {
		deps.Unsynced = func() bool { return false }
	}
	return &PodManager{Deps: deps, seq: newSequencer(), applying: make(chan struct{}, 1), orphans: orphans{signal: make(chan struct{}, 1)}}
}

// Init does nothing.
func (p *PodManager) Init() error { return nil }

// AfterInit does nothing.
func (p *PodManager) AfterInit() error { return nil }

// Close does nothing.
func (p *PodManager) Close() error { return nil }

// NewestSandbox returns the key of the main attachment of the newest sandbox of a pod.
func (p *PodManager) NewestSandbox(pod kv.PodID) (ledger.Key, bool) { return p.sandboxes.newest(pod) }

// HandlesEvent selects resyncs, AddPod and DeletePod.
func (p *PodManager) HandlesEvent(event controller.Event) bool {
	switch event.(type) {
	case *AddPod, *DeletePod:
		return true
	}
	return event.Method() != controller.Update
}

// Resync derives the sandboxes from the leases.
func (p *PodManager) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	leases := slices.DeleteFunc(p.Ledger.Leases(), func(l ledger.Lease) bool {
		return l.Purpose != ledger.ForPod || l.State != ledger.Held || l.Pod.Name == ""
	})
	slices.SortFunc(leases, func(x, y ledger.Lease) int { return cmp.Compare(x.Generation, y.Generation) })
	p.sandboxes.reset()
	for _, l := range leases {
		p.sandboxes.add(kv.PodID{Namespace: l.Pod.Namespace, Name: l.Pod.Name}, l.Key)
	}
	return nil
}

// Update notes the sandbox of an AddPod. It is forgotten when the event, or a
// DeletePod, is done and has left no lease.
func (p *PodManager) Update(event controller.Event, _ controller.UpdateOperations) (string, error) {
	ev, ok := event.(*AddPod)
	if !ok {
		return "", nil
	}
	if p.seq.cancelled(ev.Key, ev.ticket) {
		return "", fmt.Errorf("%s: %w", ev.Key, errCancelled)
	}
	if ev.Pod.Name != "" {
		p.sandboxes.add(ev.Pod, ev.Key)
	}
	return "", nil
}

// Revert does nothing: see Update.
func (p *PodManager) Revert(controller.Event) error { return nil }

// tidy forgets the sandbox of an attachment that has no lease (any more).
func (p *PodManager) tidy(key ledger.Key) {
	if len(p.Ledger.ByKey(key)) == 0 {
		p.sandboxes.remove(key)
	}
}

// sandboxes are the attachments of each pod, the newest last. The loop changes
// them; anybody may read.
type sandboxes struct {
	mu    sync.RWMutex
	byPod map[kv.PodID][]ledger.Key
	pod   map[ledger.Key]kv.PodID
}

func (s *sandboxes) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPod, s.pod = map[kv.PodID][]ledger.Key{}, map[ledger.Key]kv.PodID{}
}

func (s *sandboxes) add(pod kv.PodID, key ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.pod[key]; known {
		return
	}
	s.byPod[pod], s.pod[key] = append(s.byPod[pod], key), pod
}

func (s *sandboxes) remove(key ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod, known := s.pod[key]
	if !known {
		return
	}
	delete(s.pod, key)
	s.byPod[pod] = slices.DeleteFunc(s.byPod[pod], func(k ledger.Key) bool { return k == key })
	if len(s.byPod[pod]) == 0 {
		delete(s.byPod, pod)
	}
}

// newest returns the first attachment of the newest container. A further interface of
// it is not the pod's main one.
func (s *sandboxes) newest(pod kv.PodID) (ledger.Key, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := s.byPod[pod]
	if len(keys) == 0 {
		return ledger.Key{}, false
	}
	container := keys[len(keys)-1].ContainerID
	return keys[slices.IndexFunc(keys, func(k ledger.Key) bool { return k.ContainerID == container })], true
}

func addrs(leases []ledger.Lease) []netip.Addr {
	var as []netip.Addr
	for _, l := range leases {
		as = append(as, l.Addr)
	}
	return as
}
