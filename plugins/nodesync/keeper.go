// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
)

// Disk is what a node remembers of itself, whatever becomes of the cluster store.
type Disk interface {
	Local(name string) (string, error) // "" for nothing
	SetLocal(name, value string) error // durable when it returns
}

// KeeperDeps is what a Keeper is given.
type KeeperDeps struct {
	Log       *slog.Logger
	Store     kvdb.Store
	Disk      Disk
	EventLoop controller.EventLoop // gets a NodeIDChange when a problem comes or goes
	Identity  Identity
	Refresh   time.Duration // between two beats
	Expire    time.Duration // after how long without a beat others may release the ID
	Now       func() time.Time
	Random    func() float64
	Busy      func() bool          // addresses that follow from the ID are in use
	Uses      func() []*kv.PoolUse // what this node has of each pool
	Suspend   func(reason string)  // stops lending new addresses; "" lets it go on
}

// Keeper keeps this node's ID: it claims it, confirms it, tells the cluster what
// the node says of itself, and notices when somebody else has it. The ID of a
// process never changes. If it is lost, no new address is lent, and what is
// lent stays.
//
// Confirm is called by who reads the store, before it does, and by Run. The
// other methods may be called from anywhere and wait for nothing.
type Keeper struct {
	deps KeeperDeps
	poke chan struct{}
	busy sync.Mutex // held by Confirm
	own  own        // of who holds busy

	mu        sync.Mutex
	held      Held
	confirmed time.Time // when the store last said so
	session   bool      // it did so in this run
	used      bool      // addresses were derived from it
	problem   string
	said      said
	stored    said // what the store has, as of the last beat
}

// said is what the node says of itself.
type said struct {
	addresses []string
	uid       string
}

func (s said) equal(t said) bool { return slices.Equal(s.addresses, t.addresses) && s.uid == t.uid }

// remembered is what is on the disk.
type remembered struct {
	ID         uint32    `json:"id"`
	Generation uint64    `json:"generation"`
	Confirmed  time.Time `json:"confirmed"`
}

// diskName is where the disk has it.
const diskName = "node-id"

// NewKeeper makes a Keeper that knows what its disk remembers.
func NewKeeper(deps KeeperDeps) (*Keeper, error) {
	k := &Keeper{deps: deps, poke: make(chan struct{}, 1)}
	text, err := deps.Disk.Local(diskName)
	if err != nil {
		return nil, fmt.Errorf("read the node ID that this node remembers: %w", err)
	}
	if text != "" {
		var r remembered
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return nil, fmt.Errorf("read the node ID that this node remembers: %q: %w", text, err)
		}
		k.held, k.confirmed = Held{r.ID, r.Generation}, r.Confirmed
	}
	return k, nil
}

// ID is this node's ID, 0 before it was claimed for the first time.
func (k *Keeper) ID() uint32 { return k.Held().ID }

// Held is the ID and the generation of its record.
func (k *Keeper) Held() Held {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// Problem is why no new address may be lent under the ID, "" if it may.
func (k *Keeper) Problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

// Confirmed is when the store last confirmed the ID.
func (k *Keeper) Confirmed() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.confirmed
}

// say changes what the node says of itself and has it written soon.
func (k *Keeper) say(change func(*said)) {
	k.mu.Lock()
	change(&k.said)
	same := k.said.equal(k.stored)
	k.mu.Unlock()
	if !same {
		k.Poke()
	}
}

// Poke has the ID confirmed soon.
func (k *Keeper) Poke() {
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// Run confirms the ID again and again until ctx ends, and says then that the
// agent has ended.
func (k *Keeper) Run(ctx context.Context) error {
	if k.ID() != 0 {
		k.checkTerm()
	}
	for {
		wait := k.deps.Refresh*4/5 + time.Duration(k.deps.Random()*float64(k.deps.Refresh*2/5))
		select {
		case <-ctx.Done():
			k.sayGoodbye(context.WithoutCancel(ctx))
			return nil
		case <-k.poke:
			if k.ID() == 0 {
				continue // the first claim is for who reads the store
			}
		case <-time.After(wait):
		}
		if err := k.Confirm(ctx); err != nil && ctx.Err() == nil {
			k.deps.Log.Warn("the node ID cannot be confirmed now", "error", err)
			k.checkTerm()
		}
	}
}

// Confirm has the store confirm the ID, claims it if it has to, and writes what
// is new. It fails where the store does; and, with controller.ErrFatal, where
// this node can have no ID at all. A lost ID is no error: see Problem.
func (k *Keeper) Confirm(ctx context.Context) error {
	k.busy.Lock()
	defer k.busy.Unlock()
	held, err := k.confirm(ctx)
	switch {
	case err == nil:
		return k.settle(held, "")
	case !isConflict(err):
		return err
	case k.ID() == 0:
		return controller.NewFatalError(err)
	}
	return k.settle(k.Held(), err.Error())
}

func isConflict(err error) bool {
	return errors.Is(err, ErrNameInUse) || errors.Is(err, ErrInstanceInUse) || errors.Is(err, ErrIDTaken) || errors.Is(err, ErrNoID) || errors.Is(err, errOtherSession)
}

// errOtherSession is what a run finds whose identity another run uses.
var errOtherSession = errors.New("another agent runs with this node's identity: was its disk copied?")

func (k *Keeper) confirm(ctx context.Context) (Held, error) {
	want := k.Held()
	if k.confirmedInThisRun() {
		done, err := k.beat(ctx, want)
		if done || err != nil {
			return want, err
		}
	}
	held, err := Claim(ctx, k.deps.Store, k.deps.Identity, want, k.deps.Now())
	if errors.Is(err, ErrIDTaken) && k.deps.Identity.Pinned == 0 && !k.inUse() && !k.deps.Busy() {
		k.deps.Log.Warn("the node ID that this node remembers is taken, and nothing here depends on it: claiming another one", "error", err)
		held, err = Claim(ctx, k.deps.Store, k.deps.Identity, Held{}, k.deps.Now())
	}
	if err != nil {
		return Held{}, err
	}
	if k.inUse() && held.ID != want.ID { // blocks were cut from the other one
		return Held{}, fmt.Errorf("%w: this node has ID %d until it is restarted, and node ID %d by its record", ErrIDTaken, want.ID, held.ID)
	}
	_, err = k.beat(ctx, held)
	return held, err
}

// confirmedInThisRun is whether a claim by this run stands.
func (k *Keeper) confirmedInThisRun() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session
}

// inUse is whether the loop has derived addresses from the ID.
func (k *Keeper) inUse() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.used
}

// Use is ID for who derives addresses from it: from now on it is this one.
func (k *Keeper) Use() uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = true
	return k.held.ID
}

// own is what the store has of this node, as this node read or wrote it last.
type own struct {
	record           *kv.NodeRecord
	recordAt, beatAt int64 // revisions
}

// beat says that the agent is there, and writes what it says of itself. It does
// nothing (false) where the record is not of held any more.
func (k *Keeper) beat(ctx context.Context, held Held) (bool, error) {
	if k.own.record == nil || k.own.record.Id != held.ID {
		if err := k.readOwn(ctx, held.ID); err != nil {
			return false, err
		}
	}
	r := k.own.record
	if r == nil || r.Instance != k.deps.Identity.Instance || r.Generation != held.Generation || r.Released != 0 || r.SupersededBy != 0 {
		k.own = own{}
		return false, nil
	}
	k.mu.Lock()
	say := said{slices.Clone(k.said.addresses), k.said.uid}
	k.mu.Unlock()
	now := k.own
	now.record = say.in(r)
	var t txn
	if proto.Equal(now.record, r) {
		t.conds = append(t.conds, kvdb.AtRevision(kv.NodeRecordKey(held.ID), now.recordAt))
	} else {
		t.put(kv.NodeRecordKey(held.ID), now.recordAt, now.record)
	}
	t.put(kv.BeatKey(held.ID), now.beatAt, &kv.NodeBeat{
		Id: held.ID, Instance: k.deps.Identity.Instance, Generation: held.Generation, Session: k.deps.Identity.Session,
		At: k.deps.Now().UnixNano(), Pools: k.deps.Uses(),
	})
	k.own = own{}
	rev, err := t.commit(ctx, k.deps.Store)
	if errors.Is(err, kvdb.ErrConditions) {
		k.Poke() // somebody else has written: look again
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("beat of node ID %d: %w", held.ID, err)
	}
	if now.beatAt = rev; len(t.ops) == 2 {
		now.recordAt = rev
	}
	k.own = now
	k.mu.Lock()
	k.stored = say
	k.mu.Unlock()
	return true, nil
}

// in is the record r with what the node says of itself.
func (s said) in(r *kv.NodeRecord) *kv.NodeRecord {
	r = proto.Clone(r).(*kv.NodeRecord)
	if s.addresses != nil {
		r.IpAddresses = s.addresses
	}
	if s.uid != "" {
		r.NodeUid = s.uid
	}
	return r
}

// readOwn reads the record and the beat. It fails where the beat is of another
// run with this identity.
func (k *Keeper) readOwn(ctx context.Context, id uint32) error {
	k.own = own{}
	record, beat := &kv.NodeRecord{}, &kv.NodeBeat{}
	recordAt, err := get(ctx, k.deps.Store, kv.NodeRecordKey(id), record)
	if err != nil || recordAt == 0 {
		return err
	}
	beatAt, err := get(ctx, k.deps.Store, kv.BeatKey(id), beat)
	if err != nil {
		return err
	}
	if who := k.deps.Identity; beatAt != 0 && beat.Instance == who.Instance && beat.Session != who.Session && fresh(beat, who, k.deps.Now()) {
		return errOtherSession
	}
	k.own = own{record, recordAt, beatAt}
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

// settle remembers the outcome, first on disk.
func (k *Keeper) settle(held Held, problem string) error {
	now := k.deps.Now()
	k.mu.Lock()
	was, due := k.held, held != k.held || now.Sub(k.confirmed) > k.deps.Expire/24 || now.Before(k.confirmed)
	k.mu.Unlock()
	if problem == "" && due {
		text, err := json.Marshal(remembered{held.ID, held.Generation, now})
		if err != nil {
			return err
		}
		if err := k.deps.Disk.SetLocal(diskName, string(text)); err != nil {
			return fmt.Errorf("remember node ID %d: %w", held.ID, err)
		}
	}
	k.mu.Lock()
	k.held = held
	if problem == "" {
		k.confirmed, k.session = now, true
	}
	k.mu.Unlock()
	if held != was {
		k.deps.Log.Info("node ID claimed", "nodeID", held.ID, "generation", held.Generation)
	}
	k.report(problem)
	return nil
}

// checkTerm stops the lending where the store has not confirmed the ID for so
// long that others may soon release it.
func (k *Keeper) checkTerm() {
	k.mu.Lock()
	since, problem := k.deps.Now().Sub(k.confirmed), k.problem
	k.mu.Unlock()
	if limit := k.deps.Expire * 5 / 6; since > limit && problem == "" {
		k.report(fmt.Sprintf("the cluster store has not confirmed node ID %d for %s; after %s others may have it", k.ID(), since.Round(time.Minute), k.deps.Expire))
	}
}

// report makes a problem, or its end, known.
func (k *Keeper) report(problem string) {
	k.mu.Lock()
	was, held := k.problem, k.held
	k.problem = problem
	k.mu.Unlock()
	if was == problem {
		return
	}
	switch problem {
	case "":
		k.deps.Log.Info("the node ID is this node's again", "nodeID", held.ID, "generation", held.Generation)
		k.deps.Suspend("")
	default:
		k.deps.Log.Error("this node's ID is in doubt: no new address is lent, what is lent stays", "nodeID", held.ID, "problem", problem)
		k.deps.Suspend("node ID " + fmt.Sprint(held.ID) + ": " + problem)
	}
	if err := k.deps.EventLoop.PushEvent(&NodeIDChange{Held: held, Problem: problem}); err != nil && !errors.Is(err, controller.ErrClosedController) {
		k.deps.Log.Warn("the event history lacks a change of the node ID", "error", err)
	}
}

// goodbye is how long an agent that ends waits for the store.
const goodbye = 2 * time.Second

func (k *Keeper) sayGoodbye(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, goodbye)
	defer cancel()
	k.busy.Lock()
	defer k.busy.Unlock()
	held := k.Held()
	last := &kv.NodeBeat{}
	at, err := get(ctx, k.deps.Store, kv.BeatKey(held.ID), last)
	if err != nil || at == 0 || last.Session != k.deps.Identity.Session {
		return // the store is away, or the ID is not ours: nobody to tell
	}
	last.At, last.Stopped = k.deps.Now().UnixNano(), true
	var t txn
	t.put(kv.BeatKey(held.ID), at, last)
	_, _ = t.commit(ctx, k.deps.Store)
}
