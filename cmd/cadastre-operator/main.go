// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-operator is the cluster daemon: it gives nodes their
// podCIDRs, or keeps pools of addresses of theirs at watermarks; it reflects
// Kubernetes' state into the cluster store, and gives up the node IDs of nodes
// that are gone. See wire.go for what it is made of.
//
// Of several operators one works, which is elected by a Lease; the others wait.
// A controller runs if it is named by --controllers and has the flags that it
// needs; the log says why one does not.
//
// Exit codes:
//
//	0  ended by a signal, all work done and the Lease given back
//	1  failed, or another process leads now: to be started again
//	2  used in a way it cannot be
//
// Example, in a pod:
//
//	cadastre-operator --allocate-node-cidrs --cluster-cidr=10.1.0.0/16,fd00::/48 \
//		--service-cluster-ip-range=10.96.0.0/12 --kvdb-endpoints=https://10.0.0.1:2379
//	cadastre-operator --netresource-provider=clusterpool --release-excess-ips
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	host := host{hostname: os.Hostname, clients: connect, store: openStore, klog: klog.SetSlogLogger}
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, host)
	stop()
	os.Exit(code)
}
