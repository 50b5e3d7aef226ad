// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package rebuild decides which leases a database had that was lost, from what the
// witnesses show. They show the sandboxes of the runtime, the addresses in their
// network namespaces, and the results that runtimes keep of each CNI ADD.
//
// Make is pure: the same World and Input give the same Plan. An address gets the key of
// its attachment, so that the runtime's DEL frees it. An address in use without a known
// owner, or in two namespaces, is quarantined: it is never allocated. What the views do
// not show for certain is kept: an attachment whose container may have ended keeps its
// address if a witness is missing. The addresses of Docker's networks are listed only:
// the driver itself restores them from the engine's view.
//
// A Plan is Complete if no needed evidence is missing. Apply writes it to an empty ledger
// in one commit, all or nothing.
//
// What it cannot know: addresses that cooled, exclusions, quarantines, and claims of
// plugins through the Go API that no link shows.
//
// The package has no state. Any goroutine may call it.
package rebuild
