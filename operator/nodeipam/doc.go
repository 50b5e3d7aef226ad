// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeipam assigns podCIDRs to nodes. It has the names that Kubernetes' own node
// IPAM has published, and its four types:
//
//	RangeAllocator    takes a block of each cluster range and writes it to the Node object
//	CloudAllocator    copies the aliases of the machine from the cloud to the Node object
//	IPAMFromCluster   takes a block, adds it to the machine's aliases, and writes it to the Node object
//	IPAMFromCloud     is CloudAllocator, and compares again after each interval
//
// # Ownership
//
// Node objects are authoritative: a node has the blocks in its spec.podCIDRs, whichever
// process wrote them. The Set of package blocks is a copy, which every new leader builds
// again. It also holds blocks that were offered to a node and are not in its Node object
// yet (pending), and blocks that cool down.
//
// A block that was offered to a Node object stays with it until the object is gone, or has
// other podCIDRs: they can be set only once. So a patch of unknown outcome is repeated with
// the same blocks, after reading back, and frees nothing. An object is gone if the API
// server itself, not a cache, has none of its name and UID. An object that is being deleted
// keeps its blocks, and gets none.
//
// A deleted Node object does not free its blocks: pods of it may live on, and their agent
// claims the blocks until the last of them has ended. Every choice reads the claims
// (Deps.Claims, implemented by package agentclaims). No node is offered a block that
// overlaps another node's claim; a node whose agent holds a block gets that block again.
// The claims are read after the block is recorded for the node, so that every claim counts
// that was written while another Node object had the block. A later claim is decided
// between the agents: the agent that does not hold the block waits.
//
// Every patch carries the UID and the resourceVersion of the object that it changes. With a
// Fence, the Node object first gets an intent (IntentAnnotation): a new leader lists the
// nodes, and finds which blocks a patch under way may still set. See Fence.
//
// A node whose podCIDRs cannot be parsed, are outside of all ranges, or belong to another
// node is reported: an event, a condition and a metric, each once. Its CIDRs are respected
// like all others. It delays no other node, neither at the start nor later.
//
// # Concurrency
//
// Run works on several nodes at a time, on each of them in one goroutine. All methods may
// be called from any goroutine; those of CIDRAllocator wait for the API server. Every
// goroutine that Run starts has ended when it returns.
package nodeipam
