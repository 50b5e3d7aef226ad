// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"

	"google.golang.org/protobuf/proto"
)

// EventHandler is implemented by a plugin. Only the loop calls its methods.
type EventHandler interface {
	// String returns the name of the handler.
	String() string
	// HandlesEvent selects the events that the handler wants. A handler that
	// puts anything into transactions must want every resync.
	HandlesEvent(event Event) bool
	// Resync rebuilds the handler's state from kubeStateData; resyncCount is 1
	// for the first one.
	Resync(event Event, kubeStateData KubeStateData, resyncCount int, txn ResyncOperations) error
	// Update reacts to an update event and says in a few words what it changed.
	Update(event Event, txn UpdateOperations) (changeDescription string, err error)
	// Revert undoes what Update has done for the same event, which is RevertOnFailure.
	Revert(event Event) error
}

// ResyncOperations represents the transaction of a resync.
type ResyncOperations interface {
	// Put wants value under key. An empty key fails the handler.
	Put(key string, value proto.Message)
	// Get returns the value that handlers have put under key, nil if there is none. It
	// does not return values from outside.
	Get(key string) proto.Message
	// FollowUp queues event before those of producers. It fails for a blocking
	// event, for a nil one, and if too many events have followed from one another. The
	// handler has then failed, also if it ignores the error. The follow-ups of an event that
	// is reverted are dropped.
	FollowUp(event Event) error
}

// UpdateOperations represents the transaction of an update.
type UpdateOperations interface {
	ResyncOperations
	// Delete wants nothing under key.
	Delete(key string)
}

// EventLoop takes the events of producers outside the loop.
type EventLoop interface {
	// PushEvent queues an event. If it fails, Done will not be called.
	PushEvent(event Event) error
	// PushEventWait queues an event and waits for room in the queue.
	PushEventWait(ctx context.Context, event Event) error
}

// Committer makes durable what handlers have staged during an event.
type Committer interface {
	// Commit makes all that is staged durable, or undoes all of it and fails.
	Commit(ctx context.Context) error
	// Undo drops all that is staged.
	Undo()
}

// EventCommitter is a Committer that records the event that stages.
type EventCommitter interface {
	Committer
	// BeginEvent is called before the handlers of an event, with the number of its Record.
	BeginEvent(number uint64, name string)
}

// SavepointCommitter is a Committer that can drop what one event has staged and keep what
// the events before it have. Events share a commit only if each Committer is one.
type SavepointCommitter interface {
	Committer
	// Mark sets the savepoint: what is staged now stays if UndoToMark is called.
	Mark()
	// UndoToMark drops what was staged since the last Mark, Commit or Undo.
	UndoToMark()
}

// StagingCommitter is a Committer that lists what is staged. A verification expects an
// empty list.
type StagingCommitter interface {
	Committer
	// Staged returns short texts, one for each change that the next Commit would make
	// durable.
	Staged() []string
}

// PluginDeps holds the dependencies of every plugin.
type PluginDeps struct {
	Name string
	Log  *slog.Logger
}

// String returns the plugin's name.
func (d PluginDeps) String() string { return d.Name }

// AgentLabel tells the label of this agent: its node's name.
type AgentLabel interface {
	GetAgentLabel() string
}
