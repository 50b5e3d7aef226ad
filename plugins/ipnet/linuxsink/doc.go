// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package linuxsink is a southbound that is the Linux kernel: it makes the
// routes to the pod subnets of other nodes true in one network namespace.
//
//	route/10.1.7.0/24  NodeRoute to 192.168.16.7  10.1.7.0/24 via 192.168.16.7 proto 202
//	route/10.1.8.0/24  NodeRoute without gateway  unreachable 10.1.8.0/24 proto 202
//	pod/..., node      PodNetwork, NodeNetwork    only remembered
//
// A known subnet without a gateway is closed, so that packets to it do not
// leave by the default route. The interfaces of pods are made by the main CNI
// plugin (bridge), so PodNetwork and NodeNetwork are kept for Dump, and for a
// vswitch that is yet to come. A gateway must be on-link, reached by a
// connected route that exists already.
//
// # Ours and not ours
//
// Ours are the routes with Options.Protocol in Options.Table, whoever made
// them; what agents before this one have left is ours again. Nothing else is
// ever changed, replaced or removed. Where somebody else has a route to a
// destination, of whatever metric, its key fails with ErrForeign and all stays
// as it is, also a route of ours that was there first. A route is added with
// NLM_F_EXCL. For one that changes, the new one is appended and then the old one
// removed by its protocol: there is no moment without a route (unless the old
// one is of a form that we do not make and the kernel cannot hold both), and
// nothing is replaced that may have become somebody else's. A route of another
// metric that is made between our look and our change is noticed at the next
// look only.
//
// # What a failure leaves behind
//
// A key that fails leaves what was there before, the others go on; if the
// transaction reverts on failure, all of it is undone. A resync is the
// difference to what the kernel has: routes that are as they should be are not
// touched, ours that nobody wants are removed. A route is as it should be only
// while its gateway is on-link on its interface. Failed keys are tried again by
// Run, as the transaction says, until a newer one covers them. Values that
// are invalid (a destination that is not written in the one canonical form, a
// gateway of the other family) are not: only a newer value mends them. Close
// leaves the routes in the kernel.
//
// # Who may call
//
// Commit is called from the event loop, Dump and Close from anywhere, Run once,
// from a goroutine of its own. A transaction, an attempt of Run and a Dump wait
// for each other. No rights are needed until a route is to be written, which
// needs CAP_NET_ADMIN; entering Options.Namespace needs CAP_SYS_ADMIN.
//
// Example, a node's agent:
//
//	sink, err := linuxsink.New(linuxsink.Options{OnFailure: func(key string, err error) {
//		log.Error("southbound value is not true", "key", key, "error", err)
//	}})
//	defer sink.Close()
//	loop := controller.New(cfg, controller.Deps{Sink: sink, ...})
//	parts.Go(func() error { return sink.Run(ctx) })
//
// and after node 7 came, ip route has
//
//	10.1.7.0/24 via 192.168.16.7 dev eth0 proto 202
package linuxsink
