// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain answers why a pod has no address and which owner an address had, as a
// tree of plain sentences with the nearest fix as a command. It is pure: a caller collects
// the views of one moment in a Node, with the history and the event records that concern
// the subject.
//
// Functions for the subjects return a Tree: Pod, Container, Address, ThisNode and Pool.
// Tree.Text prints it. Reason turns the failure of an ADD into one sentence, for the CNI
// error and the pod's event.
//
// # Ownership and concurrency
//
// No function changes its arguments or keeps them. Any goroutine may call them.
//
// # Failure
//
// There are no errors: a view that is missing makes the tree say what cannot be told.
package explain
