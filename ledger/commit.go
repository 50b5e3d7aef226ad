// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// committer lets stages that are committed at the same time share one write of
// the journal. It has no timer and no goroutine: the first caller that finds no
// write in progress leads its group; stages that come while it writes collect in
// the other group. All fields are guarded by Ledger.mu.
type committer struct {
	groups     [2]group
	collecting int  // index of the group that a stage joins
	writing    bool // a leader writes, or Check reads

	ops  []kvdb.Op // of the write in progress; otherwise room for the next one
	idle []*Stage  // stages of finished calls, for the next ones
}

// group is the stages of one commit. Its two instances take turns.
type group struct {
	stages []*Stage
	// turn wakes one of the stages when the group before is written, and all of
	// them when this group is.
	turn sync.Cond
}

// maxIdle limits what is kept for reuse: idle stages, and the capacity of slices.
const maxIdle = 256

func (l *Ledger) initCommitter() {
	for i := range l.commits.groups {
		l.commits.groups[i].turn.L = &l.mu
	}
}

// commitError marks the error of a commit, apart from those of staging.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit to the ledger: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// explain adds to the error of a commit what was to be committed. Errors of
// staging say that themselves.
func explain(err error, format string, args ...any) error {
	var failed *commitError
	if !errors.As(err, &failed) {
		return err
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// autocommit stages what f stages and commits it. A caller that has gone gets no answer, not
// even one that needs no write.
func (l *Ledger) autocommit(ctx context.Context, f func(*Stage) error) error {
	if ctx.Err() != nil {
		return &commitError{context.Cause(ctx)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.idleStage()
	if err := f(st); err != nil {
		st.undoTo(savepoint{})
		return err
	}
	if err := l.commit(ctx, st); err != nil {
		return err
	}
	if len(l.commits.idle) < maxIdle && cap(st.changes) <= maxIdle {
		l.commits.idle = append(l.commits.idle, st)
	}
	return nil
}

func (l *Ledger) idleStage() *Stage {
	if n := len(l.commits.idle); n > 0 {
		st := l.commits.idle[n-1]
		l.commits.idle = l.commits.idle[:n-1]
		return st
	}
	st := &Stage{l: l, autocommit: true}
	st.changes = st.first[:0]
	return st
}

// commit makes what st stages durable, or undoes it.
func (l *Ledger) commit(ctx context.Context, st *Stage) error {
	if st.Empty() && l.agrees(st) {
		st.answered()
		return nil
	}
	if ctx.Err() != nil {
		l.undo(st)
		return &commitError{context.Cause(ctx)}
	}
	if err := l.join(st); err != nil {
		return &commitError{err}
	}
	return nil
}

// agrees reports whether the journal holds what st, which changes nothing, has answered.
// After a commit that failed it may hold other leases: a pod that was answered once is
// served all the same.
func (l *Ledger) agrees(st *Stage) bool {
	if !l.unsure {
		return true
	}
	return len(st.repeated) > 0 && !st.asked && !slices.ContainsFunc(st.repeated, l.differs)
}

// differs reports whether the journal may have another record of key than memory.
func (l *Ledger) differs(key string) bool {
	_, dirty := l.dirty[key]
	return dirty || slices.ContainsFunc(l.commits.ops, func(op kvdb.Op) bool { return op.Key == key })
}

// join adds st to the group that collects and returns when the group is written.
// Only the leader of the group writes; the deadline of no caller ends a write.
func (l *Ledger) join(st *Stage) error {
	c := &l.commits
	g := &c.groups[c.collecting]
	g.stages = append(g.stages, st)
	st.committing = true
	for st.committing {
		if c.writing {
			g.turn.Wait()
		} else {
			l.lead(g)
		}
	}
	err := st.err
	st.err = nil
	return err
}

// lead writes the records of a group in one commit of the journal. The lock is
// free meanwhile.
func (l *Ledger) lead(g *group) {
	c := &l.commits
	c.writing = true
	c.collecting ^= 1
	ops, err := l.groupOps(g.stages)
	if err == nil && len(ops) > 0 {
		c.ops = ops
		err = l.write(ops)
	}
	if err != nil {
		for _, op := range ops { // the journal may have these records, or the ones before
			if op.Key[:1] != HistoryPrefix && op.Key != AcceptKey {
				l.dirty[op.Key] = struct{}{}
			}
		}
		l.unsure = l.unsure || len(ops) > 0
	} else if len(l.dirty) == 0 {
		l.unsure = false
	}
	l.history.ended(err)
	l.finish(g.stages, err)
	clear(ops)
	if cap(ops) <= maxIdle {
		c.ops = ops[:0]
	} else {
		c.ops = nil
	}
	clear(g.stages)
	g.stages = g.stages[:0]
	g.turn.Broadcast()
	l.endWriting()
}

func (l *Ledger) write(ops []kvdb.Op) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	return l.journal.Commit(context.Background(), ops)
}

// pause returns when no write is in progress; none begins before endWriting.
func (l *Ledger) pause() {
	c := &l.commits
	for c.writing {
		c.groups[c.collecting].turn.Wait()
	}
	c.writing = true
}

// endWriting lets the group that collects begin.
func (l *Ledger) endWriting() {
	l.commits.writing = false
	l.commits.groups[l.commits.collecting].turn.Signal()
}

// groupOps returns the ops of the stages, and those of the dirty records that no
// stage is about to change; these are dirty no more. Each key has one op.
func (l *Ledger) groupOps(stages []*Stage) (ops []kvdb.Op, err error) {
	if ops, err = l.recordOps(stages); err != nil {
		return nil, err
	}
	return l.appendEntries(ops, stages), nil
}

// recordOps returns the ops of groupOps without those of the history.
func (l *Ledger) recordOps(stages []*Stage) (ops []kvdb.Op, err error) {
	ops = l.commits.ops[:0]
	for _, st := range stages {
		if ops, err = st.appendOps(ops); err != nil {
			return nil, err
		}
	}
	if len(ops) > 1 {
		ops = lastOfKey(ops)
	}
	if len(l.dirty) == 0 {
		return ops, nil
	}
	staged := ops
	for key := range l.dirty {
		if _, ok := slices.BinarySearchFunc(staged, key, compareKey); ok {
			continue
		}
		op, ok, err := l.currentOp(key)
		if err != nil {
			return nil, err
		}
		if ok {
			ops = append(ops, op)
		}
	}
	for i := range ops {
		delete(l.dirty, ops[i].Key)
	}
	slices.SortFunc(ops, func(x, y kvdb.Op) int { return cmp.Compare(x.Key, y.Key) })
	return ops, nil
}

func compareKey(op kvdb.Op, key string) int { return strings.Compare(op.Key, key) }

// lastOfKey sorts ops by key and keeps the last op of each key.
func lastOfKey(ops []kvdb.Op) []kvdb.Op {
	slices.SortStableFunc(ops, func(x, y kvdb.Op) int { return strings.Compare(x.Key, y.Key) })
	n := 0
	for i := range ops {
		if i+1 == len(ops) || ops[i].Key != ops[i+1].Key {
			ops[n] = ops[i]
			n++
		}
	}
	clear(ops[n:])
	return ops[:n]
}

// flush writes the dirty records.
func (l *Ledger) flush(ctx context.Context) error {
	if len(l.dirty) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return l.join(&Stage{l: l})
}
