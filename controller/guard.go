// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"iter"
	"runtime/debug"
)

// errGoexit is the panic of a call that has ended its goroutine.
var errGoexit = errors.New("runtime.Goexit was called")

// caller makes the loop's calls of handlers, committers, the sink and producers in a
// coroutine. A call that ends its goroutine (runtime.Goexit, as t.FailNow does) ends the
// coroutine and not the loop: the loop takes the call for one that has panicked. The loop owns
// the caller and waits for each call. A switch of coroutines costs a tenth of one of
// goroutines by channels.
type caller struct {
	f     func() error // the call to make
	next  func() (result, bool)
	stop  func()
	alive bool // the coroutine runs, or waits for a call
}

// result is the outcome of a call.
type result struct {
	err   error
	ended bool // the call has ended its goroutine
}

// call makes a call, and turns a panic into an error. A call must not make another one.
func (x *caller) call(f func() error) error {
	if !x.alive {
		x.next, x.stop = iter.Pull(x.serve)
		x.alive = true
	}
	x.f = f
	r, _ := x.next()
	x.f = nil
	if r.ended {
		x.alive = false
		go x.stop() // the coroutine passes its end on to who stops it
	}
	return r.err
}

// close ends the coroutine.
func (x *caller) close() {
	if x.alive {
		x.alive = false
		x.stop()
	}
}

// serve makes calls until one of them ends the coroutine, or close does.
func (x *caller) serve(yield func(result) bool) {
	for x.make(yield) {
	}
}

// make makes one call, passes its outcome on, and reports whether there is a further call.
func (x *caller) make(yield func(result) bool) (more bool) {
	r := result{ended: true}
	defer func() {
		if v := recover(); v != nil {
			r = result{err: &panicError{value: v, stack: debug.Stack()}}
		} else if r.ended {
			r.err = &panicError{value: errGoexit, stack: debug.Stack()}
		}
		more = yield(r)
	}()
	r.err = x.f()
	r.ended = false
	return more
}

// guard makes a call of the loop, and turns a panic into an error.
func (c *Controller) guard(f func() error) error { return c.caller.call(f) }

// must makes a call that has no error. If it panics, what is staged is not known: nothing is
// committed any more, and the loop ends.
func (c *Controller) must(f func()) {
	err := c.guard(func() error { f(); return nil })
	if err != nil {
		c.broken = NewFatalError(err)
		c.fatal = c.broken
	}
}

// guard turns a panic of a caller's own goroutine into an error.
func guard(f func() error) (err error) {
	defer caught(&err)
	return f()
}

// caught is to be deferred: it makes a panic *err.
func caught(err *error) {
	if v := recover(); v != nil {
		*err = &panicError{value: v, stack: debug.Stack()}
	}
}
