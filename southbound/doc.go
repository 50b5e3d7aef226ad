// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package southbound makes the values of transactions true. A Kind makes the values
// of one kind, such as wires of pods or routes. The Scheduler is the controller.Sink that
// orders their calls.
//
//	wanted by the loop            made by the kinds
//	tunnel/7                      tunnel/7
//	route/10.1.7.0/24  needs it   route/10.1.7.0/24   after tunnel/7, and removed before it
//	route/10.1.8.0/24             pending: waits for tunnel/8
//
// # States of a value
//
// A wanted value is made, pending or failed. It is pending while a value that it depends
// on is not made, which is not an error: it is made as soon as that value is. If a value
// goes away, the values that depend on it are removed before and become pending. Another
// value may stand in for a pending one (Substituter). If a value fails, the scheduler restores
// what was made before; the other values go on. A value without a kind is only kept, and
// counts as made.
//
// # Transactions
//
// An update calls kinds only for the values that differ from the made ones, and for
// those that depend on them. Its cost does not grow with the number of other values. A
// resync first retrieves the actual values of all kinds, then applies the difference. It
// does not touch a value that is right. It removes a value that is not wanted, also one of
// an earlier process. Removals come first, because an address of a removed value may be in
// a new one.
//
// If a transaction reverts on failure, all of it is undone in the opposite order, also if
// its context has ended. A call that has failed is undone as well, since any part of it may be
// done. What cannot be undone is named (controller.RemainError). A value of such a transaction that would be pending is a failure
// (ErrPending): its caller takes success as the sign that the value is made.
//
// # Failures
//
// The error of a transaction is controller.ValueErrors, unless a kind could not be
// retrieved or a step could not be undone. Run repeats failed values as the transaction
// requires, until a newer transaction covers them. It does not repeat values that can never be
// made: only a newer value corrects them.
//
// # Repairs
//
// Run compares the values that a Watcher announces with the actual state, and makes those
// that differ. The first and the second repair of a value come at once. From the third within
// a minute each repair waits twice as long as the one before, up to 20 s, because another
// program insists as well. A note of the status names such values, and a value that waits
// counts as failed. A value that differs because a value that it depends on does, is repaired
// with that value and does not count. After a minute without a repair all is forgotten.
//
// # A data plane that is away
//
// Values may be made by another program, such as VPP. While it is away (ErrAway), all values are
// pending, and a transaction that reverts on failure fails with ErrPending. Run tries to retrieve
// all values. When it can, it makes what is wanted by then. So a value that was removed
// meanwhile, or that a failed call has left, goes before another one is made.
//
// # Concurrency
//
// The event loop calls Commit. Any goroutine may call Dump, Status and Close. One goroutine
// calls Run, once. A transaction, an attempt of Run and a Dump exclude each other, so a
// Kind needs no lock, except for Sweep and Watch.
package southbound
