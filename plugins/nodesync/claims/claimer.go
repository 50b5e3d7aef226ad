// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Disk keeps what a node knows of itself, whatever becomes of the cluster store.
type Disk interface {
	Local(name string) (string, error) // "" for nothing
	SetLocal(name, value string) error // durable when it returns
}

// ClaimerDeps are the dependencies of a Claimer.
type ClaimerDeps struct {
	Log      *slog.Logger
	Register Register
	Disk     Disk
	Node     func() (Node, bool) // false: this node has no ID that the store confirms
	InUse    func(Target) bool   // addresses of the target are leased
	// a claim stands otherwise: held, not held, or blocked by another node; called without locks
	Changed  func()
	Asked    func()              // each claim that is wanted or in use was asked for; called without locks; may be nil
	Suspend  func(reason string) // stops new leases; "" ends that
	Initial  []Target            // wanted from the start
	CoolDown time.Duration       // how long a claim is kept after its last lease has gone
	Refresh  time.Duration       // between two looks, at most
	Now      func() time.Time
	Random   func() float64
}

// Standing represents the state of this node's claim for a target.
type Standing struct {
	Held    bool
	Blocker *Blocker  // what a pending claim waits for; nil while it is held or was not asked for yet
	Since   time.Time // when the claimer found it so
}

// Claimer claims what the event loop wants and gives back what it wants no more.
//
// The loop calls Hold for each target that it derives, before it allocates from
// it, and Want with all of them when it commits. A claim that is not wanted any
// more is kept until the last lease there has been gone for CoolDown. From the
// moment at which the Claimer begins to give a claim back, Hold refuses it.
//
// Held claims are remembered on disk, so that a start without the store serves
// them; nodesync.IDClaimer bounds for how long. Confirm and Run may run at the same
// time; the other methods never wait for the store.
type Claimer struct {
	deps ClaimerDeps
	poke chan struct{}
	busy chan struct{} // full while Confirm is at work

	saved []Target // of Confirm: what is on disk
	news  bool     // of Confirm: a claim stands otherwise than before

	mu        sync.Mutex
	wants     map[Target]bool
	told      map[string]bool // networks whose wants the loop has committed
	standing  map[Target]Standing
	releasing map[Target]bool
	confirmed time.Time
	overdue   bool
	changes   int                  // of what is wanted, or of this node's claims in the store
	swept     int                  // those that the last sweep took into account
	sweepAt   time.Time            // when the next one is due anyway
	idle      map[Target]time.Time // since when a claim is neither wanted nor in use
	cooled    time.Time            // when the first idle claim may be given back; zero: there is none
}

// NewClaimer returns a Claimer that knows the claims which its disk remembers.
func NewClaimer(deps ClaimerDeps) (*Claimer, error) {
	c := &Claimer{
		deps:      deps,
		poke:      make(chan struct{}, 1),
		busy:      make(chan struct{}, 1),
		wants:     map[Target]bool{},
		told:      map[string]bool{},
		standing:  map[Target]Standing{},
		releasing: map[Target]bool{},
		confirmed: deps.Now(),
		idle:      map[Target]time.Time{},
	}
	var err error
	if c.saved, err = load(deps.Disk); err != nil {
		return nil, err
	}
	for _, t := range c.saved {
		c.wants[t], c.standing[t] = true, Standing{Held: true, Since: deps.Now()}
	}
	for _, t := range deps.Initial {
		c.wants[t] = true
		if _, known := c.standing[t]; !known {
			c.standing[t] = Standing{}
		}
	}
	return c, nil
}

// Hold asks for a target, and returns how its claim stands now.
func (c *Claimer) Hold(t Target) Standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wants[t] = true
	if c.releasing[t] {
		return Standing{}
	}
	return c.standing[t]
}

// Standing returns how the claim of a target stands, and asks for nothing.
func (c *Claimer) Standing(t Target) Standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.releasing[t] {
		return Standing{}
	}
	return c.standing[t]
}

// Want replaces the targets of a network by those that the loop has committed.
func (c *Claimer) Want(network string, targets []Target) {
	c.mu.Lock()
	wants := map[Target]bool{}
	look := !c.told[network]
	for _, t := range targets {
		wants[t] = true
		look = look || c.unasked(t)
	}
	for t := range c.wants {
		if t.Network == network && !wants[t] {
			delete(c.wants, t)
			look = true
		}
	}
	maps.Copy(c.wants, wants)
	c.told[network] = true
	var busy []Target // not wanted, and in use when they were looked at last
	for t, s := range c.standing {
		if _, idle := c.idle[t]; t.Network == network && s.Held && !c.wants[t] && !idle {
			busy = append(busy, t)
		}
	}
	if look {
		c.changes++
	}
	c.mu.Unlock()
	if look || slices.ContainsFunc(busy, func(t Target) bool { return !c.deps.InUse(t) }) {
		c.Poke()
	}
}

// unasked reports whether the claim of t was not asked for yet, or is being given
// back. A claim that waits for another node is asked for again when that changes
// (Changed), not with each commit. It is called with the lock.
func (c *Claimer) unasked(t Target) bool {
	s := c.standing[t]
	return !s.Held && s.Blocker == nil || c.releasing[t]
}

// Waiting returns the targets that are wanted and not held, with what they wait for.
func (c *Claimer) Waiting() map[Target]Standing {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[Target]Standing{}
	for t := range c.wants {
		if s := c.standing[t]; !s.Held || c.releasing[t] {
			all[t] = s
		}
	}
	return all
}

// All returns how each target stands that is wanted, or held because it has leases.
func (c *Claimer) All() map[Target]Standing {
	all := c.Waiting()
	c.mu.Lock()
	defer c.mu.Unlock()
	for t, s := range c.standing {
		if s.Held && !c.releasing[t] {
			all[t] = s
		}
	}
	return all
}

// Changed has the Claimer look at the store soon if the change of a stored claim,
// nil for that of a node record, may matter to this node.
func (c *Claimer) Changed(node string, claim *kv.PrefixClaim) {
	if claim.GetNode() == node {
		t, err := TargetOf(claim)
		c.mu.Lock()
		as := err == nil && c.standing[t].Held == (claim.Held && claim.Ends == 0)
		if !as || !c.wants[t] {
			c.changes++
		}
		c.mu.Unlock()
		if !as {
			c.Poke()
		}
		return
	}
	t, err := TargetOf(claim)
	for waits := range c.Waiting() {
		if claim == nil || err == nil && waits.Overlaps(t) {
			c.Poke()
			return
		}
	}
}

// Poke has the Claimer look at the store soon.
func (c *Claimer) Poke() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

// retryIn delays Run after a look that failed.
const retryIn = time.Second

// Run looks at the store again and again until ctx ends.
func (c *Claimer) Run(ctx context.Context) error {
	failed := false
	for {
		wait := c.deps.Refresh*4/5 + time.Duration(c.deps.Random()*float64(c.deps.Refresh/5))
		if failed {
			wait = min(wait, retryIn)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.poke:
		case <-time.After(min(wait, c.nextEnd())):
		}
		err := c.Confirm(ctx)
		if failed = err != nil; failed && ctx.Err() == nil {
			c.deps.Log.Warn("the claims of this node cannot be confirmed now", "error", err)
		}
	}
}

// nextEnd returns how long it takes until a claim ends that this node waits for.
func (c *Claimer) nextEnd() time.Duration {
	next := c.deps.Refresh
	for _, s := range c.Waiting() {
		if s.Blocker == nil {
			continue
		}
		for _, at := range []time.Time{s.Blocker.Ends, s.Blocker.Expires} {
			if left := at.Sub(c.deps.Now()); left > 0 {
				next = min(next, left)
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cooled.IsZero() {
		next = min(next, c.cooled.Sub(c.deps.Now()))
	}
	return max(next, time.Millisecond)
}

// Confirm asks for what is wanted, and gives back what is neither wanted nor in
// use. It looks at all of it, also if some of it fails.
func (c *Claimer) Confirm(ctx context.Context) error {
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return fmt.Errorf("confirm the claims: %w", context.Cause(ctx))
	}
	defer c.checkTerm()
	me, ok := c.deps.Node()
	if !ok {
		return nil
	}
	began := c.deps.Now()
	before := c.held()
	var errs []error
	for _, t := range c.wanted() {
		errs = append(errs, c.ask(ctx, me, t))
	}
	errs = append(errs, c.giveBack(ctx, me))
	err := errors.Join(errs...)
	if err == nil {
		c.mu.Lock()
		c.confirmed = began
		c.mu.Unlock()
		if c.deps.Asked != nil {
			c.deps.Asked()
		}
	}
	if c.news || !slices.Equal(before, c.held()) {
		c.news = false
		c.deps.Changed()
	}
	return err
}

// wanted returns the targets to ask for: those of the loop, and those that have
// leases.
func (c *Claimer) wanted() []Target {
	c.mu.Lock()
	all := sorted(maps.Keys(c.wants))
	known := sorted(maps.Keys(c.standing))
	c.mu.Unlock()
	for _, t := range known {
		if c.deps.InUse(t) {
			all = append(all, t)
		}
	}
	return sorted(slices.Values(all))
}

// held returns the targets whose claims are held and are not being given back.
func (c *Claimer) held() (all []Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range sorted(maps.Keys(c.standing)) {
		if c.standing[t].Held && !c.releasing[t] {
			all = append(all, t)
		}
	}
	return all
}

// ask asks for one target.
func (c *Claimer) ask(ctx context.Context, me Node, t Target) error {
	ask := c.deps.Register.Ask
	if c.Standing(t).Held || c.deps.InUse(t) {
		// The store lost the claim, or these leases are older than claims. Until now
		// the node record kept other nodes out: their pending claims are older.
		ask = c.deps.Register.Restore
	}
	o, err := ask(ctx, me, t, c.deps.Now())
	if err != nil {
		return err
	}
	c.mu.Lock()
	again := o.Held && c.releasing[t]
	was := c.standing[t]
	c.mu.Unlock()
	if again { // a withdrawal of unknown outcome may still arrive, unless the claim is written over
		if o.Revision, err = c.deps.Register.rewrite(ctx, t.Key(me.Name), o.Revision); err != nil {
			return err
		}
	}
	if o.Held {
		if err := c.save(append(c.held(), t)); err != nil {
			return err
		}
	}
	now := Standing{Held: o.Held, Blocker: o.Blocker, Since: was.Since}
	if changed(was, now) {
		now.Since, c.news = c.deps.Now(), true
		c.report(t, now)
	}
	c.mu.Lock()
	c.standing[t] = now
	delete(c.releasing, t)
	c.mu.Unlock()
	if was.Held && !o.Held {
		return c.save(c.held())
	}
	return nil
}

// changed reports whether two standings differ in more than times.
func changed(a, b Standing) bool {
	if a.Held != b.Held || (a.Blocker == nil) != (b.Blocker == nil) {
		return true
	}
	return a.Blocker != nil &&
		(a.Blocker.Node != b.Blocker.Node || a.Blocker.Target != b.Blocker.Target || !a.Blocker.Ends.Equal(b.Blocker.Ends))
}

func (c *Claimer) report(t Target, s Standing) {
	if s.Held {
		c.deps.Log.Info("this node holds a claim", "network", t.Network, "prefix", t.Prefix)
		return
	}
	c.deps.Log.Warn("this node waits for a claim and allocates nothing from it",
		"network", t.Network, "prefix", t.Prefix, "reason", s.Blocker.String())
}

// giveBack ends the claims of this node's name that are neither wanted nor in use.
func (c *Claimer) giveBack(ctx context.Context, me Node) error {
	changes, due := c.sweepDue()
	if !due {
		return nil
	}
	stored, err := own(ctx, c.deps.Register.Store, me.Name)
	if err != nil {
		return err
	}
	errs := []error{c.forget(stored)}
	for _, s := range stored {
		t, _ := TargetOf(s.PrefixClaim)
		switch {
		case !c.unwanted(t) || c.deps.InUse(t):
			c.busyAgain(t)
		case c.cools(t):
		case s.Instance != me.Instance: // it is inherited first, once the predecessor may not allocate any more
			errs = append(errs, c.ask(ctx, me, t))
		default:
			errs = append(errs, c.end(ctx, s, t))
		}
	}
	if err = errors.Join(errs...); err == nil {
		c.mu.Lock()
		c.swept, c.sweepAt = changes, c.deps.Now().Add(sweepEvery*c.deps.Refresh)
		c.mu.Unlock()
	}
	return err
}

// sweepEvery is after how many refreshes the claims in the store are listed although
// nothing is known to have changed: with a thousand nodes each list has a thousand claims.
const sweepEvery = 60

// sweepDue reports whether the store may have a claim of this node that is to be
// given back, and how many changes that takes into account.
func (c *Claimer) sweepDue() (changes int, due bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cooled = time.Time{}
	for t := range c.standing {
		due = due || !c.wants[t]
	}
	return c.changes, due || len(c.idle) > 0 || c.changes != c.swept || !c.deps.Now().Before(c.sweepAt)
}

// cools reports whether addresses of a target may still be on their way to the pod
// that had them last. The time begins when the claim is first found idle.
func (c *Claimer) cools(t Target) bool {
	now := c.deps.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.idle[t]; !known {
		c.idle[t] = now
	}
	until := c.idle[t].Add(c.deps.CoolDown)
	if !now.Before(until) {
		return false
	}
	if c.cooled.IsZero() || until.Before(c.cooled) {
		c.cooled = until
	}
	return true
}

func (c *Claimer) busyAgain(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.idle, t)
}

// forget drops what the claimer knows of targets that are neither wanted nor in use and
// of which the store has no claim of this node. Either a deletion of unknown outcome was
// done, or the store lost the claim.
func (c *Claimer) forget(stored []stored) error {
	there := map[Target]bool{}
	for _, s := range stored {
		t, _ := TargetOf(s.PrefixClaim)
		there[t] = true
	}
	c.mu.Lock()
	known := sorted(maps.Keys(c.standing))
	c.mu.Unlock()
	for _, t := range known {
		if there[t] || !c.unwanted(t) || !c.release(t) {
			continue
		}
		if err := c.save(c.held()); err != nil {
			return err
		}
		c.drop(t)
	}
	return nil
}

func (c *Claimer) unwanted(t Target) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told[t.Network] && !c.wants[t]
}

// release has Hold refuse a target from now on, unless that is wanted or in use.
func (c *Claimer) release(t Target) bool {
	c.mu.Lock()
	if c.wants[t] {
		c.mu.Unlock()
		return false
	}
	was := c.releasing[t]
	c.releasing[t] = true
	c.mu.Unlock()
	if !c.deps.InUse(t) {
		return true
	}
	c.mu.Lock() // a lease that was taken before Hold began to refuse
	defer c.mu.Unlock()
	if !was {
		delete(c.releasing, t)
	}
	return false
}

// end gives one claim back.
func (c *Claimer) end(ctx context.Context, s stored, t Target) (err error) {
	if !c.release(t) {
		return nil
	}
	if err := c.save(c.held()); err != nil {
		return err
	}
	revision := s.revision
	if s.Held {
		if revision, err = c.deps.Register.Withdraw(ctx, s.PrefixClaim, s.key, revision); err != nil {
			return fmt.Errorf("give back the claim of %s: %w", t.Prefix, err)
		}
	}
	if err := c.deps.Register.Delete(ctx, s.key, revision); err != nil {
		return fmt.Errorf("give back the claim of %s: %w", t.Prefix, err)
	}
	c.deps.Log.Info("this node gave a claim back", "network", t.Network, "prefix", t.Prefix)
	c.drop(t)
	return nil
}

// drop ends a release: the store has no claim of the target.
func (c *Claimer) drop(t Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.releasing, t)
	delete(c.standing, t)
	delete(c.idle, t)
	if c.wants[t] {
		c.Poke()
	}
}

// Until returns when this node stops allocating if no look at its claims succeeds any
// more, zero if it holds none. Any goroutine may call it.
func (c *Claimer) Until() time.Time {
	if len(c.held()) == 0 {
		return time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.confirmed.Add(c.deps.Register.Expire * 5 / 6)
}

// checkTerm stops new leases if no look has succeeded for five sixths of the time
// after which other nodes may take over the claims.
func (c *Claimer) checkTerm() {
	held := len(c.held()) > 0
	c.mu.Lock()
	late := held && c.deps.Now().Sub(c.confirmed) >= c.deps.Register.Expire*5/6
	was, since := c.overdue, c.confirmed
	c.overdue = late
	c.mu.Unlock()
	switch {
	case late && !was:
		c.deps.Suspend(
			fmt.Sprintf(
				"the cluster store has not confirmed the claims of this node since %s; after %s another node may have them",
				utc(since),
				c.deps.Register.Expire,
			),
		)
	case was && !late:
		c.deps.Suspend("")
	}
}

// own returns the stored claims of a node's name.
func own(ctx context.Context, store kvdb.Store, name string) (all []stored, err error) {
	kvs, _, err := store.List(ctx, kv.PrefixClaimPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	for _, x := range kvs {
		if c := decode(x); c != nil && c.Node == name {
			all = append(all, stored{c, x.Key, x.ModRevision})
		}
	}
	return all, nil
}
