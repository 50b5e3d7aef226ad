// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package southbound makes the values of the network true with the Linux plugins of a
// Ligato agent: Sink is a controller.Sink over Ligato's KVScheduler.
//
//	pod/NETWORK/CONTAINER/eth0   a VETH pair, one end in the pod's network namespace; the
//	                             addresses, routes and permanent neighbours of both ends
//	route/10.1.7.0/24            a route via an address on a link of this node, metric 51930
//	node, network/default        nothing to make in the main table
//
// # Contract
//
// The Sink is the only northbound of its scheduler: a resync removes each value of the
// scheduler that is not of the Sink. Links without Ligato's alias of this agent are never
// changed, and neither are the addresses of the node's own links.
//
// Each transaction is one of Ligato, after one that removes routes and neighbours. A resync
// reads the kernel (Ligato's full resync). An update that fails is followed by a resync, so
// that nothing remains of a reverted one. Errors name the values (controller.ValueErrors);
// a value that Ligato leaves pending counts as failed. A route to another node whose
// gateway is on no link waits without an error, and Run makes it when an address comes.
//
// # What Ligato's Linux plugins cannot carry
//
// VXLAN and WireGuard links, rules, routing tables, unreachable routes and masquerade.
// CheckConfig refuses configurations that need them, and Commit refuses their values.
package southbound
