// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller is the central event loop: one goroutine that owns the
// state of all plugins. Whoever wants something of a plugin pushes an Event;
// the loop hands it to the handlers in the order in which they are listed
// (dependencies first), makes durable what they staged, commits the
// transaction that they built southbound, and calls Done.
//
// # Events
//
// An update event is handed to Update of every handler that HandlesEvent; a
// resync event to Resync, with a snapshot of the cluster state, so that the
// outcome of any sequence of updates equals that of one resync. What happens
// on an error depends on the event's TransactionType:
//
//	BestEffort               go on, commit, heal later
//	BestEffortIgnoreErrors   go on, commit, do not heal
//	RevertOnFailure          stop, Revert the handlers that had finished, commit nothing
//
// A handler that panics has failed with a PanicError. An error that wraps
// ErrAbort stops the event and is followed by a resync; one that wraps ErrFatal
// ends the loop. After a resync that failed, nothing of its transaction is
// committed southbound, and another is tried, later and later, until one
// succeeds or the limit is reached, which is fatal.
//
// The first event is a DBResync; what comes before it waits.
//
// # Promises
//
// Done is called exactly once for every event that PushEvent has accepted, on
// whatever path, also at shutdown. A handler never pushes: what should follow
// goes through the transaction (FollowUp) and overtakes the queue. Handlers
// never wait for a disk or a network; the loop does, once, under the deadline of
// the event. Maps are walked in the order of their keys.
//
// # Threads
//
// Run is the loop. Handlers, Committers and the Sink are called from it only.
// PushEvent, PushEventWait, Status and the history may be used from anywhere
// but a handler.
//
// Example, the life of a pod's address:
//
//	CNI ADD -> PushEventWait(AddPod) -> ipam stages a claim, ipnet puts routes
//	        -> ledger commit -> sink commit -> Done(nil) -> CNI result
package controller
