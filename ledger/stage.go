// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Stage collects claims, releases and changes of pools that are committed together.
// No other caller can claim a staged address. No caller sees it as a lease either,
// until Commit has succeeded; before that, Undo gives it back.
//
// A Stage belongs to one goroutine at a time. After Commit or Undo it is empty and
// can be used again.
type Stage struct {
	l          *Ledger
	changes    []change
	first      [2]change // room for the changes of a usual call
	event      *origin   // that stages; nil: none
	mark       savepoint // of Mark
	repeated   []string  // keys of the records that answered repeated claims
	asked      bool      // something but a repeated claim was answered without a change
	autocommit bool      // committed within the call that made it: other calls wait for it

	committing bool  // guarded by Ledger.mu: other calls wait for it
	err        error // of the commit
}

// savepoint holds the numbers of what a stage has staged and answered. UndoToMark takes back
// what came after it: such an answer needs no record.
type savepoint struct {
	changes, repeated int // their numbers
	asked             bool
}

// change is one entry of a Stage. The kinds that use a field are named before it.
type change struct {
	kind      changeKind
	lease     *lease
	replaced  *lease // claimed: the lease that had the address: a cooling one, or infra of a draining block
	block     *block
	state     BlockState       // granted: the state before
	rank      int              // ranked: the rank before
	isNew     bool             // granted: the block is new
	staged    bool             // granted, adjusted: what was before is not committed either
	before    *policy          // adjusted
	cools     bool             // released: the address cools
	cooled    time.Duration    // released: the uptime at which it begins to cool
	since     int64            // released, extended: the time of the change
	timer     *timer           // extended: the new timer; nil: the lease is held
	exclusion *exclusionChange // excluded
	netns     string           // moved: the path before
	netnsID   kv.NetNSID       // moved: the identity before
	reason    string           // released, extended: for the history; a pending lease keeps it
	event     *origin          // that staged the change; nil: none
}

// policy is the policy of a pool before a change.
type policy struct {
	pool  *pool
	Pool  Pool
	known bool
}

// isWritten reports whether the change of p needs a record: the cool-down is another one,
// or a known pool gets its first block.
func (p *policy) isWritten() bool {
	if p.Pool.CoolDown != p.pool.CoolDown {
		return p.pool.hasBlocks()
	}
	return p.known && p.Pool.equal(p.pool.Pool) && p.pool.hasPolicyRecord()
}

type changeKind uint8

const (
	claimed  changeKind = iota // lease is staged
	released                   // lease is releasing
	granted                    // block is new or has another state
	ranked                     // block has another place in the order of SetBlocks
	adjusted                   // a pool has another policy, or its first block
	extended                   // lease has another timer, or none
	excluded                   // an exclusion begins or ends
	accepted                   // a doubt about the journal ends
	moved                      // lease belongs to another network namespace
)

// Begin returns an empty Stage.
func (l *Ledger) Begin() *Stage { return &Stage{l: l} }

// Empty reports whether nothing is staged.
func (st *Stage) Empty() bool { return len(st.changes) == 0 }

// Staged describes each change that Commit would make in a few words.
func (st *Stage) Staged() (all []string) {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	seen := map[*pool]bool{}
	for _, c := range st.changes {
		switch c.kind {
		case claimed:
			all = append(
				all,
				fmt.Sprintf("claim %s of pool %q for %s", c.lease.addr, c.lease.block.pool.Name, c.lease.key),
			)
		case released:
			all = append(
				all,
				fmt.Sprintf("release %s of pool %q from %s", c.lease.addr, c.lease.block.pool.Name, c.lease.key),
			)
		case granted:
			if c.isNew || c.state != c.block.state {
				all = append(
					all,
					fmt.Sprintf("block %s of pool %q: %s", c.block.prefix, c.block.pool.Name, c.block.state),
				)
			}
		case adjusted:
			if p := c.before.pool; !seen[p] && (!c.before.known || !c.before.Pool.equal(p.Pool)) {
				all = append(all, fmt.Sprintf("policy of pool %q", p.Name))
			}
			seen[c.before.pool] = true // only the policy before the first change counts
		case extended:
			all = append(all, fmt.Sprintf("expiry of %s of pool %q", c.lease.addr, c.lease.block.pool.Name))
		case moved:
			all = append(all, fmt.Sprintf("namespace of %s of pool %q", c.lease.addr, c.lease.block.pool.Name))
		case excluded:
			all = append(all, fmt.Sprintf("exclusion of %s of pool %q", c.exclusion.addr, c.exclusion.pool.Name))
		}
	}
	return all
}

// Claimed returns the leases of k that Commit would make, by address. Any goroutine
// may call it.
func (st *Stage) Claimed(k Key) []Lease {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	var found []*lease
	st.l.held(&k, st.l.hash(&k), func(x *lease) bool {
		if x.staged && x.owner == st {
			found = append(found, x)
		}
		return true
	})
	slices.SortFunc(found, compareAddr)
	return values(found)
}

// SetPool makes pool known, or changes its policy.
func (st *Stage) SetPool(pool Pool) error {
	if err := pool.check(); err != nil {
		return err
	}
	l := st.l
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pool(pool.Name)
	if p.known && p.equal(pool) {
		st.asked = true
		return nil
	}
	st.adjust(p)
	l.enter(p, pool.Space)
	p.set(pool, true)
	l.expiryChanged(p)
	return nil
}

// adjust stages the record of the policy of p, which the caller may change next.
func (st *Stage) adjust(p *pool) {
	st.changes = append(st.changes, change{kind: adjusted, before: &policy{p, p.Pool, p.known}, staged: p.staged})
	p.staged = true
}

// SetBlocks sets the blocks of a pool: new ones become active, missing ones drain
// until their last lease is gone, and missing ones that return become active
// again. Leases stay as they are.
func (st *Stage) SetBlocks(name string, prefixes []netip.Prefix) error {
	sorted, err := checkBlocks(name, prefixes)
	if err != nil {
		return err
	}
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	st.asked = true
	p := st.l.pool(name)
	four, _ := slices.BinarySearchFunc(
		sorted,
		IPv6,
		func(x netip.Prefix, f Family) int { return int(FamilyOf(x.Addr())) - int(f) },
	)
	for f, part := range [][]netip.Prefix{sorted[:four], sorted[four:]} {
		st.drainOthers(&p.fam[f], part)
	}
	for f, part := range [][]netip.Prefix{sorted[:four], sorted[four:]} {
		st.open(p, &p.fam[f], part)
	}
	st.rank(p, prefixes)
	return nil
}

// checkBlocks returns prefixes sorted, or an error if two of them overlap.
func checkBlocks(name string, prefixes []netip.Prefix) ([]netip.Prefix, error) {
	sorted := prefixes
	if !slices.IsSortedFunc(sorted, comparePrefix) {
		sorted = slices.SortedFunc(slices.Values(prefixes), comparePrefix)
	}
	for i, p := range sorted {
		if p != p.Masked() {
			return nil, fmt.Errorf("grant %s to pool %q: host bits are set, want %s", p, name, p.Masked())
		}
		if i > 0 && p.Overlaps(sorted[i-1]) {
			return nil, fmt.Errorf("grant %s and %s to pool %q: %w", sorted[i-1], p, name, ErrOverlap)
		}
	}
	return sorted, nil
}

// drainOthers drains the blocks that are not among sorted.
func (st *Stage) drainOthers(fp *familyPool, sorted []netip.Prefix) {
	for _, b := range fp.blocks {
		for len(sorted) > 0 && comparePrefix(sorted[0], b.prefix) < 0 {
			sorted = sorted[1:]
		}
		if len(sorted) > 0 && sorted[0] == b.prefix {
			continue
		}
		if b.state != Draining || b.users == 0 {
			st.setState(b, Draining)
		}
	}
}

// open makes the blocks of sorted active.
func (st *Stage) open(p *pool, fp *familyPool, sorted []netip.Prefix) {
	var opened []*block
	have := fp.blocks
	for _, prefix := range sorted {
		for len(have) > 0 && comparePrefix(have[0].prefix, prefix) < 0 {
			have = have[1:]
		}
		switch {
		case len(have) == 0 || have[0].prefix != prefix:
			b := p.newBlock(prefix)
			b.staged = true
			opened = append(opened, b)
			st.changes = append(st.changes, change{kind: granted, block: b, isNew: true, event: st.event})
		case have[0].state != Active:
			st.setState(have[0], Active)
		}
	}
	if len(opened) == 0 {
		return
	}
	if p.known && !p.hasBlocks() {
		st.adjust(p)
	}
	fp.add(opened...)
}

// rank keeps the order in which SetBlocks named the blocks.
func (st *Stage) rank(p *pool, prefixes []netip.Prefix) {
	for rank, prefix := range prefixes {
		fp := &p.fam[FamilyOf(prefix.Addr())]
		i, _ := fp.search(prefix)
		b := fp.blocks[i]
		if b.rank == rank {
			continue
		}
		if b.rank >= 0 {
			st.changes = append(st.changes, change{kind: ranked, block: b, rank: b.rank})
		}
		b.rank, fp.free[byRank].valid = rank, false
	}
}

// setState stages another state of a block.
func (st *Stage) setState(b *block, state BlockState) {
	st.changes = append(st.changes, change{kind: granted, block: b, state: b.state, staged: b.staged, event: st.event})
	b.state, b.staged = state, true
	b.family().changed()
}

// Undo undoes all that is staged, the last change first.
func (st *Stage) Undo() {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	st.l.undo(st)
}

// Mark sets the savepoint of the stage: what is staged now stays if UndoToMark is called.
// A stage has one savepoint; Commit and Undo remove it. A claim that was staged before it
// cannot be released after it: Release fails with ErrBusy.
func (st *Stage) Mark() {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	st.mark = st.here()
}

func (st *Stage) here() savepoint {
	return savepoint{changes: len(st.changes), repeated: len(st.repeated), asked: st.asked}
}

// UndoToMark undoes what was staged since Mark, the last change first.
func (st *Stage) UndoToMark() {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	st.l.undoTo(st, st.mark)
}

// beforeMark reports whether the claim of x is staged before the savepoint.
func (st *Stage) beforeMark(x *lease) bool {
	return x.staged && x.owner == st && slices.ContainsFunc(
		st.changes[:st.mark.changes],
		func(c change) bool { return c.kind == claimed && c.lease == x },
	)
}

// answered forgets what the stage has answered without a change, and the savepoint.
func (st *Stage) answered() { st.repeated, st.asked, st.mark = st.repeated[:0], false, savepoint{} }

// undoTo undoes what came after a savepoint, the last change first.
func (st *Stage) undoTo(sp savepoint) {
	n := sp.changes
	if n < st.mark.changes {
		st.mark = sp
	}
	st.repeated, st.asked = st.repeated[:sp.repeated], sp.asked
	if len(st.changes) == n {
		return
	}
	var retracted *familyPool // has forgotten blocks in its list
	for i := len(st.changes) - 1; i >= n; i-- {
		c := st.changes[i]
		if retracted != nil && (!c.isNew || c.block.family() != retracted) {
			retracted.compact()
			retracted = nil
		}
		st.l.revert(c)
		if c.isNew {
			retracted = c.block.family()
		}
	}
	if retracted != nil {
		retracted.compact()
	}
	clear(st.changes[n:])
	st.changes = st.changes[:n]
	st.l.ended.Broadcast()
}

// revert undoes a staged change.
func (l *Ledger) revert(c change) {
	switch c.kind {
	case claimed:
		x := c.lease
		l.unlink(x)
		if c.replaced == nil {
			l.drop(x)
			break
		}
		l.restore(x, c.replaced)
	case released:
		c.lease.releasing, c.lease.owner = false, nil
	case granted:
		c.block.state, c.block.staged = c.state, c.staged
		c.block.family().changed()
		if c.isNew {
			l.retract(c.block)
		}
	case adjusted:
		l.enter(c.before.pool, c.before.Pool.Space)
		c.before.pool.set(c.before.Pool, c.before.known)
		c.before.pool.staged = c.staged
		l.expiryChanged(c.before.pool)
	case ranked:
		c.block.rank = c.rank
		c.block.family().changed()
	case extended:
		c.lease.owner = nil
	case moved:
		c.lease.netns, c.lease.netnsID, c.lease.owner = c.netns, c.netnsID, nil
	case excluded:
		c.exclusion.revert()
	}
}

// restore gives the address of x, which is unlinked already, back to the lease before.
// If the block of that one was released meanwhile, a gateway ended with it, and an
// address cools on in the block of x.
func (l *Ledger) restore(x, before *lease) {
	fp := x.block.family()
	if before.block.forgotten {
		l.dirty[leaseKey(x.block.pool.Name, x.addr)] = struct{}{}
		if before.state != Cooling {
			l.drop(x)
			return
		}
		before.block = x.block
	}
	fp.leases.remove(x)
	l.link(before, l.hash(&before.key))
	if before.state == Cooling {
		fp.insertCooling(before)
	}
}

// retract removes a block whose grant was not committed. If it has leases by now, it
// drains until they are released. The caller removes it from blocks with compact.
func (l *Ledger) retract(b *block) {
	fp := b.family()
	if len(fp.leasesOf(b)) > 0 {
		b.state = Draining
		l.dirty[blockKey(b.pool.Name, b.prefix)] = struct{}{}
		l.dirty[policyKey(b.pool.Name)] = struct{}{}
		return
	}
	fp.forget(b)
}

// Commit makes all that is staged durable, in one write with the other stages
// that are committed at the same time. After an error all of it is undone. If
// nothing is staged but an earlier commit failed, Commit writes the records of
// that commit again: no answer may come from a memory that the journal contradicts.
// Repeated claims need that only if the failed commit was about their own leases.
func (st *Stage) Commit(ctx context.Context) error {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.l.commit(ctx, st)
}

// appendOps appends the records of all that is staged. A released lease begins to
// cool now.
func (st *Stage) appendOps(ops []kvdb.Op) ([]kvdb.Op, error) {
	l := st.l
	for i := range st.changes {
		c := &st.changes[i]
		var op kvdb.Op
		var err error
		switch c.kind {
		case claimed, moved:
			op, err = l.leaseOp(c.lease)
		case released:
			op, err = l.releaseOp(c)
		case granted:
			op, err = blockOp(c.block)
		case adjusted:
			if !c.before.isWritten() {
				continue
			}
			op, err = policyOp(c.before.pool)
		case ranked:
			continue
		case extended:
			c.since = l.opt.Now().UnixNano()
			to := *c.lease
			to.timer, to.state, to.since, to.reason = c.timer, c.timer.state(), c.since, c.pendingReason()
			op, err = l.leaseOp(&to)
		case excluded:
			op, err = c.exclusion.op(l)
		case accepted:
			op = kvdb.Put(AcceptKey, nil)
		}
		if err != nil {
			return ops, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// releaseOp returns the record of an address whose lease is released.
func (l *Ledger) releaseOp(c *change) (kvdb.Op, error) {
	if c.cools = coolsDown(c.lease); !c.cools {
		return l.emptyOp(c.lease.block.pool, c.lease.addr)
	}
	c.cooled, c.since = l.opt.Uptime(), l.opt.Now().UnixNano()
	to := *c.lease
	to.state, to.cooled, to.since, to.reason, to.timer = Cooling, c.cooled, c.since, "", nil
	return l.leaseOp(&to)
}

// finish applies the changes of stages after their commit, or undoes them after an
// error.
func (l *Ledger) finish(stages []*Stage, err error) {
	touched := l.touched[:0]
	for _, st := range stages {
		st.committing, st.err = false, err
		touched = st.appendBlocks(touched, 0)
		if err != nil {
			st.undoTo(savepoint{})
			continue
		}
		for i := range st.changes {
			l.apply(&st.changes[i])
		}
		clear(st.changes)
		st.changes = st.changes[:0]
		st.answered()
	}
	l.sweepTouched(touched)
	l.ended.Broadcast()
}

// undo undoes all that st stages.
func (l *Ledger) undo(st *Stage) { l.undoTo(st, savepoint{}) }

// undoTo undoes what st stages after a savepoint.
func (l *Ledger) undoTo(st *Stage, sp savepoint) {
	touched := st.appendBlocks(l.touched[:0], sp.changes)
	st.undoTo(sp)
	l.sweepTouched(touched)
}

// appendBlocks appends the blocks that may end with the changes of the stage from number n on.
func (st *Stage) appendBlocks(touched []*block, n int) []*block {
	for i := n; i < len(st.changes); i++ {
		switch c := &st.changes[i]; c.kind {
		case claimed, released, extended, moved:
			touched = append(touched, c.lease.block)
		case granted:
			touched = append(touched, c.block)
		case excluded:
			if x := c.exclusion.lease; x != nil {
				touched = append(touched, x.block)
			}
		}
	}
	return touched
}

// sweepTouched sweeps the blocks of a stage that has ended, which are in l.touched.
func (l *Ledger) sweepTouched(touched []*block) {
	l.sweep(touched...)
	clear(touched)
	l.touched = touched[:0]
}

// apply returns a durable change effective.
func (l *Ledger) apply(c *change) {
	switch c.kind {
	case claimed:
		c.lease.staged, c.lease.owner = false, nil
		if c.replaced != nil {
			l.recycle(c.replaced)
		}
	case released:
		c.lease.releasing, c.lease.owner = false, nil
		l.unlink(c.lease)
		if c.cools {
			l.cool(c.lease, c.cooled, c.since)
		} else {
			l.drop(c.lease)
			l.recycle(c.lease)
		}
	case granted:
		c.block.staged = false
	case adjusted:
		c.before.pool.staged = false
	case moved:
		c.lease.owner = nil
	case extended:
		c.lease.owner = nil
		l.disarm(c.lease)
		c.lease.timer, c.lease.state, c.lease.since = c.timer, c.timer.state(), c.since
		c.lease.reason = c.pendingReason()
		l.arm(c.lease)
	case excluded:
		c.exclusion.apply()
	}
}
