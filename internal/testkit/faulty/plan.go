// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faulty

import "time"

// The operations, as a plan is asked about them.
const (
	Get   = "get"
	List  = "list"
	Txn   = "txn"
	Watch = "watch"
)

type kind int

const (
	none kind = iota
	fail
	wait
	tear
	cut
)

// Fault selects what happens to one operation; the zero Fault is nothing.
type Fault struct {
	kind    kind
	delay   time.Duration
	release <-chan struct{}
	batches int
	err     error
}

// Fail answers ErrInjected, and nothing is done.
func Fail() Fault { return FailWith(ErrInjected) }

// FailWith answers err, and nothing is done.
func FailWith(err error) Fault { return Fault{kind: fail, err: err} }

// Tear does what was asked and answers ErrInjected, whatever the answer was, so
// the caller cannot know the outcome. A watch that was opened is closed again.
func Tear() Fault { return TearWith(ErrInjected) }

// TearWith does what was asked and answers err, whatever the answer was.
func TearWith(err error) Fault { return Fault{kind: tear, err: err} }

// Delay waits before it does what was asked, which it does not if the context
// or the store ends first.
func Delay(d time.Duration) Fault { return Fault{kind: wait, delay: d} }

// Hold is a Delay until release is closed, for tests that need no clock.
func Hold(release <-chan struct{}) Fault { return Fault{kind: wait, release: release} }

// Cut lets a watch deliver n batches and then ends it with ErrInjected. To
// other operations nothing happens.
func Cut(n int) Fault { return CutWith(n, ErrInjected) }

// CutWith lets a watch deliver n batches and then ends it with err.
func CutWith(n int, err error) Fault { return Fault{kind: cut, batches: n, err: err} }

// Plan chooses the fault of the n-th operation (the first is 1, all kinds of
// operations are counted together). It is never called twice at the same time,
// so it may keep state.
type Plan func(op string, n int) Fault

// At is a plan with one fault, for the k-th operation.
func At(k int, f Fault) Plan {
	return func(_ string, n int) Fault {
		if n == k {
			return f
		}
		return Fault{}
	}
}

// On is a plan with one fault, for the k-th operation of kind op.
func On(op string, k int, f Fault) Plan {
	seen := 0
	return func(asked string, _ int) Fault {
		if asked != op {
			return Fault{}
		}
		if seen++; seen == k {
			return f
		}
		return Fault{}
	}
}

// Always is a plan with a fault for every operation of kind op.
func Always(op string, f Fault) Plan {
	return func(asked string, _ int) Fault {
		if asked == op {
			return f
		}
		return Fault{}
	}
}
