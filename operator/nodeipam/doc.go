// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeipam gives nodes their podCIDRs. It has the names that Kubernetes'
// own node IPAM has published, and its four types:
//
//	RangeAllocator    takes a block of each cluster range and writes it to the Node object
//	CloudAllocator    copies what a cloud routes to the machine to the Node object
//	IPAMFromCluster   takes a block, has the cloud route it, and writes it to the Node object
//	IPAMFromCloud     is CloudAllocator, but looks again and again
//
// # Who owns what
//
// Node objects are the truth: what a node has in spec.podCIDRs it has, whoever
// wrote it. The book (package blocks) is a copy of that, made anew by whoever
// begins to lead, and what is more in it: blocks that were offered to a node
// and are not in its Node object yet (pending), and those that cool down.
//
// A block that was offered to a Node object is that object's until the object is
// gone, or has others: podCIDRs can be set once only. So a patch of unknown
// outcome is repeated with the same blocks, after reading back, and frees
// nothing. Gone is an object when the API server itself, not a cache, has none
// of its name and UID. Objects that are being deleted keep their blocks, and
// get none.
//
// That a Node object is gone does not free its blocks: pods of it may live on,
// and their agent claims the blocks until the last of them has ended. Claims
// (Deps.Claims, read by package agentclaims) are looked at with every choice. No
// node is offered a block that overlaps another node's claim; a node whose agent
// holds a block gets that one again. The claims are read after the book has the
// block for the node, so that every claim counts that was written while another
// Node object had the block. A later claim is decided between the agents: the
// one that does not hold the block waits.
//
// Every patch says which object it is for (UID), and as it was when (its
// resourceVersion). With a Fence the node is told first what it is about to get
// (IntentAnnotation): a new leader lists the nodes, and knows which blocks may
// still be under way, and to which nodes. See Fence.
//
// A node whose podCIDRs cannot be read, are of no range, or are somebody else's
// is reported: an event, a condition and a metric, each once. Its CIDRs are
// respected like all others. It stops nobody else, when the allocator starts as
// little as later.
//
// # Threads
//
// Run works on several nodes at a time, on each of them in one goroutine. All
// methods may be called from any goroutine; those of CIDRAllocator wait for the
// API server. Everything that Run starts has ended when it returns.
//
// Example: two ranges of IPv4, one of IPv6, and no services in either.
//
//	a, err := nodeipam.NewAllocator(nodeipam.Deps{Client: client, Nodes: factory.Core().V1().Nodes(), Fence: fence},
//		nodeipam.Settings{Ranges: []blocks.Range{
//			{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Bits: 24},
//			{Prefix: netip.MustParsePrefix("10.8.0.0/16"), Bits: 25},
//			{Prefix: netip.MustParsePrefix("fd00::/48"), Bits: 64, Pool: 1},
//		}, Reserved: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/20")}})
//	factory.Start(ctx.Done())
//	a.Run(ctx.Done())
package nodeipam
