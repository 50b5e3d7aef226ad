// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package interfaces keeps addresses of this machine's network interfaces in its cloud
// free for pods, with podBlocks interfaces: as the daemon of the AWS VPC CNI does, for any
// cloud.Cloud.
//
// # Ownership
//
// The agent's ledger has the leases and the blocks. This plugin has the interfaces and which
// block is on which of them: one map, whose durable form are the plugin's records. It calls
// the cloud. It changes blocks by an ipam.InterfaceChange, and waits for the event loop's
// commit. Pods get addresses of the ledger in the usual way, also without the cloud.
//
// # Order
//
// A block from the cloud is in the ledger when the cloud has confirmed it, by the answer
// to a call or by a reading. A block leaves the ledger, durably, before the cloud gets it
// back, and only if none of its addresses is held, cooling or quarantined. Until the cloud
// no longer shows it, it stays in the pool ipam.ReturningPool. A reading that is older than
// the return does not bring it back, nor does one after a crash.
//
// # Failure
//
// After an error of the cloud the outcome of the call is unknown: the next step is a
// reading. What one reading lacks stays until a second reading lacks it as well. A block
// with leases that the cloud no longer has gives no new address, and is reported.
//
// # Concurrency
//
// Run's goroutine makes all calls, and alone has the map. Any goroutine may call the other
// methods, which read the published status; none of them waits for the cloud.
package interfaces
