// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the IPAM plugin. It derives this node's subnets from its node ID, or
// takes them from another component, hands them to the ledger as blocks, and claims and
// releases the addresses of pods.
//
// The loop calls the handler methods. Any goroutine may call the methods of API: the
// derived subnets are an immutable snapshot, and the ledger owns the leases.
// AllocatePodIP and ReleasePodIP are durable when they return. For AddPod and DeletePod
// the plugin only stages; the loop commits. A revert releases exactly what the event
// claimed.
//
// A resync applies the known state as a difference and removes no lease. Blocks that are
// no longer this node's drain. An address of an own block that a pod uses without a lease
// is quarantined.
package ipam
