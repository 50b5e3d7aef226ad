// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package linux is a southbound for the Linux kernel: it applies the routes to the pod
// subnets of other nodes in one network namespace.
//
//	route/10.1.7.0/24  NodeRoute to 192.168.16.7  10.1.7.0/24 via 192.168.16.7 proto 202
//	route/10.1.8.0/24  NodeRoute without gateway  unreachable 10.1.8.0/24 proto 202
//	pod/..., node      PodNetwork, NodeNetwork    only kept for Dump
//
// A known subnet without a gateway is unreachable, so that packets to it do not leave by
// the default route. The main CNI plugin (bridge) makes the interfaces of pods, so
// PodNetwork and NodeNetwork are only kept for Dump, and for a vswitch. A gateway must be
// on-link: an existing connected route must reach it.
//
// # Own and foreign routes
//
// The routes of protocol 202 in the main table are own routes, whichever program made
// them: those of an earlier agent are taken over. The sink changes no other route. If
// there is a foreign route to a destination, of any metric, its key fails with errForeign
// and all routes to it stay, also an own route that was there first. A new route is added
// with NLM_F_EXCL. To change one, the sink appends the new route and then removes the old
// one by its protocol. So there is no moment without a route, unless the old one has a
// form that the sink does not make and the kernel cannot hold both; and the sink replaces
// nothing that may have become foreign. A foreign route of another metric that appears
// between the check and the change is noticed at the next check only.
//
// # Failures
//
// A key that fails leaves the routes of before; the other keys go on. If the transaction
// reverts on failure, all of it is undone. A resync applies the difference to the kernel's
// state: it does not touch routes that are correct, and removes own routes that are not
// wanted. A route is correct only while its gateway is on-link on its interface. Run
// repeats failed keys, as the transaction requires, until a newer transaction covers them.
// It does not repeat invalid values (a destination that is not in canonical form, a
// gateway of the other family): only a newer value corrects them. Close leaves the routes
// in the kernel.
//
// # Concurrency
//
// The event loop calls Commit. Any goroutine may call Dump and Close. One goroutine calls
// Run, once. A transaction, an attempt of Run and a Dump exclude each other. Writing a
// route needs CAP_NET_ADMIN, and entering another namespace needs CAP_SYS_ADMIN; nothing
// else needs rights.
package linux
