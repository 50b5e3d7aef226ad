// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
)

// ErrGaveUp is wrapped by the error of a Write whose last attempt has failed.
var ErrGaveUp = errors.New("gave up")

// Write describes a write of one object of the API server under optimistic
// concurrency. T is the object as it was read.
type Write[T any] struct {
	// Fence is called between reading an object and writing it.
	Fence func(context.Context) error
	// Done reports whether the object needs no write (any more). nil: it does.
	Done func(T) bool
	// Send writes what follows from the object, under the resourceVersion that it
	// was read with, and returns the object as it is then.
	Send func(context.Context, T) (T, error)
	// Read returns the newest version of the object. It is called after a Send
	// that failed: the API server may have applied it all the same.
	Read func(context.Context) (T, error)
	// Retry reports whether the object is to be read and written again after this
	// error of Send. nil: after every error.
	Retry func(error) bool
	// Attempts limits the calls of Send.
	Attempts int
}

// Do writes until the object is done, and returns it as it is then. After the
// last attempt it returns the version that it has read last, with ErrGaveUp and the
// error of Send.
func (w Write[T]) Do(ctx context.Context, object T) (T, error) {
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return object, err
		}
		if w.Done != nil && w.Done(object) {
			return object, nil
		}
		if err := w.Fence(ctx); err != nil {
			return object, err
		}
		written, err := w.Send(ctx, object)
		if err == nil {
			return written, nil
		}
		switch {
		case w.Retry == nil:
		case !w.Retry(err):
			return object, err
		case attempt == w.Attempts:
			return object, w.gaveUp(err)
		}
		newest, readErr := w.Read(ctx)
		if readErr != nil {
			return object, fmt.Errorf("%w, after the write had failed: %s", readErr, err.Error())
		}
		object = newest
		if attempt == w.Attempts {
			if w.Done != nil && w.Done(object) {
				return object, nil
			}
			return object, w.gaveUp(err)
		}
	}
}

func (w Write[T]) gaveUp(err error) error {
	return fmt.Errorf("%w after %d attempts: %w", ErrGaveUp, w.Attempts, err)
}
