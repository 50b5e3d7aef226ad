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
// A descriptor never changes such an object.
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

// Descriptor makes the values of one kind true. The scheduler calls it from one goroutine
// at a time, except for Sweep and Watch. The error of any method may wrap ErrAway.
type Descriptor interface {
	// Name names the descriptor in logs and in the status, such as "linux wire".
	Name() string
	// Handles reports whether the values under key are of this kind.
	Handles(key string) bool
	// Validate returns the reason why a value can never be made.
	Validate(key string, value proto.Message) error
	// Dependencies returns the keys of the values that must be made before. Until then the
	// value is pending, which is not an error. No value depends on itself through others.
	Dependencies(key string, value proto.Message) []string
	// Create makes a value. It succeeds if the value is made already, and repairs what a
	// crash has left half made. After an error any part of the value may be made: the
	// scheduler calls Delete, unless the error wraps ErrForeign or ErrGone, or is Unchanged.
	Create(ctx context.Context, key string, value proto.Message) error
	// Update changes a value that was made, without an interruption of its traffic where
	// that is possible. After an error any part of it may be done: the scheduler calls Update
	// back to before, with the same exceptions.
	Update(ctx context.Context, key string, before, value proto.Message) error
	// Delete removes a value. When it returns, the value has no effect any more; a
	// descriptor that implements Sweeper may leave detached objects for Sweep. A missing
	// value is not an error.
	Delete(ctx context.Context, key string, value proto.Message) error
	// Retrieve returns the values that are made now, as the actual state alone shows
	// them: those of this process, of an earlier one, and what a crash has left. wanted
	// has the wanted values of this kind, for what the actual state does not show, such as
	// names. A value that is not complete differs from the wanted one.
	Retrieve(ctx context.Context, wanted []controller.Value) ([]controller.Value, error)
}

// Equaler is a Descriptor that compares values in its own way. Without it, values are
// equal if their messages are.
type Equaler interface {
	Equal(key string, x, y proto.Message) bool
}

// Recreator is a Descriptor that can make some changes only by Delete and Create. The
// scheduler then calls these, and removes the values that depend on it for that time.
type Recreator interface {
	Recreate(key string, before, value proto.Message) bool
}

// Substituter is a Descriptor with values that another one stands in for while they are
// pending. A value that stands in has no dependencies, and does not count as made: values
// that depend on its key are pending too.
type Substituter interface {
	// Substitute returns the value that stands in, nil for none.
	Substitute(key string, value proto.Message) proto.Message
}

// Inspector is a Descriptor that compares one value with the actual state without reading
// all of it, and describes what differs.
type Inspector interface {
	// Inspect returns the differences, nil if there are none. It changes nothing.
	Inspect(ctx context.Context, key string, value proto.Message) error
}

// Preparer is a Descriptor that reads the actual state once for all keys of a transaction,
// before the scheduler calls Create, Update and Delete for them. If the transaction is a
// resync, Retrieve has just read the state and Prepare is not called.
type Preparer interface {
	Prepare(ctx context.Context, keys []string) error
}

// Sweeper is a Descriptor whose Delete leaves detached objects. Sweep removes a batch of
// them and reports whether there are more. The scheduler's Run calls it after deletions
// and after a resync, concurrently with the other methods.
type Sweeper interface {
	Sweep(ctx context.Context) (more bool, err error)
}

// Noter is a Descriptor with notes for the operator about what it finds beside its values,
// such as a firewall that drops packets of pods. Any goroutine may call Notes.
type Noter interface {
	Notes() []string
}

// Watcher is a Descriptor that notices changes by other programs. Watch calls changed
// with the key of each value that may not be complete any more, or with "" if all may be,
// until ctx ends. Once its subscription stands, Watch calls changed with "", because no
// earlier change was announced; a Watcher that compares periodically need not. The scheduler
// compares these values with the actual state and repairs them; see Repairs in the package.
// It also tries failed values again, if what was in their way may be gone: with "" all of
// them, with a key if that was a foreign object.
type Watcher interface {
	Watch(ctx context.Context, changed func(key string)) error
}
