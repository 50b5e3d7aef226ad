// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// fault is a panic of bbolt, which a damaged file causes, or a fault of the
// mapped file, which a truncated one causes. bbolt may hold its locks then.
type fault struct{ value any }

// Error says what was wrong. bbolt's own words say what it has found; those of the Go
// runtime are about bbolt's program.
func (e *fault) Error() string {
	what := strings.TrimPrefix(fmt.Sprint(e.value), "assertion failed: ")
	if _, ok := e.value.(runtime.Error); ok {
		what = "a page refers to what is outside of the file"
	}
	return fmt.Sprintf("%v: %s", ErrDamaged, what)
}

// Unwrap is ErrDamaged.
func (e *fault) Unwrap() error { return ErrDamaged }

// guard runs f and turns panics and faults into errors.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = &fault{v}
		}
	}()
	return f()
}

// guard runs use, which may touch the database. After a fault, and after a change
// by another program, the database is not touched any more, because bbolt may hold
// its locks for ever.
func (f *File) guard(use func() error) error {
	if failed := f.failed.Load(); failed != nil {
		<-f.told
		return *failed
	}
	err := guard(use)
	var broken *fault
	if errors.As(err, &broken) || errors.Is(err, errForeign) {
		err = f.fail(err)
	}
	return err
}

// fail notes that the file cannot be used any more and tells the owner, once. All other
// callers wait until the owner knows.
func (f *File) fail(err error) error {
	if f.opened {
		err = fmt.Errorf("database %s: %w", f.path, err)
	}
	if f.failed.CompareAndSwap(nil, &err) {
		if f.opened && f.opt.Fail != nil {
			f.opt.Fail(err)
		}
		close(f.told)
	}
	<-f.told
	return *f.failed.Load()
}
