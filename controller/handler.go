// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"log/slog"

	"google.golang.org/protobuf/proto"
)

// EventHandler is a plugin as the loop sees it. All methods are called from the
// loop only.
type EventHandler interface {
	// String is the name of the handler.
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

// ResyncOperations is the transaction of a resync.
type ResyncOperations interface {
	// Put wants value under key. An empty key fails the handler.
	Put(key string, value proto.Message)
	// Get is what handlers want under key, nil if nothing. Values from outside do
	// not show here.
	Get(key string) proto.Message
	// FollowUp queues event before those of producers. It fails for a blocking
	// event, for a nil one, and where too many events have followed from one another;
	// the handler has then failed also if it ignores the error. The follow-ups of an event that is reverted are dropped.
	FollowUp(event Event) error
}

// UpdateOperations is the transaction of an update.
type UpdateOperations interface {
	ResyncOperations
	// Delete wants nothing under key.
	Delete(key string)
}

// EventLoop is where producers outside the loop push events.
type EventLoop interface {
	// PushEvent queues an event. If it fails, Done will not be called.
	PushEvent(event Event) error
	// PushEventWait is PushEvent for producers that can wait for room.
	PushEventWait(ctx context.Context, event Event) error
}

// Committer makes durable what handlers have staged during an event.
type Committer interface {
	// Commit makes all that is staged durable, or undoes all of it and fails.
	Commit(ctx context.Context) error
	// Undo drops all that is staged.
	Undo()
}

// StagingCommitter is a Committer that can say what is staged. A verification
// expects nothing there.
type StagingCommitter interface {
	Committer
	// Staged are short texts, one for each thing that the next Commit would make durable.
	Staged() []string
}

// PluginDeps is what every plugin is given.
type PluginDeps struct {
	Name string
	Log  *slog.Logger
}

// String is the plugin's name.
func (d PluginDeps) String() string { return d.Name }

// AgentLabel tells the label of this agent: its node's name.
type AgentLabel interface {
	GetAgentLabel() string
}
