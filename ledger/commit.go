// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/kvdb"
)

// committer lets those who commit at the same time share one write, without a
// timer and without a goroutine: the first of a group that finds no commit
// under way leads it; whoever comes while it writes makes the next group.
type committer struct {
	mu      sync.Mutex
	busy    bool
	next    *group
	writing chan struct{} // has room for one: the leader while it writes
}

// group is the stages of one commit.
type group struct {
	stages []*Stage
	lead   chan struct{} // gets one token when the group before it is done
	done   chan struct{}
	err    error
}

func newGroup() *group {
	return &group{lead: make(chan struct{}, 1), done: make(chan struct{})}
}

func (c *committer) open() { c.next, c.writing = newGroup(), make(chan struct{}, 1) }

// commit adds st (nil: nothing but what is due anyway) to the next group and
// returns when write has run for it.
func (c *committer) commit(st *Stage, write func([]*Stage) error) error {
	c.mu.Lock()
	g := c.next
	g.stages = append(g.stages, st)
	if c.busy {
		c.mu.Unlock()
		select {
		case <-g.done:
			return g.err
		case <-g.lead:
		}
		c.mu.Lock()
	}
	c.busy = true
	c.next = newGroup()
	c.mu.Unlock()

	c.writing <- struct{}{}
	g.err = write(g.stages)
	<-c.writing

	c.mu.Lock()
	if len(c.next.stages) > 0 {
		c.next.lead <- struct{}{}
	} else {
		c.busy = false
	}
	c.mu.Unlock()
	close(g.done)
	return g.err
}

// pause runs f while nobody commits.
func (c *committer) pause(f func()) {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	f()
}

// commitGroup writes the records of the stages and of what is dirty in one
// journal commit, and settles the stages by its outcome.
func (l *Ledger) commitGroup(stages []*Stage) error {
	stages = slices.DeleteFunc(stages, func(st *Stage) bool { return st == nil })
	l.mu.Lock()
	ops, err := l.groupOps(stages)
	l.mu.Unlock()
	if err == nil && len(ops) > 0 {
		// The deadline of one caller must not fail the others: none is passed on.
		err = l.journal.Commit(context.Background(), ops)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		for _, op := range ops { // what the journal has of it now is not known
			l.dirty[op.Key] = struct{}{}
		}
		l.unsure = l.unsure || len(ops) > 0
	} else if len(l.dirty) == 0 {
		l.unsure = false
	}
	l.settle(stages, err)
	return err
}

// groupOps are the ops of the stages, and those of the dirty records that no
// stage is about to change; these are dirty no more.
func (l *Ledger) groupOps(stages []*Stage) ([]kvdb.Op, error) {
	all := map[string]kvdb.Op{}
	now, uptime := l.opt.Now(), l.uptimeFor(stages)
	for _, st := range stages {
		m, err := st.ops(now, uptime)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, m)
	}
	for key := range l.dirty {
		if _, ok := all[key]; !ok {
			op, ok, err := l.truth(key)
			if err != nil {
				for k := range all { // still to be written
					l.dirty[k] = struct{}{}
				}
				return nil, err
			}
			if !ok {
				continue
			}
			all[key] = op
		}
		delete(l.dirty, key)
	}
	return slices.SortedFunc(maps.Values(all), func(x, y kvdb.Op) int { return strings.Compare(x.Key, y.Key) }), nil
}

func (l *Ledger) uptimeFor(stages []*Stage) time.Duration {
	for _, st := range stages {
		for _, c := range st.changes {
			if c.kind == left && coolsDown(c.lease) {
				return l.opt.Uptime()
			}
		}
	}
	return 0
}

// flush writes what is dirty.
func (l *Ledger) flush(ctx context.Context) error {
	l.mu.Lock()
	clean := len(l.dirty) == 0
	l.mu.Unlock()
	if clean || ctx.Err() != nil {
		return nil
	}
	return l.group.commit(nil, l.commitGroup)
}
