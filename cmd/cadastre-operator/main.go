// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-operator is the cluster daemon. It assigns podCIDRs to nodes, or
// keeps their pools of addresses at watermarks; it reflects Kubernetes' state into
// the cluster store, and releases the IDs and claims of nodes that are gone. wire.go
// assembles it.
//
// One of several operators is elected by a Lease and runs the controllers; the
// remaining ones wait. A controller runs if --controllers names it and it has the
// flags that it needs; the log gives the reason for each one that does not.
//
// Exit codes:
//
//	0  ended by a signal, all controllers ended and the Lease released
//	1  failed, or another process leads now: start it again
//	2  the command line is wrong
//
// In a pod:
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
