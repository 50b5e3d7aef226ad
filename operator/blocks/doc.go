// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package blocks is the book of node CIDRs: which Node object holds which
// block of which range. It is pure: no clock, no lock, no API server.
//
// A Set has pools, and every pool ranges of one family. A node gets one block
// of every pool, or none at all. Which blocks of a range are free is kept by
// ledger/addrspace; who holds them is kept here, by owner: the name and the
// UID of a Node object, so that a node that was deleted and made again under
// its name is another owner.
//
//	pending   given to an owner, who may not know it yet
//	held      the owner is known to have it
//	cooling   given back, and not lent again before the cool-down is over
//	reserved  never lent: a range of services, an exclusion
//
// What a Node object says is a fact: Occupy records it even where somebody else
// holds the block, or where no range has it, and tells so. A block that two
// owners claim is free when both are gone, and a range that is added later
// begins without what is already claimed of it. Blocks may have any size.
//
// A Choice narrows an allocation: blocks that the owner gets before any other,
// and prefixes that it must not get although they are free in the book.
//
// Operations cost the same at any fullness. Only conflicts, and changes of the
// ranges, look at all that is held. A Set is not safe for concurrent use: its
// owner locks. An operation that fails has changed nothing, but for Occupy, as
// said above.
//
// Example: a /16 for nodes of /24 each, of which the first /20 is for services.
//
//	s := blocks.New(blocks.Policy{CoolDown: time.Minute})
//	err := s.AddRange(blocks.Range{Prefix: netip.MustParsePrefix("10.1.0.0/16"), Bits: 24})
//	s.Reserve(netip.MustParsePrefix("10.1.0.0/20"))
//	blocks, err := s.Allocate(blocks.NewOwner("a", uid), nil, now) // 10.1.16.0/24, pending
package blocks
