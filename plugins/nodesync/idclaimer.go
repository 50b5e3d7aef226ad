// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// IDClaimerDeps holds the dependencies of an IDClaimer.
type IDClaimerDeps struct {
	Log       *slog.Logger
	Store     kvdb.Store
	Disk      Disk
	EventLoop controller.EventLoop // gets a NodeIDChange when a problem comes or goes
	Leases    Leases
	Docker    func() []netip.Prefix // subnets of Docker's networks that are not parts of the pod network; may be nil
	Identity  Identity
	Refresh   time.Duration // between two beats, at most
	FirstWait time.Duration // the first claim in a store waits for nodes that know more; 0: not
	Expire    time.Duration // after the last beat; then another node may release the ID
	Alone     bool          // only this node uses the store, on the same disk: it has no trace of a twin
	Now       func() time.Time
	Random    func() float64
}

// Leases shows and stops the leases of addresses that follow from the node ID. Its
// methods must return soon.
type Leases interface {
	InUse() bool
	Suspend(reason string) // stops new leases; "" allows them again
}

// StateSource shows how the cluster store is read. kubestate.Source implements it.
type StateSource interface {
	Status() kubestate.Status
}

// PoolReporter counts what this node has of each pool. The IPAM plugin implements it.
type PoolReporter interface {
	PoolUses() []*kv.PoolUse
}

// IDClaimer claims this node's ID, confirms the claim, publishes what the node reports
// of itself, and notices if another process has the ID. The ID of a process never
// changes. If it is lost, the node keeps its leases and makes no new one, also after a
// restart, until the store confirms the ID.
//
// The reader of the store calls Confirm before it reads; Run calls it too. Any
// goroutine may call the other methods, which do not wait.
type IDClaimer struct {
	deps  IDClaimerDeps
	state StateSource  // nil: the store is always read
	pools PoolReporter // nil: the node has no pools
	poke  chan struct{}
	busy  chan struct{} // full while Confirm is at work
	own   own           // of who is busy
	saved remembered    // of who is busy: what is on the disk
	twins *twins        // of who is busy; nil: the node is alone
	twin  error         // of who is busy: the kind of twin that was seen last, nil for none

	reporting sync.Mutex // held while a problem comes or goes and is made known
	pending   bool       // under reporting: a problem from before Run

	mu        sync.Mutex
	held      Held
	confirmed time.Time // when the store was last asked and said so
	session   bool      // it did so in this run
	used      bool      // addresses were derived from it
	problem   string
	kind      error     // of the problem; nil for none
	look      time.Time // when a twin counts as stopped if it does not beat again
	young     time.Time // when the quarantine of the ID ends
	wanted    publication
	stored    publication // what the store has, as of the last beat
}

// remembered holds what is on the disk.
type remembered struct {
	ID         uint32    `json:"id"`
	Generation uint64    `json:"generation"`
	Confirmed  time.Time `json:"confirmed"`
	Problem    string    `json:"problem,omitempty"`  // it was lost
	Session    string    `json:"session,omitempty"`  // of the run that the store confirmed last
	Pending    string    `json:"pending,omitempty"`  // of a run that was about to beat for the first time
	Machine    Machine   `json:"machine"`            // that the store confirmed it on
	Explicit   bool      `json:"explicit,omitempty"` // its run did not derive pod blocks from it
}

// diskName names it on the disk.
const diskName = "node-id"

// NewIDClaimer returns an IDClaimer with the ID that its disk remembers. If the ID has a
// problem, was not confirmed for too long, or implies pod blocks only now, it suspends new leases at once.
func NewIDClaimer(deps IDClaimerDeps) (*IDClaimer, error) {
	k := &IDClaimer{deps: deps, poke: make(chan struct{}, 1), busy: make(chan struct{}, 1)}
	text, err := deps.Disk.Local(diskName)
	if err != nil {
		return nil, fmt.Errorf("read the node ID that this node remembers: %w", err)
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &k.saved); err != nil {
			return nil, fmt.Errorf("read the node ID that this node remembers: %q: %w", text, err)
		}
	}
	if !deps.Alone {
		k.twins = newTwins(deps.Identity, k.saved, k.announcePending)
	}
	k.held, k.confirmed = Held{k.saved.ID, k.saved.Generation}, k.saved.Confirmed
	if k.problem, k.kind = k.saved.Problem, errBefore; k.problem == "" {
		k.problem, k.kind = k.overdue()
	}
	if k.problem == "" {
		k.problem, k.kind = k.movedDisk()
	}
	if k.problem == "" {
		k.problem, k.kind = k.newlyImplied()
	}
	if k.problem != "" {
		deps.Leases.Suspend(reason(k.held, k.problem))
		k.pending = true
	}
	return k, nil
}

// Attach sets the parts of the agent that need the claimer to be made. It must be
// called before Confirm and Run.
func (k *IDClaimer) Attach(state StateSource, pools PoolReporter) {
	k.state, k.pools = state, pools
}

// poolUses returns what this node has of each pool.
func (k *IDClaimer) poolUses() []*kv.PoolUse {
	if k.pools == nil {
		return nil
	}
	return k.pools.PoolUses()
}

// dockerSubnets returns the subnets of Docker's networks, each once and at most
// kv.MaxDockerSubnets, and the number of further ones.
func (k *IDClaimer) dockerSubnets() (subnets []string, more uint32) {
	if k.deps.Docker == nil {
		return nil, 0
	}
	all := k.deps.Docker()
	slices.SortFunc(all, netip.Prefix.Compare)
	all = slices.Compact(all)
	for _, p := range all[:min(len(all), kv.MaxDockerSubnets)] {
		subnets = append(subnets, p.String())
	}
	return subnets, uint32(len(all) - len(subnets))
}

// storeIsRead reports whether the agent reads the cluster store.
func (k *IDClaimer) storeIsRead() bool { return k.state == nil || k.state.Status().Connected }

// ID returns this node's ID, 0 before it was claimed for the first time.
func (k *IDClaimer) ID() uint32 { return k.Held().ID }

// Held returns the ID and the generation of its record.
func (k *IDClaimer) Held() Held {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// Problem returns the reason for which no new address may be allocated under the ID, ""
// if it may.
func (k *IDClaimer) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

// Confirmed returns the time when the store last confirmed the ID.
func (k *IDClaimer) Confirmed() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.confirmed
}

// Poke makes Run confirm the ID soon.
func (k *IDClaimer) Poke() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// Run confirms the ID again and again until ctx ends, and says then that the
// agent has ended.
func (k *IDClaimer) Run(ctx context.Context) error {
	k.announceEarlier()
	for {
		wait := k.deps.Refresh*4/5 + time.Duration(k.deps.Random()*float64(k.deps.Refresh/5))
		for _, left := range []time.Duration{k.remaining(), k.nextLook(), k.nextQuarantine()} {
			if left > 0 {
				wait = min(wait, left)
			}
		}
		select {
		case <-ctx.Done():
			k.writeLastBeat(context.WithoutCancel(ctx))
			return nil
		case <-k.poke:
		case <-time.After(wait):
		}
		k.checkTerm()
		if k.ID() == 0 || !k.storeIsRead() {
			continue // the reader of the store confirms it, after it has repaired the store
		}
		if err := k.confirmInTerm(ctx); errors.Is(err, controller.ErrFatal) {
			return err
		} else if err != nil && ctx.Err() == nil {
			k.deps.Log.Warn("the node ID cannot be confirmed now", "error", err)
			k.checkTerm()
		}
	}
}

// confirmInTerm is Confirm, but a store that does not answer is not waited for
// when the term ends.
func (k *IDClaimer) confirmInTerm(ctx context.Context) error {
	if left := k.remaining(); left > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	return k.Confirm(ctx)
}

// Confirm has the store confirm the ID, claims it if it has to, and writes what
// is new. It fails where the store does; and, with controller.ErrFatal, where
// this node can have no ID at all. If the ID is lost, it
// returns nil and sets Problem.
func (k *IDClaimer) Confirm(ctx context.Context) error {
	select {
	case k.busy <- struct{}{}:
		defer func() { <-k.busy }()
	case <-ctx.Done():
		return fmt.Errorf("confirm the node ID: %w", context.Cause(ctx))
	}
	began := k.deps.Now() // no later than what the store is told
	held, err := k.confirm(ctx)
	kind := conflict(err)
	k.lookAgain(err)
	switch {
	case err == nil:
		return k.keep(held, began)
	case kind == nil:
		return err
	case k.ID() == 0 && (errors.Is(kind, errMaybeTwin) || errors.Is(kind, errOtherSession)):
		return err // there is nothing to allocate from yet, and the twin may stop
	case k.ID() == 0:
		return controller.NewFatalError(err)
	case k.tookBack(kind):
		// The next start must not begin with this ID from its mirror.
		return controller.NewFatalError(errors.Join(err, k.save(remembered{})))
	}
	k.lose(err.Error(), kind)
	return nil
}

var (
	// errOverdue is the kind of problem that time makes.
	errOverdue = errors.New("the node ID was not confirmed for long")
	// errBefore is the kind of problem that the run before had.
	errBefore = errors.New("the node ID was lost before the agent was started")
)

// conflict returns the error in err that denies this node the ID, nil if there is none.
func conflict(err error) error {
	for _, kind := range []error{ErrNameInUse, ErrInstanceInUse, ErrIDTaken, ErrNoID, errOtherSession, errMaybeTwin} {
		if errors.Is(err, kind) {
			return kind
		}
	}
	return nil
}

func (k *IDClaimer) confirm(ctx context.Context) (Held, error) {
	want := k.Held()
	for range attempts {
		if k.confirmedInThisRun() {
			if done, err := k.beat(ctx, want); done || err != nil {
				return want, err
			}
		}
		held, err := k.claim(ctx, want)
		if err != nil {
			return Held{}, err
		}
		if done, err := k.beat(ctx, held); done || err != nil {
			return held, err
		}
	}
	return Held{}, fmt.Errorf("confirm node ID %d: gave up after %d conflicting writes", want.ID, attempts)
}

// claim claims want again, or an ID for the first time.
func (k *IDClaimer) claim(ctx context.Context, want Held) (Held, error) {
	who := k.deps.Identity
	who.twins = k.twins
	if k.inUse() && who.Pinned != 0 && who.Pinned != want.ID {
		k.deps.Log.Warn("cadastre.nodeID asks for another node ID, which the next start will claim",
			"nodeID", want.ID, "wanted", who.Pinned)
		who.Pinned = 0 // or what is in use here would be released
	}
	if want.ID == 0 {
		if err := k.waitForNodes(ctx); err != nil {
			return Held{}, err
		}
	}
	held, err := Claim(ctx, k.deps.Store, who, want, k.deps.Now())
	if errors.Is(err, ErrIDTaken) && who.Pinned == 0 && !k.inUse() && !k.deps.Leases.InUse() {
		k.deps.Log.Warn(
			"the node ID that this node remembers is taken, and nothing here depends on it: claiming another one",
			"error", err)
		held, err = Claim(ctx, k.deps.Store, who, Held{}, k.deps.Now())
	}
	return held, err
}

// waitForNodes waits before the first claim in a store without any node. The store may
// have been wiped a moment ago, and nodes that know it are about to write it again.
func (k *IDClaimer) waitForNodes(ctx context.Context) error {
	if k.deps.FirstWait == 0 {
		return nil
	}
	kvs, _, err := k.deps.Store.List(ctx, kv.NodeRecordPrefix)
	if err != nil || len(kvs) > 0 {
		return err
	}
	k.deps.Log.Info("the cluster store has no node: it is new, or was wiped; waiting for nodes that know more",
		"wait", k.deps.FirstWait)
	select {
	case <-time.After(k.deps.FirstWait):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for other nodes: %w", context.Cause(ctx))
	}
}

// confirmedInThisRun reports whether a claim by this run stands.
func (k *IDClaimer) confirmedInThisRun() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// inUse reports whether the loop has derived addresses from the ID.
func (k *IDClaimer) inUse() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

// Use returns the ID to derive addresses from, which does not change from now on.
func (k *IDClaimer) Use() uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = k.held.ID != 0
	return k.held.ID
}

// keep makes held this node's ID, first on disk.
func (k *IDClaimer) keep(held Held, began time.Time) error {
	was := k.saved
	quarantine, ends := k.quarantined()
	now := remembered{
		Problem:    quarantine,
		ID:         held.ID,
		Generation: held.Generation,
		Confirmed:  began,
		Session:    k.deps.Identity.Session,
		Machine:    k.deps.Identity.Machine,
		Explicit:   k.deps.Identity.Explicit,
	}
	if age := began.Sub(was.Confirmed); age > k.slack() || age < 0 || !now.equalButTime(was) {
		if err := k.save(now); err != nil {
			return err
		}
	}
	k.reporting.Lock()
	defer k.reporting.Unlock()
	k.mu.Lock()
	before := k.held
	if k.used && held.ID != before.ID { // addresses were derived from it meanwhile
		k.mu.Unlock()
		k.setProblem(fmt.Sprintf("node ID %d is this node's from its next start on", held.ID), ErrIDTaken)
		return nil
	}
	k.held, k.confirmed, k.session, k.young = held, began, true, ends
	k.mu.Unlock()
	if held != before {
		k.deps.Log.Info("node ID claimed", "nodeID", held.ID, "generation", held.Generation)
	}
	if quarantine != "" {
		k.setProblem(quarantine, errYoung)
	} else {
		k.setProblem("", nil)
	}
	return nil
}

// lose stops allocation because of a problem, also after a restart.
func (k *IDClaimer) lose(problem string, kind error) {
	k.reporting.Lock()
	k.setProblem(problem, kind)
	k.reporting.Unlock()
	if k.saved.Problem != "" {
		return
	}
	r := k.saved
	r.Problem = problem
	if err := k.save(r); err != nil {
		k.deps.Log.Error("the next start will not know that the node ID is in doubt", "error", err)
	}
}

func (k *IDClaimer) save(r remembered) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = k.deps.Disk.SetLocal(diskName, string(text))
	}
	if err != nil {
		return fmt.Errorf("remember node ID %d: %w", r.ID, err)
	}
	k.saved = r
	return nil
}
