// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package blocks holds the owners of node CIDRs: which Node object has which block of
// which range. It reads no clock and no API server.
//
// A Set has pools. A pool is a number of ranges of one family. A node gets one block of
// every pool, or none at all. The free blocks of a range are a Space of
// ledger/addrspace; this package adds the owners. The state of a block:
//
//	pending   allocated for an owner that may not know it yet
//	held      the owner knows it
//	cooling   released, and not allocated again before the cool-down is over
//	reserved  never allocated: a service range, an exclusion
//
// A Node object is authoritative. Occupy records its blocks even if another owner holds
// them, or no range contains them, and returns the conflict. A block of two owners is
// free when both have released it. A range that is added later begins without the blocks
// that owners hold of it already. Blocks may have any size.
//
// A Choice narrows an allocation: blocks to take before any other, and free blocks that
// the owner must not get.
//
// An operation costs the same at any fullness. Only conflicts and changes of the ranges
// look at all blocks. An operation that fails changes nothing, except Occupy. A Set is
// not safe for concurrent use: its user locks.
package blocks
