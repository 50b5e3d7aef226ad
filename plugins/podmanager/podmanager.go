// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package podmanager turns the requests of container runtimes into AddPod and DeletePod
// events, and holds the sandboxes of this node.
//
// Any goroutine may call Serve to answer a CNI request; it waits for the event's Done. The
// loop calls Update and Resync. The sandboxes are derived state: after a restart they are
// those with leases in the ledger.
//
// The package makes three guarantees. A DEL cancels every ADD of the same attachment that
// was accepted before it. The lease of an ADD whose caller left before the answer is
// released. A DEL that found no agent is applied before the agent serves requests
// (Recover), and before the next ADD of its attachment.
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

// Ledger holds the methods of *ledger.Ledger that the plugin calls.
type Ledger interface {
	ByKey(ledger.Key) []ledger.Lease
	Leases() []ledger.Lease
	Stats() []ledger.BlockStat
	Suspended() string
	Release(context.Context, ledger.Selector) ([]ledger.Lease, error)
}

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	EventLoop controller.EventLoop
	Ledger    Ledger
	IntentDir string                 // directory of DELs that found no agent
	UID       int                    // the agent's user, the owner of IntentDir
	Timeout   time.Duration          // of one request; 0: a minute
	Now       func() time.Time       // nil: time.Now
	IsPodPool func(name string) bool // reports whether pods may use a pool besides the default one; may be nil
	Ready     func() error           // returns the reason why ADD cannot be served; nil: it can
	Observe   func(Served)           // called for each request; may be nil
	// Unsynced reports whether the loop waits for its first resync, and until then
	// takes none of this plugin's events; nil: it never does.
	Unsynced func() bool
}

// Served holds one request and its outcome, for metrics.
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
	applying  chan struct{} // semaphore of one: only one goroutine applies an intent
}

var _ controller.EventHandler = (*PodManager)(nil)

// NewPlugin returns the plugin.
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
	return &PodManager{
		Deps:     deps,
		seq:      newSequencer(),
		applying: make(chan struct{}, 1),
		orphans:  orphans{signal: make(chan struct{}, 1)},
	}
}

// Init does nothing.
func (p *PodManager) Init() error { return nil }

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

// Update records the sandbox of an AddPod. It is removed when the event, or a DeletePod, is
// done and has left no lease.
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

// tidy removes the sandbox of an attachment without a lease.
func (p *PodManager) tidy(key ledger.Key) {
	if len(p.Ledger.ByKey(key)) == 0 {
		p.sandboxes.remove(key)
	}
}

// sandboxes holds the attachments of each pod, the newest last. The loop changes them; any
// goroutine may read.
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

// newest returns the first attachment of the newest container, which is the pod's main
// one.
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
