// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller runs the central event loop: one goroutine that owns the state
// of all plugins. A producer pushes an Event. The loop hands the event to the handlers
// in their order (dependencies first), makes durable what they staged, commits their
// transaction southbound, and calls Done.
//
// # Events
//
// The loop hands an update event to Update of every handler that HandlesEvent, and
// a resync event to Resync, with a snapshot of the cluster state. So the outcome of
// any sequence of updates equals that of one resync. What happens on an error
// depends on the event's TransactionType:
//
//	BestEffort               go on, commit, heal later
//	BestEffortIgnoreErrors   go on, commit, do not heal
//	RevertOnFailure          stop, Revert the handlers that had finished, commit nothing
//	                         (RemainingEvent: the southbound may have left something)
//
// A handler that panics has failed with the panic as its error. An error that wraps
// ErrAbort stops the event, reverts it if it is RevertOnFailure, and is followed by
// a resync. One that wraps ErrFatal ends the loop, also when it comes from Revert,
// a Committer or the Sink. After a resync that failed, nothing of its transaction is
// committed southbound. The loop repeats the resync with growing delays until one
// succeeds; the limit of repetitions is a fatal error.
//
// The first event is a DBResync; earlier events wait for it. The loop skips what the
// last DBResync has brought already: changes up to its revision, and a local DBResync
// after a remote one. Done of a skipped event gets nil.
//
// A run of queued GroupedEvents shares one durable commit, if each Committer has savepoints.
// Each of them has its own southbound commit, outcome and Done, in order. An event that
// fails beside others is undone and processed again by itself. After a failed commit each
// event has a commit of its own. So the outcome of an event does not depend on its
// neighbours. No event waits for later ones.
//
// Events of producers are processed in order of arrival, except that Urgent ones overtake
// Background ones, up to 128 of them before one of those has its turn.
//
// An event that cannot be processed (its GetName panics, its Method is unknown, it
// has a value without a key) fails alone with ErrMalformedEvent: no handler sees it.
// A DBResync only loses the values that have no key or no message. The loop copies
// the maps of an event; the messages in them are shared: neither side changes them.
//
// # Southbound values
//
// What handlers put is the internal value of a key; Get knows no other. Sources
// outside of the handlers (ExternalConfigChange, ExternalConfigResync, and
// DBResync for the source "db") may have values for the same keys. The sink gets
// both merged: the internal value first, then the sources in the order of their
// names, as proto.Merge does it. A message of another type is refused: logged,
// recorded, returned to the source, and left out. If only values fail that no
// handler wants, the loop schedules no resync, which could not heal them.
//
// With EnableVerification the loop processes a VerificationResync after each clean
// event and its follow-ups. If the handlers then come to another state than the
// events had, a handler has a bug: the loop logs, records and counts the difference,
// and applies the new state.
//
// # Promises
//
// Done is called exactly once for every event that PushEvent has accepted, on
// whatever path, also at shutdown. Producers that wait for room are served in the
// order in which they came. A handler does not wait for its loop: it adds a follow-up
// to the transaction (FollowUp), which overtakes the queue. After 16 follow-ups in a
// row one event of a producer has its turn. At most 16 events follow
// from one another; the next FollowUp fails, and with it its handler. A push that would
// wait fails with ErrWaitInLoop if the loop's goroutine makes it. The loop does not know
// goroutines that a handler starts. A handler that waits for one that pushes so is stuck
// until the context of the push ends, and Status says so after EventTimeout. Handlers
// never wait for a disk or a network; the loop does, once, under the deadline of the
// event. Maps are walked in the order of their keys.
//
// # Threads
//
// The loop is one goroutine: that of the caller of Run, or the one that AfterInit
// starts and Close ends. Only the loop calls handlers, Committers and the Sink. Any
// goroutine may call PushEvent, PushEventWait, Status, Events and Query. In a handler
// only PushEvent of an event that does not block succeeds.
package controller
