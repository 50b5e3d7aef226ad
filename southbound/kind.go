// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
)

// ErrForeign is wrapped by errors about an object of another program that is in the way.
// A kind never changes such an object.
var ErrForeign = errors.New("an object of another program is in the way")

// ErrGone is wrapped by errors about a value whose owner has ended, such as a pod whose network
// namespace is gone. The value is not made again: it waits until nothing wants it any more. In
// a transaction that reverts on failure, the error is one like any other.
var ErrGone = errors.New("its owner has ended")

// errUnchanged is wrapped by errors that Unchanged returns.
var errUnchanged = errors.New("nothing was changed")

type unchanged struct{ error }

func (e unchanged) Unwrap() []error { return []error{e.error, errUnchanged} }

// Unchanged returns an error of Create or Update after which the value is as it was before the
// call: there is nothing to undo.
func Unchanged(err error) error { return unchanged{err} }

// Kind makes the values of one kind true. Read turns the message of a value into a plan P, once;
// all other functions get that. The scheduler calls them from one goroutine at a time, except for
// Sweep and Watch. Their errors may wrap ErrAway. Functions without a comment "required" may be
// nil.
type Kind[P any] struct {
	Name   string // required; in logs and in the status, such as "linux wire"
	Prefix string // required; of the keys. One that does not end with a slash is the only key.

	// Read returns the plan of a value, or why it can never be made. Required.
	Read func(key string, m proto.Message) (P, error)
	// Needs returns the keys of the values that must be made before. Until then the value is
	// pending, which is not an error. No value needs itself through others.
	Needs func(want P) []string
	// Create makes a value. It succeeds if the value is made already, and repairs what a crash
	// has left half made. After an error any part of the value may be made: the scheduler calls
	// Delete, unless the error wraps ErrForeign or ErrGone, or is Unchanged. Required.
	Create func(ctx context.Context, key string, want P) error
	// Update changes a value that was made, without an interruption of its traffic where that
	// is possible. After an error any part of it may be done: the scheduler calls Update back to
	// what was, with the same exceptions. nil: Create does it.
	Update func(ctx context.Context, key string, was Made[P], want P) error
	// Delete removes a value. When it returns, the value has no effect any more. A kind with
	// Sweep may leave detached objects for it. A missing value is not an error. Required.
	Delete func(ctx context.Context, key string, was Made[P]) error
	// Retrieve returns the values that are made now, as the actual state alone shows them:
	// those of this process, of an earlier one, and what a crash has left. wanted is ordered by
	// key, for what the actual state does not show, such as names. A value that is as wanted has
	// the message of the wanted one. Any other message describes what is there. Required.
	Retrieve func(ctx context.Context, wanted []Wanted[P]) ([]controller.Value, error)

	// Same reports whether two plans are equal. nil: the messages decide.
	Same func(x, y P) bool
	// Recreates reports whether only Delete and Create can make a change. The scheduler then
	// calls these, and removes the values that need this one for that time.
	Recreates func(key string, was Made[P], want P) bool
	// StandIn returns the value that stands in for a pending one, nil for none. It has no needs,
	// and does not count as made: values that need its key are pending too.
	StandIn func(want P) proto.Message
	// Inspect compares one value with the actual state without reading all of it, changes
	// nothing, and returns the differences, nil if there are none. nil: Retrieve does it.
	Inspect func(ctx context.Context, key string, want P) error
	// Prepare reads the actual state once for all keys of a transaction. After Retrieve, a
	// resync does not call it.
	Prepare func(ctx context.Context, keys []string) error
	// Sweep removes a batch of detached objects and reports whether there are more. Run calls
	// it after deletions and after a resync, beside the other functions.
	Sweep func(ctx context.Context) (more bool, err error)
	// Notes returns what the operator should know beside the values, such as a firewall that
	// drops packets of pods. Any goroutine may call it.
	Notes func() []string
	// Watch calls changed with the key of each value that may not be complete any more, or with
	// "" if all may be, until ctx ends. Once its subscription stands, it calls changed with "",
	// because no earlier change was announced; one that compares periodically need not. The
	// scheduler compares these values with the actual state and repairs them; see Repairs in the
	// package. It also tries failed values again, if what was in their way may be gone: with ""
	// all of them, with a key if that was a foreign object.
	Watch func(ctx context.Context, changed func(key string)) error
	// Close releases what the functions have opened. What was made stays.
	Close func() error
}

// Made is what is made of a value, or what Retrieve has found.
type Made[P any] struct {
	Message proto.Message
	Plan    P
	IsRead  bool // the message was that of a value: otherwise it describes, and there is no plan
}

// Wanted is a value that is wanted.
type Wanted[P any] struct {
	Key     string
	Message proto.Message
	Plan    P
}
