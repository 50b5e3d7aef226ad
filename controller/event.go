// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
)

// Event represents a change that handlers react to.
type Event interface {
	// GetName returns the name of the kind of event: "Add Pod".
	GetName() string
	// String describes this one; it may have several lines.
	String() string
	// Method selects how the loop processes it.
	Method() EventMethodType
	// IsBlocking reports whether the producer waits for Done. A blocking event
	// cannot be a follow-up.
	IsBlocking() bool
	// Done is called once, from the loop, with the outcome. It must not block.
	Done(error)
}

// UpdateEvent is an Event with the method Update.
type UpdateEvent interface {
	Event
	// TransactionType selects what an error does.
	TransactionType() UpdateTransactionType
	// Direction selects the order in which the handlers are called.
	Direction() UpdateDirectionType
}

// SubjectEvent is an event about one attachment.
type SubjectEvent interface {
	Event
	// Subject is called when the event has been processed.
	Subject() Subject
}

// ExpiringEvent is an Event with a deadline: if it is still queued then, the loop does
// not process it, and Done gets ErrExpired.
type ExpiringEvent interface {
	Event
	Deadline() time.Time
}

// RemainingEvent is an UpdateEvent that is told, before it is reverted, if the southbound could
// not undo it. Its handlers then must not free what a value that remains may still use.
type RemainingEvent interface {
	UpdateEvent
	Remains(err error)
}

// ReportedEvent is an Event whose producer reports its failure to a person: the loop logs
// it at level debug only.
type ReportedEvent interface {
	Event
	ReportsFailure()
}

// GroupedEvent is an UpdateEvent that may share one durable commit with the GroupedEvents
// that are queued behind it. If such an event fails beside others, or if the commit fails, the
// handlers revert it and process it again: its Update must be repeatable. Revert is called for
// RevertOnFailure only.
type GroupedEvent interface {
	UpdateEvent
	// GroupKey names the object that the event changes. Events of one object do not share a
	// commit.
	GroupKey() string
}

// ClassifiedEvent is an Event of another class than Ordered.
type ClassifiedEvent interface {
	Event
	Class() EventClass
}

// EventClass is the place of an event of a producer in the queue. Events of one class keep
// their order.
type EventClass int

// Classes of events.
const (
	// Ordered events neither overtake nor are overtaken.
	Ordered EventClass = iota
	// Urgent events overtake Background ones, at most 128 of them before one of those has
	// its turn.
	Urgent
	// Background events are overtaken by Urgent ones.
	Background
)

func (c EventClass) String() string { return pick(int(c), "Ordered", "Urgent", "Background") }

// EventMethodType selects how the loop processes an event.
type EventMethodType int

// Methods of events.
const (
	// FullResync rebuilds the wanted state and reads the southbound one anew.
	FullResync EventMethodType = iota
	// UpstreamResync rebuilds the wanted state only.
	UpstreamResync
	// DownstreamResync calls no handler: the wanted state is applied again.
	DownstreamResync
	// Update is incremental.
	Update
)

func (m EventMethodType) String() string {
	return pick(int(m), "FullResync", "UpstreamResync", "DownstreamResync", "Update")
}

// MarshalText writes the name.
func (m EventMethodType) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UpdateTransactionType selects what an error of an update does.
type UpdateTransactionType int

// Transaction types.
const (
	BestEffort UpdateTransactionType = iota
	BestEffortIgnoreErrors
	RevertOnFailure
)

func (t UpdateTransactionType) String() string {
	return pick(int(t), "BestEffort", "BestEffortIgnoreErrors", "RevertOnFailure")
}

// UpdateDirectionType is the order in which handlers are called.
type UpdateDirectionType int

// Directions.
const (
	Forward UpdateDirectionType = iota
	Reverse
)

func (d UpdateDirectionType) String() string { return pick(int(d), "Forward", "Reverse") }

func pick(i int, names ...string) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprint(i)
}

// KubeStateData is the cluster's state: resource, key, message. Handlers read
// it during their call and keep nothing of it but the messages, which must not be changed.
type KubeStateData map[string]map[string]proto.Message

// Sorted yields the messages of a resource by key.
func (d KubeStateData) Sorted(resource string, f func(key string, m proto.Message) bool) {
	all := d[resource]
	keys := slices.AppendSeq(make([]string, 0, len(all)), maps.Keys(all))
	slices.Sort(keys)
	for _, k := range keys {
		if !f(k, all[k]) {
			return
		}
	}
}

// DBResync carries a snapshot of the cluster's state. The first event of a loop
// is one. A local one is ignored once the loop has seen one that is not: it could
// only be older.
type DBResync struct {
	Local     bool // read from the mirror of this node
	Revision  int64
	KubeState KubeStateData
	// ExternalConfig are the values of the source "db", by southbound key. It
	// replaces those that the loop has; other sources keep theirs.
	ExternalConfig map[string]proto.Message
	OnDone         func(error) // may be nil
}

// GetName is "Database Resync".
func (ev *DBResync) GetName() string { return "Database Resync" }

func (ev *DBResync) String() string {
	s := ev.GetName()
	if ev.Local {
		s += " (local)"
	}
	s += fmt.Sprintf("\n* revision: %d", ev.Revision)
	for _, resource := range slices.Sorted(maps.Keys(ev.KubeState)) {
		s += fmt.Sprintf("\n* %s: %d", resource, len(ev.KubeState[resource]))
	}
	if len(ev.ExternalConfig) > 0 {
		s += fmt.Sprintf("\n* external config: %d", len(ev.ExternalConfig))
	}
	return s
}

// Method is FullResync.
func (ev *DBResync) Method() EventMethodType { return FullResync }

// IsBlocking is false.
func (ev *DBResync) IsBlocking() bool { return false }

// Done calls OnDone.
func (ev *DBResync) Done(err error) {
	if ev.OnDone != nil {
		ev.OnDone(err)
	}
}

// KubeStateChange is one change of the cluster's state.
type KubeStateChange struct {
	Key      string
	Resource string
	Prev     proto.Message // nil: was absent
	New      proto.Message // nil: is absent
	// Revision is that of the database with this change, 0 if it is not known.
	// One that the last DBResync has reached is ignored: its snapshot has the change.
	Revision int64
	// Overtakable allows Urgent events to overtake the change.
	Overtakable bool
}

// GetName is "Kubernetes State Change".
func (ev *KubeStateChange) GetName() string { return "Kubernetes State Change" }

func (ev *KubeStateChange) String() string {
	what := "changed"
	switch {
	case ev.Prev == nil:
		what = "added"
	case ev.New == nil:
		what = "removed"
	}
	return ev.GetName() + "\n* " + what + ": " + ev.Resource + " " + ev.Key
}

// Method is Update.
func (ev *KubeStateChange) Method() EventMethodType { return Update }

// TransactionType is BestEffort.
func (ev *KubeStateChange) TransactionType() UpdateTransactionType { return BestEffort }

// Direction is Forward, and Reverse where something is removed.
func (ev *KubeStateChange) Direction() UpdateDirectionType {
	if ev.New == nil {
		return Reverse
	}
	return Forward
}

// IsBlocking is false.
func (ev *KubeStateChange) IsBlocking() bool { return false }

// Class returns Background if the change is Overtakable, otherwise Ordered.
func (ev *KubeStateChange) Class() EventClass {
	if ev.Overtakable {
		return Background
	}
	return Ordered
}

// Done does nothing.
func (ev *KubeStateChange) Done(error) {}

// HealingResyncType tells healing resyncs apart.
type HealingResyncType int

// Kinds of healing.
const (
	Periodic HealingResyncType = iota
	AfterError
)

// HealingResync repairs what an error has left, or what changed southbound
// behind our back.
type HealingResync struct {
	Type    HealingResyncType
	Err     error // of AfterError
	Attempt int   // of AfterError, from 1
}

// GetName is "Healing Resync".
func (ev *HealingResync) GetName() string { return "Healing Resync" }

func (ev *HealingResync) String() string {
	if ev.Type == Periodic {
		return ev.GetName() + " (periodic)"
	}
	first, _, _ := strings.Cut(fmt.Sprint(ev.Err), "\n")
	return fmt.Sprintf("%s (after error)\n* error: %s\n* attempt: %d", ev.GetName(), first, ev.Attempt)
}

// Method is DownstreamResync for a periodic one, FullResync after an error.
func (ev *HealingResync) Method() EventMethodType {
	if ev.Type == Periodic {
		return DownstreamResync
	}
	return FullResync
}

// IsBlocking is false.
func (ev *HealingResync) IsBlocking() bool { return false }

// Done does nothing.
func (ev *HealingResync) Done(error) {}

// Shutdown is the last event.
type Shutdown struct{}

// GetName is "Shutdown".
func (ev *Shutdown) GetName() string { return "Shutdown" }

func (ev *Shutdown) String() string { return ev.GetName() }

// Method is Update.
func (ev *Shutdown) Method() EventMethodType { return Update }

// TransactionType is BestEffortIgnoreErrors.
func (ev *Shutdown) TransactionType() UpdateTransactionType { return BestEffortIgnoreErrors }

// Direction is Forward.
func (ev *Shutdown) Direction() UpdateDirectionType { return Forward }

// IsBlocking is false.
func (ev *Shutdown) IsBlocking() bool { return false }

// Done does nothing.
func (ev *Shutdown) Done(error) {}
