// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package podmanager turns the requests of container runtimes into AddPod and DeletePod
// events, and holds the sandboxes of this node.
//
// Any goroutine may call Serve to answer a CNI request; it waits for the event's Done. The
// loop calls Update and Resync. The sandboxes are derived state: after a restart they are
// those with leases in the ledger.
//
// The requests of one attachment take effect in the order in which the connections of
// their callers were accepted (Accept), also across a restart:
//
//   - A DEL cancels every ADD that was accepted before it, and frees no lease whose ADD was
//     accepted after it and is answered.
//   - A request whose caller has hung up before it reaches the loop does nothing. The lease
//     of an ADD whose caller hangs up later, before the answer, is released.
//   - A DEL that found no agent has the time at which it began. It is applied before the
//     agent serves requests (Recover), and before the next ADD of its attachment.
package podmanager

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// Ledger holds the methods of *ledger.Ledger that the plugin calls.
type Ledger interface {
	ByKey(ledger.Key) []ledger.Lease
	Leases() []ledger.Lease
	All() iter.Seq[*ledger.Lease]
	Stats() []ledger.BlockStat
	Suspended() string
	Release(context.Context, ledger.Selector) ([]ledger.Lease, error)
	Uptime() time.Duration
	BootID() string
	answers
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
	Reclaims  Reclaims               // nil: nothing is reclaimed
	Kernel    Kernel                 // nil: CHECK does not look at the interface
	Wires     Wires                  // nil: the southbound makes no wires, and a main ADD is refused
	// Identify returns the identity of the network namespace that a file names now, the zero
	// one if it cannot be seen. nil: none can.
	Identify func(netns string) kv.NetNSID
	// Explain returns the failure of an ADD as one sentence for people, "" if it has
	// none. nil: the text of the error is used.
	Explain func(req cni.Request, err error) string
	// Refused is called for a refused ADD of a pod, at most once per pod and reason in
	// RefusalPeriod. It must not wait. nil: only the log tells.
	Refused func(Refusal)
	// BeforeResync calls f if the loop waits for its first resync, and until then takes none
	// of this plugin's events. That resync does not begin before f returns. It reports whether
	// it has called f, and returns its error. nil: the loop does not wait.
	BeforeResync func(f func() error) (called bool, err error)
}

// Reclaims releases the leases whose owners are gone. Any goroutine may call it.
type Reclaims interface {
	// Unlisted takes the leases of a network that its GC did not list, and says for each
	// address that is not released at once what that waits for.
	Unlisted(ctx context.Context, network string, leases []ledger.Lease) (waits []string, err error)
	// Claimed notes that the runtime has added an attachment, perhaps again.
	Claimed(ledger.Key)
}

// Kernel reads the interfaces of pods. Any goroutine may call it.
type Kernel interface {
	// Interface returns the addresses of an interface. known is false if the network
	// namespace cannot be seen from here.
	Interface(ctx context.Context, netns, ifName string) (addrs []netip.Prefix, exists, known bool, err error)
}

// Wires tells about the wires of pods, which the southbound makes. Any goroutine may call
// it.
type Wires interface {
	// Ready returns the reason why no wire can be made now; nil: they can.
	Ready() error
	// Check returns the difference between the wire of an attachment and the kernel, nil if
	// there is none, or if the southbound cannot tell.
	Check(ctx context.Context, key ledger.Key) error
	// Collect has wires that belong to no lease removed. It does not wait for that.
	Collect()
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
	refusals  refusals
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
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.BeforeResync == nil {
		deps.BeforeResync = func(func() error) (bool, error) { return false, nil }
	}
	return &PodManager{
		Deps:     deps,
		seq:      newSequencer(func() time.Duration { return deps.Ledger.Uptime() }, deps.Ledger),
		applying: make(chan struct{}, 1),
		orphans:  orphans{signal: make(chan struct{}, 1)},
	}
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

// Resync derives the sandboxes from the leases. Those that are right already stay.
func (p *PodManager) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	if p.sandboxes.match(p.attachments()) {
		return nil
	}
	p.sandboxes.replace(slices.Collect(p.attachments()))
	return nil
}

// attachments yields a sandbox for each lease of a pod, in no order.
func (p *PodManager) attachments() iter.Seq[sandbox] {
	return func(yield func(sandbox) bool) {
		for l := range p.Ledger.All() {
			if l.Purpose != ledger.ForPod || !l.InUse() || l.Pod.Name == "" {
				continue
			}
			pod := kv.PodID{Namespace: l.Pod.Namespace, Name: l.Pod.Name}
			if !yield(sandbox{key: l.Key, pod: pod, generation: l.Generation}) {
				return
			}
		}
	}
}

// Update records the sandbox of an AddPod. It is removed when the event, or a DeletePod, is
// done and has left no lease.
func (p *PodManager) Update(event controller.Event, _ controller.UpdateOperations) (string, error) {
	ev, ok := event.(*AddPod)
	if !ok {
		return "", nil
	}
	switch {
	case p.seq.cancelled(ev.Key, ev.Ticket):
		return "", fmt.Errorf("%s: %w", ev.Key, errCancelled)
	case ev.left():
		return "", fmt.Errorf("%s: %w", ev.Key, errGone)
	}
	if err := p.fits(ev); err != nil {
		return "", err
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
	leases := p.Ledger.ByKey(key)
	if len(leases) == 0 {
		p.sandboxes.remove(key)
		return
	}
	p.sandboxes.confirm(key, leases[0].Generation)
}

// sandbox holds one attachment of a pod.
type sandbox struct {
	key        ledger.Key
	pod        kv.PodID
	generation uint64 // of its lease; 0: not known yet
	at         int    // index in sandboxes.order
	round      uint64 // the last comparison that has found its lease
}

// sandboxes holds the attachments of each pod, the newest last. The loop changes them; any
// goroutine may read.
type sandboxes struct {
	mu           sync.RWMutex
	byPod        map[kv.PodID][]ledger.Key
	byKey        map[ledger.Key]*sandbox
	byGeneration map[uint64]*sandbox // those with a known generation
	order        []*sandbox          // as leases were found; some are gone
	newestLease  uint64              // the highest generation
	unordered    bool                // a pod's attachments may not be in the order of their leases
	round        uint64              // number of comparisons
}

// match reports whether the sandboxes are those of all leases and no others, in the order
// of the leases.
func (s *sandboxes) match(all iter.Seq[sandbox]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unordered {
		return false
	}
	s.round++
	found, next := 0, 0
	for x := range all {
		var have *sandbox
		if next < len(s.order) && s.order[next].generation == x.generation {
			have = s.order[next]
		} else {
			have = s.byGeneration[x.generation]
		}
		if have == nil || x.generation == 0 || have.key != x.key || have.pod != x.pod {
			return false
		}
		if have.round != s.round {
			have.round = s.round
			next = have.at + 1
			found++
		}
	}
	return found == len(s.byKey)
}

// replace replaces the sandboxes by those of all leases.
func (s *sandboxes) replace(all []sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPod = make(map[kv.PodID][]ledger.Key, len(all))
	s.byKey = make(map[ledger.Key]*sandbox, len(all))
	s.byGeneration = make(map[uint64]*sandbox, len(all))
	s.newestLease, s.unordered = 0, false
	s.order = make([]*sandbox, len(all))
	for i := range all {
		s.order[i], all[i].at = &all[i], i
	}
	ordered := slices.Clone(s.order)
	slices.SortStableFunc(ordered, func(x, y *sandbox) int { return cmp.Compare(x.generation, y.generation) })
	for _, x := range ordered {
		if s.byKey[x.key] != nil {
			continue
		}
		s.byPod[x.pod], s.byKey[x.key] = append(s.byPod[x.pod], x.key), x
		s.byGeneration[x.generation], s.newestLease = x, x.generation
	}
}

func (s *sandboxes) add(pod kv.PodID, key ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey[key] != nil {
		return
	}
	if s.byKey == nil {
		s.byPod, s.byKey, s.byGeneration = map[kv.PodID][]ledger.Key{}, map[ledger.Key]*sandbox{}, map[uint64]*sandbox{}
	}
	s.byPod[pod], s.byKey[key] = append(s.byPod[pod], key), &sandbox{key: key, pod: pod, at: len(s.order)}
}

// confirm sets the generation of the lease of a sandbox.
func (s *sandboxes) confirm(key ledger.Key, generation uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byKey[key]
	if x == nil || x.generation == generation {
		return
	}
	s.unordered = s.unordered || x.generation != 0 || generation < s.newestLease
	delete(s.byGeneration, x.generation)
	x.generation, s.newestLease = generation, max(s.newestLease, generation)
	s.byGeneration[generation] = x
}

func (s *sandboxes) remove(key ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.byKey[key]
	if x == nil {
		return
	}
	delete(s.byKey, key)
	delete(s.byGeneration, x.generation)
	x.generation = 0 // it may be in order still
	s.byPod[x.pod] = slices.DeleteFunc(s.byPod[x.pod], func(k ledger.Key) bool { return k == key })
	if len(s.byPod[x.pod]) == 0 {
		delete(s.byPod, x.pod)
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
