// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-operator is the cluster daemon: package operator with AddressPools as
// the only source of addresses. The programs with a cloud are in the folder providers.
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

	"github.com/cadastre/cadastre/operator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := operator.Run(ctx, operator.Options{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr})
	stop()
	os.Exit(code)
}
