// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// Sink is the southbound, which makes wanted values true. Only the loop calls Commit.
type Sink interface {
	// Commit applies a transaction. If it fails and txn.RevertOnFailure is set,
	// nothing of txn must remain; otherwise the values that were applied remain.
	// ValueErrors name the values that failed, RemainErrors those that could not be restored.
	Commit(ctx context.Context, txn Transaction) error
	// Dump returns the values that are there now. Any goroutine may call it.
	Dump(ctx context.Context) (map[string]proto.Message, error)
	// Run repeats failed values and does other work in the background until ctx ends. It
	// is called once, beside the loop, and returns nil when ctx has ended.
	Run(ctx context.Context) error
	// Close releases the resources of the sink after Run and the loop have ended. What
	// was applied stays.
	Close() error
}

// Transaction holds wanted values, ordered by key: those of handlers, merged with those
// from outside. A resync has all wanted values; an update has those that were put or
// that change.
type Transaction struct {
	Seq             uint64 // of the event
	Method          EventMethodType
	Description     string
	Values          []Value
	RevertOnFailure bool
	Retry           Retry
}

// Value holds one wanted value.
type Value struct {
	Key     string
	Message proto.Message // nil: nothing is wanted there
}

// Retry tells a sink how to repeat, in its own time, what failed.
type Retry struct {
	Enabled            bool
	Delay              time.Duration
	MaxAttempts        int
	ExponentialBackoff bool
}

// MemorySink is a Sink that keeps the values in memory. The zero value is ready to use;
// any goroutine may call Dump.
type MemorySink struct {
	mu      sync.Mutex
	resync  []Value                  // of the last resync
	updates map[string]proto.Message // since then; nil: a value is gone
	commits int
	// Fault, if set, is asked before each commit; its error fails the commit.
	Fault func(Transaction) error
}

// Commit stores the values.
func (s *MemorySink) Commit(ctx context.Context, txn Transaction) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("commit to the sink: %w", context.Cause(ctx))
	}
	if s.Fault != nil {
		if err := s.Fault(txn); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	if txn.Method != Update {
		s.resync, s.updates = txn.Values, nil
		return nil
	}
	if s.updates == nil {
		s.updates = map[string]proto.Message{}
	}
	for _, v := range txn.Values {
		s.updates[v.Key] = v.Message
		if v.Message == nil && !contains(s.resync, v.Key) {
			delete(s.updates, v.Key)
		}
	}
	return nil
}

// Dump returns the values.
func (s *MemorySink) Dump(context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := make(map[string]proto.Message, len(s.resync)+len(s.updates))
	for _, v := range s.resync {
		values[v.Key] = v.Message
	}
	maps.Copy(values, s.updates)
	maps.DeleteFunc(values, func(_ string, m proto.Message) bool { return m == nil })
	return values, nil
}

// Run waits until ctx ends.
func (s *MemorySink) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Close does nothing.
func (s *MemorySink) Close() error { return nil }

// Commits returns the number of successful commits.
func (s *MemorySink) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// contains reports whether values, ordered by key, have one under key.
func contains(values []Value, key string) bool {
	_, found := slices.BinarySearchFunc(values, key, func(v Value, k string) int { return strings.Compare(v.Key, k) })
	return found
}

// maxFollowUpDepth bounds how many events follow from one another. A longer chain
// is that of handlers which make follow-ups for ever.
const maxFollowUpDepth = 16

// transaction holds the values that handlers put during one event.
type transaction struct {
	wanted    *wanted // by handlers, before this event
	resync    bool
	changes   map[string]proto.Message // of an update
	puts      []*wish                  // of a resync
	at        int                      // index in wanted.order of the wish that a resync probably puts next
	depth     int                      // of the event
	earlier   map[string]proto.Message // values of events whose commit this one shares
	depends   bool                     // it has read or changed one of those
	followUps []queued
	misuse    error // of the handler that is being called: what it asked for and did not get
}

// newUpdate returns the transaction of an update.
func newUpdate(v *wanted, depth int) *transaction { return &transaction{wanted: v, depth: depth} }

// newResync returns the transaction of a resync.
func newResync(v *wanted, depth int) *transaction {
	v.round++
	return &transaction{wanted: v, resync: true, puts: make([]*wish, 0, len(v.order)), depth: depth}
}

func (t *transaction) Put(key string, value proto.Message) {
	if key == "" {
		_ = t.misused(fmt.Errorf("%s a value under an empty key: want a southbound key", operation(value)))
		return
	}
	if t.resync {
		t.wish(key).next = value
		return
	}
	if _, ok := t.earlier[key]; ok {
		t.depends = true
	}
	if t.changes == nil { // most events put nothing
		t.changes = map[string]proto.Message{}
	}
	t.changes[key] = value
}

// wish returns the wish of a key, and notes that the resync has put it.
func (t *transaction) wish(key string) *wish {
	v := t.wanted
	var w *wish
	if t.at < len(v.order) && v.order[t.at].key() == key && !v.order[t.at].gone {
		w = v.order[t.at]
	} else {
		w = v.wish(key)
	}
	if w.at >= 0 {
		t.at = w.at + 1
	}
	if w.round != v.round {
		w.round = v.round
		t.puts = append(t.puts, w)
	}
	return w
}

func (t *transaction) Delete(key string) { t.Put(key, nil) }

func (t *transaction) Get(key string) proto.Message {
	m, changed := t.change(key)
	if changed || t.resync {
		return m
	}
	if m, ok := t.earlier[key]; ok {
		t.depends = true
		return m
	}
	return t.wanted.get(key)
}

// change returns what the event has put under key, and reports whether it has put or
// deleted anything there.
func (t *transaction) change(key string) (m proto.Message, changed bool) {
	if !t.resync {
		m, changed = t.changes[key]
		return m, changed
	}
	if w := t.wanted.byKey[key]; w != nil && w.round == t.wanted.round {
		return w.next, true
	}
	return nil, false
}

// resynced returns what a resync has put, by key.
func (t *transaction) resynced() map[string]proto.Message {
	all := make(map[string]proto.Message, len(t.puts))
	for _, w := range t.puts {
		all[w.key()] = w.next
	}
	return all
}

func (t *transaction) FollowUp(event Event) error {
	ev, blocking, err := admit(event)
	switch {
	case err != nil:
		return t.misused(fmt.Errorf("follow up: %w", err))
	case ev.fault != nil:
		return t.misused(fmt.Errorf("follow up: %w", malformed(ev.name, ev.fault)))
	case blocking:
		return t.misused(fmt.Errorf("follow up with %s: %w", ev.name, errBlockingFollowUp))
	case t.depth == maxFollowUpDepth:
		return t.misused(
			fmt.Errorf(
				"follow up with %s: %w: %d events have followed from one another",
				ev.name,
				ErrFollowUpDepth,
				t.depth,
			),
		)
	}
	t.followUps = append(t.followUps, ev)
	return nil
}

// misused keeps the first error, which fails the handler also if it ignores it.
func (t *transaction) misused(err error) error {
	if t.misuse == nil {
		t.misuse = err
	}
	return err
}
