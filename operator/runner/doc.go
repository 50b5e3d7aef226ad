// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package runner holds what all controllers of the operator share. These are the
// election of one process among several, the fence that keeps a deposed leader from
// writing, a work queue, writes with conflict handling, and metrics.
//
// A Runner waits for its Lease, makes the Term of that leadership, and starts the
// controllers with it. It stops and awaits all of them when its context ends,
// when one of them fails, when the lease is lost, and when the Term finds that
// another process leads. It renews the lease until the last controller has
// returned. The controllers own everything else.
//
// Queue, Gate and Term may be used from any goroutine. Nothing that this package
// starts is left when Run returns.
package runner
