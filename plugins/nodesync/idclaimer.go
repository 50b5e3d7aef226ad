// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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

	telling sync.Mutex // held while a problem comes or goes and is made known
	pending bool       // under telling: a problem from before Run

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
	Problem    string    `json:"problem,omitempty"` // it was lost
	Session    string    `json:"session,omitempty"` // of the run that the store confirmed last
	Pending    string    `json:"pending,omitempty"` // of a run that was about to beat for the first time
	Machine    Machine   `json:"machine"`           // that the store confirmed it on
}

// diskName names it on the disk.
const diskName = "node-id"

// NewIDClaimer returns an IDClaimer with the ID that its disk remembers. If the ID has a
// problem, or was not confirmed for too long, it suspends new leases at once.
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
	k.tellBefore()
	for {
		wait := k.deps.Refresh*4/5 + time.Duration(k.deps.Random()*float64(k.deps.Refresh/5))
		for _, left := range []time.Duration{k.left(), k.nextLook(), k.nextQuarantine()} {
			if left > 0 {
				wait = min(wait, left)
			}
		}
		select {
		case <-ctx.Done():
			k.sayGoodbye(context.WithoutCancel(ctx))
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
	if left := k.left(); left > 0 {
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
		k.deps.Log.Warn(
			"cadastre.nodeID asks for another node ID, which the next start will claim",
			"nodeID",
			want.ID,
			"asked for",
			who.Pinned,
		)
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
			"error",
			err,
		)
		held, err = Claim(ctx, k.deps.Store, who, Held{}, k.deps.Now())
	}
	return held, err
}

// waitForNodes waits before the first claim in a store without any node: it may have
// been wiped a moment ago, and nodes that know it are about to write it again.
func (k *IDClaimer) waitForNodes(ctx context.Context) error {
	if k.deps.FirstWait == 0 {
		return nil
	}
	kvs, _, err := k.deps.Store.List(ctx, kv.NodeRecordPrefix)
	if err != nil || len(kvs) > 0 {
		return err
	}
	k.deps.Log.Info(
		"the cluster store has no node: it is new, or was wiped; waiting for nodes that know more",
		"wait",
		k.deps.FirstWait,
	)
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

// own holds what the store has of this node, as this node read or wrote it last.
type own struct {
	record           *kv.NodeRecord
	recordAt, beatAt int64 // revisions
}

// beat writes the beat of the agent and what the node reports of itself. It does nothing
// and returns false if the record is not of held any more.
func (k *IDClaimer) beat(ctx context.Context, held Held) (bool, error) {
	for range attempts {
		if k.own.record == nil || k.own.record.Id != held.ID {
			if err := k.readOwn(ctx, held.ID); err != nil {
				return false, err
			}
		}
		r, who := k.own.record, k.deps.Identity
		if r == nil || r.Name != who.Name || r.Instance != who.Instance || r.Generation != held.Generation ||
			r.Released != 0 ||
			r.SupersededBy != 0 {
			k.own = own{}
			return false, nil
		}
		err := k.beatOnce(ctx, held)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, kvdb.ErrConditions) { // another process has written: look again
			return false, fmt.Errorf("beat of node ID %d: %w", held.ID, err)
		}
	}
	return false, fmt.Errorf("beat of node ID %d: gave up after %d conflicting writes", held.ID, attempts)
}

// beatOnce writes the beat, and the record if it changes, where both are as
// they were. Unless it succeeds they have to be read again.
func (k *IDClaimer) beatOnce(ctx context.Context, held Held) error {
	k.mu.Lock()
	publication := k.wanted // its slices are never changed
	k.mu.Unlock()
	now := k.own
	now.record = publication.applyTo(k.own.record, k.deps.Identity.Explicit)
	endQuarantine(now.record, k.deps.Now())
	var t txn
	if proto.Equal(now.record, k.own.record) {
		t.conds = append(t.conds, kvdb.AtRevision(kv.NodeRecordKey(held.ID), now.recordAt))
	} else {
		t.put(kv.NodeRecordKey(held.ID), now.recordAt, now.record)
	}
	beat := k.deps.Identity.beat(held, k.deps.Now())
	beat.Pools = k.poolUses()
	t.put(kv.BeatKey(held.ID), now.beatAt, beat)
	k.own = own{}
	if err := k.twins.try(beat); err != nil {
		return err
	}
	rev, err := t.commit(ctx, k.deps.Store)
	if err != nil {
		return err
	}
	k.twins.wrote(beat, rev)
	if now.beatAt = rev; len(t.ops) == 2 {
		now.recordAt = rev
	}
	k.own = now
	k.mu.Lock()
	k.stored = publication
	k.mu.Unlock()
	return nil
}

// readOwn reads the record and the beat. It fails while the beat is a twin's. A
// record that cannot be read is none: the claim decides about it.
func (k *IDClaimer) readOwn(ctx context.Context, id uint32) error {
	k.own = own{}
	x, found, err := k.deps.Store.Get(ctx, kv.NodeRecordKey(id))
	if err != nil || !found {
		return err
	}
	record, err := readRecord(x)
	if err != nil {
		k.deps.Log.Warn("the record of this node cannot be read", "error", err)
		return nil
	}
	last, err := readBeat(ctx, k.deps.Store, id)
	if err != nil {
		return err
	}
	if err := k.twins.look(id, last.beat, last.revision, k.deps.Now()); err != nil {
		return err
	}
	k.own = own{record, x.ModRevision, last.revision}
	return nil
}

// get reads one message; the revision is 0 where there is none.
func get(ctx context.Context, store kvdb.Store, key string, into proto.Message) (revision int64, err error) {
	x, found, err := store.Get(ctx, key)
	if err != nil || !found {
		return 0, err
	}
	if err := proto.Unmarshal(x.Value, into); err != nil {
		return 0, fmt.Errorf("value of %s: %w", key, err)
	}
	return x.ModRevision, nil
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
	}
	if age := began.Sub(was.Confirmed); age > k.slack() || age < 0 || !now.equalButTime(was) {
		if err := k.save(now); err != nil {
			return err
		}
	}
	k.telling.Lock()
	defer k.telling.Unlock()
	k.mu.Lock()
	before := k.held
	if k.used && held.ID != before.ID { // addresses were derived from it meanwhile
		k.mu.Unlock()
		k.tell(fmt.Sprintf("node ID %d is this node's from its next start on", held.ID), ErrIDTaken)
		return nil
	}
	k.held, k.confirmed, k.session, k.young = held, began, true, ends
	k.mu.Unlock()
	if held != before {
		k.deps.Log.Info("node ID claimed", "nodeID", held.ID, "generation", held.Generation)
	}
	if quarantine != "" {
		k.tell(quarantine, errYoung)
	} else {
		k.tell("", nil)
	}
	return nil
}

// lose has no lease any more, also after a restart.
func (k *IDClaimer) lose(problem string, kind error) {
	k.telling.Lock()
	k.tell(problem, kind)
	k.telling.Unlock()
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

// slack is by how much the disk may be behind with the time of the last
// confirmation, and the clock with the time that it told before.
func (k *IDClaimer) slack() time.Duration { return k.deps.Expire / 24 }

// left returns the time for which the ID may be used if it is not confirmed again.
func (k *IDClaimer) left() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.confirmed.Add(k.deps.Expire * 5 / 6).Sub(k.deps.Now())
}

// overdue is a problem where the store has not confirmed the ID for so long
// that another node may soon release it, or if the clock does not tell.
func (k *IDClaimer) overdue() (problem string, kind error) {
	left := k.left()
	k.mu.Lock()
	id, confirmed := k.held.ID, k.confirmed
	k.mu.Unlock()
	switch {
	case id == 0:
		return "", nil
	case left <= 0:
		return fmt.Sprintf(
			"the cluster store has not confirmed node ID %d since %s; after %s another node may have it",
			id,
			confirmed.UTC().Format(time.RFC3339),
			k.deps.Expire,
		), errOverdue
	case left > k.deps.Expire*5/6+k.slack():
		return fmt.Sprintf(
			"the cluster store confirmed node ID %d at %s, which the clock says is still to come",
			id,
			confirmed.UTC().Format(time.RFC3339),
		), errOverdue
	}
	return "", nil
}

// checkTerm stops allocation if the ID is overdue.
func (k *IDClaimer) checkTerm() {
	k.telling.Lock()
	defer k.telling.Unlock()
	if problem, kind := k.overdue(); problem != "" && k.Problem() == "" {
		k.tell(problem, kind)
	}
}

func reason(held Held, problem string) string {
	return fmt.Sprintf("node ID %d: %s", held.ID, problem)
}

// tell makes a problem, or its end, known. It is called by who holds telling.
func (k *IDClaimer) tell(problem string, kind error) {
	k.mu.Lock()
	was, wasKind, held := k.problem, k.kind, k.held
	k.problem, k.kind = problem, kind
	k.mu.Unlock()
	switch problem {
	case was:
		return
	case "":
		k.deps.Leases.Suspend("")
	default:
		k.deps.Leases.Suspend(reason(held, problem))
	}
	if !errors.Is(kind, wasKind) { // else it is the same problem with another time in its text
		k.announce(held, problem)
	}
}

// tellBefore makes known what was a problem before there was an event loop.
func (k *IDClaimer) tellBefore() {
	k.telling.Lock()
	defer k.telling.Unlock()
	if k.pending {
		k.announce(k.Held(), k.Problem())
	}
}

func (k *IDClaimer) announce(held Held, problem string) {
	k.pending = false
	if problem == "" {
		k.deps.Log.Info("the node ID is this node's again", "nodeID", held.ID, "generation", held.Generation)
	} else {
		k.deps.Log.Error(
			"this node's ID is in doubt: no new address is allocated, existing leases stay",
			"nodeID",
			held.ID,
			"problem",
			problem,
		)
	}
	if err := k.deps.EventLoop.PushEvent(
		&NodeIDChange{Held: held, Problem: problem},
	); err != nil &&
		!errors.Is(err, controller.ErrClosedController) {
		k.deps.Log.Warn("the event history lacks a change of the node ID", "error", err)
	}
}

// goodbye bounds the time for which an agent that ends waits for the store.
const goodbye = 2 * time.Second

func (k *IDClaimer) sayGoodbye(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	select {
	case k.busy <- struct{}{}:
		defer func() { <-k.busy }()
	case <-ctx.Done():
		return
	}
	held := k.Held()
	for ctx.Err() == nil { // a beat that was cut off may still arrive
		last := &kv.NodeBeat{}
		at, err := get(ctx, k.deps.Store, kv.BeatKey(held.ID), last)
		if err != nil || at == 0 || last.Session != k.deps.Identity.Session ||
			k.twins != nil && !k.twins.own(last, at) {
			return // the store is away, or the ID is another process's: there is nothing to tell
		}
		last.At, last.Stopped = k.deps.Now().UnixNano(), true
		var t txn
		t.put(kv.BeatKey(held.ID), at, last)
		if _, err := t.commit(ctx, k.deps.Store); !errors.Is(err, kvdb.ErrConditions) {
			return
		}
	}
}
