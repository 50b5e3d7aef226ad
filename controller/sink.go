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

// Sink is the southbound: what is wanted is made true there. It is called from
// the loop only.
type Sink interface {
	// Commit applies a transaction. Where it fails and txn.RevertOnFailure is
	// set, nothing of txn must remain; otherwise what worked remains. ValueErrors
	// say which values failed.
	Commit(ctx context.Context, txn Transaction) error
	// Dump is what is there now.
	Dump(ctx context.Context) (map[string]proto.Message, error)
}

// Transaction is a set of wanted values, ordered by key: what handlers have put,
// merged with what came from outside. For a resync the values are all there
// should be; for an update they are what was put or changes otherwise.
type Transaction struct {
	Seq             uint64 // of the event
	Method          EventMethodType
	Description     string
	Values          []Value
	RevertOnFailure bool
	Retry           Retry
}

// Value is one wanted value.
type Value struct {
	Key     string
	Message proto.Message // nil: nothing is wanted there
}

// Retry says how a sink should retry, in its own time, what failed.
type Retry struct {
	Enabled            bool
	Delay              time.Duration
	MaxAttempts        int
	ExponentialBackoff bool
}

// MemorySink is a Sink that only remembers. The zero value is ready to use;
// any goroutine may call Dump.
type MemorySink struct {
	mu      sync.Mutex
	values  map[string]proto.Message
	commits int
	// Fault, if set, is asked before each commit; its error fails the commit.
	Fault func(Transaction) error
}

// Commit remembers the values.
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

// Dump is all that is remembered.
func (s *MemorySink) Dump(context.Context) (map[string]proto.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values), nil
}

// Commits is the number of successful commits.
func (s *MemorySink) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

// transaction is what handlers build. It lives for one event.
type transaction struct {
	wanted    map[string]proto.Message // by handlers, before this event; nil for a resync
	changes   map[string]proto.Message
	followUps []Event
}

func newTransaction(wanted map[string]proto.Message) *transaction {
	return &transaction{wanted: wanted}
}

func (t *transaction) Put(key string, value proto.Message) {
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
	if event.IsBlocking() {
		return fmt.Errorf("follow up with %s: %w", event.GetName(), ErrBlockingFollowUp)
	}
	t.followUps = append(t.followUps, event)
	return nil
}
