// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var (
	// ErrEventQueueFull is returned by PushEvent while there is no room.
	ErrEventQueueFull = errors.New("queue with events is full")
	// ErrClosedController is returned by PushEvent, and given to Done, once the loop is closing.
	ErrClosedController = errors.New("controller was closed")
	// ErrEventLoopIsAborting is given to Done after a fatal error.
	ErrEventLoopIsAborting = errors.New("event loop is aborting")
	// errStarted is returned by Run and AfterInit of a loop that was started or closed before.
	errStarted = errors.New("the event loop was started or closed before: want a new one")
	// ErrExpired is given to Done for an event that was not processed in time.
	ErrExpired = errors.New("event was not processed before its deadline")
	// errBlockingFollowUp is returned by FollowUp: waiting for it would wait for ever.
	errBlockingFollowUp = errors.New("a follow-up event cannot be blocking")
	// ErrFollowUpDepth is returned by FollowUp if too many events follow from one another.
	ErrFollowUpDepth = errors.New("too long a chain of follow-up events")
	// ErrWaitInLoop is returned by PushEvent of a blocking event, by PushEventWait and by Close if the
	// event loop itself calls them, for example in a handler. The loop would wait for itself.
	ErrWaitInLoop = errors.New("the event loop would wait for itself: use FollowUp of the transaction")
	// ErrMalformedEvent is returned by PushEvent for a nil event, and given to Done for one whose method
	// panics, whose Method is unknown, or which has a value without a key.
	ErrMalformedEvent = errors.New("malformed event")
	// errNoResync ends a loop that got no DBResync in time.
	errNoResync = errors.New("no resync with the database before the deadline")
	// errNotUpdateEvent is given to Done for an event of method Update without its methods.
	errNotUpdateEvent = errors.New("event of method Update does not implement UpdateEvent")

	// errMessageType is wrapped by the refusal of a value from outside whose key has a message of another type.
	errMessageType = errors.New("message of another type")
	// ErrNoRecord is returned by Query for a sequence number that the history does not have.
	ErrNoRecord = errors.New("no record of this event")

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

// Unwrap returns ErrAbort and the error itself.
func (e *AbortEventError) Unwrap() []error { return []error{ErrAbort, e.Err} }

// panicError holds the panic of a handler.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// ValueErrors holds errors of single values, by southbound key. A Sink that returns
// them has applied all other values of the transaction.
type ValueErrors map[string]error

func (e ValueErrors) Error() string {
	var s strings.Builder
	for i, k := range e.failed() {
		if i > 0 {
			s.WriteString("; ")
		}
		fmt.Fprintf(&s, "%s: %v", k, e[k])
	}
	return s.String()
}

// Unwrap returns the errors in the order of their keys.
func (e ValueErrors) Unwrap() []error {
	var errs []error
	for _, k := range e.failed() {
		errs = append(errs, e[k])
	}
	return errs
}

// failed returns the keys that have an error.
func (e ValueErrors) failed() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(e)), func(k string) bool { return e[k] == nil })
}

// RemainError is part of the error of a Sink whose transaction has RevertOnFailure. It names a
// value that could not be restored: any part of it may be made.
type RemainError struct {
	Key string
	Err error
}

func (e *RemainError) Error() string { return fmt.Sprintf("undo: %s: %v", e.Key, e.Err) }

// Unwrap returns the reason.
func (e *RemainError) Unwrap() error { return e.Err }

// valueErrors returns the ValueErrors that err consists of. It returns nil if err
// holds any other error, which is not of single values.
func valueErrors(err error) ValueErrors {
	for err != nil {
		if e, ok := any(err).(ValueErrors); ok {
			return e
		}
		several, ok := err.(interface{ Unwrap() []error })
		switch {
		case !ok:
			err = errors.Unwrap(err)
		case len(several.Unwrap()) == 1:
			err = several.Unwrap()[0]
		default:
			return nil
		}
	}
	return nil
}
