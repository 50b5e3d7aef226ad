// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// panicError is the panic of a kind. It leaves open what the call has done.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// guard turns a panic of a kind into an error: the mistake fails one value, not the
// process, and the state of the other values stays as it is known.
func guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return call()
}

// hasPanicked reports whether err is the panic of a kind: then any part of the call
// may be done.
func hasPanicked(err error) bool {
	_, panicked := errors.AsType[*panicError](err)
	return panicked
}
