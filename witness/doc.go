// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package witness holds what sources outside the ledger show about this node: the
// kernel, the container runtime, the Docker engine and the cluster. Each source is
// read by the package of its name below this one; the types here are the views that
// they return, and World.Verdict compares one lease with them.
//
// An address on a link is evidence only if packets for it arrive there: World.Sightings
// decides that, with the routes of the host, its bridges, and what runtimes have assigned.
//
// # Ownership and concurrency
//
// A view is immutable after its reader has returned it: any goroutine may read it.
// The package has no state.
//
// # Failure
//
// A reader that cannot see everything returns an error, never a part: absence from a
// view proves something only because the view is complete. A view that is complete for
// some addresses only says so (KernelView.Hidden). A Verdict is Unproven whenever a
// required witness is missing.
package witness
