// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
)

// Sink is the southbound, which makes wanted values true. Only the loop calls it.
type Sink interface {
	// Commit applies a transaction. If it fails and txn.RevertOnFailure is set,
	// nothing of txn must remain; otherwise the values that were applied remain.
	// ValueErrors name the values that failed.
	Commit(ctx context.Context, txn Transaction) error
	// Dump returns the values that are there now.
	Dump(ctx context.Context) (map[string]proto.Message, error)
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
	values  map[string]proto.Message
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
	if s.values == nil || txn.Method != Update {
		s.values = map[string]proto.Message{}
	}
	for _, v := range txn.Values {
		if v.Message == nil {
			delete(s.values, v.Key)
		} else {
			s.values[v.Key] = v.Message
		}
	}
	return nil
}

// Dump returns the values.
func (s *MemorySink) Dump(context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values), nil
}

// Commits returns the number of successful commits.
func (s *MemorySink) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// maxFollowUpDepth bounds how many events follow from one another. A longer chain
// is that of handlers which make follow-ups for ever.
const maxFollowUpDepth = 16

// transaction holds the values that handlers put during one event.
type transaction struct {
	wanted    map[string]proto.Message // by handlers, before this event; nil for a resync
	changes   map[string]proto.Message
	depth     int // of the event
	followUps []queued
	misuse    error // of the handler that is being called: what it asked for and did not get
}

func newTransaction(wanted map[string]proto.Message, depth int) *transaction {
	return &transaction{wanted: wanted, depth: depth}
}

func (t *transaction) Put(key string, value proto.Message) {
	if key == "" {
		_ = t.misused(fmt.Errorf("%s a value under an empty key: want a southbound key", operation(value)))
		return
	}
	if t.changes == nil { // most events put nothing
		t.changes = map[string]proto.Message{}
	}
	t.changes[key] = value
}

func (t *transaction) Delete(key string) { t.Put(key, nil) }

func (t *transaction) Get(key string) proto.Message {
	if m, ok := t.changes[key]; ok {
		return m
	}
	return t.wanted[key]
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
