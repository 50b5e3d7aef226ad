// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
)

var (
	// ErrEventQueueFull is returned by PushEvent while there is no room.
	ErrEventQueueFull = errors.New("queue with events is full")
	// ErrClosedController is returned by PushEvent, and given to Done, once the loop is closing.
	ErrClosedController = errors.New("controller was closed")
	// ErrEventLoopIsAborting is given to Done after a fatal error.
	ErrEventLoopIsAborting = errors.New("event loop is aborting")
	// ErrExpired is given to Done for an event that was not processed in time.
	ErrExpired = errors.New("event was not processed before its deadline")
	// ErrBlockingFollowUp is returned by FollowUp: waiting for it would wait for ever.
	ErrBlockingFollowUp = errors.New("a follow-up event cannot be blocking")
	// ErrNoResync ends a loop that got no DBResync in time.
	ErrNoResync = errors.New("no resync with the database before the deadline")
	// ErrNotUpdateEvent is given to Done for an event of method Update without its methods.
	ErrNotUpdateEvent = errors.New("event of method Update is no UpdateEvent")

	// ErrFatal is wrapped by errors that end the loop.
	ErrFatal = errors.New("fatal error")
	// ErrAbort is wrapped by errors that stop the event and ask for a resync.
	ErrAbort = errors.New("event aborted")
)

// NewFatalError makes err end the loop.
func NewFatalError(err error) error { return fmt.Errorf("%w: %w", ErrFatal, err) }

// NewAbortEventError makes err stop the event and ask for a resync.
func NewAbortEventError(err error) error { return &AbortEventError{err} }

// AbortEventError stops the event; a resync follows.
type AbortEventError struct{ Err error }

func (e *AbortEventError) Error() string { return fmt.Sprintf("%v: %v", ErrAbort, e.Err) }

// Unwrap makes it both ErrAbort and the error that it was made of.
func (e *AbortEventError) Unwrap() []error { return []error{ErrAbort, e.Err} }

// PanicError is a panic of a handler.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }
