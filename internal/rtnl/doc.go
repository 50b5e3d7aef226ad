// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package rtnl sends batches of requests to the kernel over netlink, receives what the kernel
// announces, decodes its messages, and opens sockets in other network namespaces.
//
// A Socket belongs to the network namespace in which it was opened, and any goroutine may
// use it. The kernel executes the requests of a batch of usual size (128, or 64 KiB) within
// one system call. So a process that is killed has either sent all of them or none. A
// larger batch takes several calls. Each request succeeds or fails alone.
//
// A Monitor receives the announcements of one network namespace for all who need them:
//
//	kernel -> one socket a family -> Decode, once -> News of each Follower, in its own goroutine
//
// The slowest follower determines how fast the socket is read. If its queue overruns, all
// followers learn that anything may have changed.
//
// A Namespace is an open network namespace, which lives at least as long as it is open.
// Entering one needs CAP_SYS_ADMIN, changing anything there CAP_NET_ADMIN.
package rtnl
