// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre is the command line for people: what a node ID means in
// addresses, which addresses are allocated and to whom, and how the node's agent is.
// As kubectl-cadastre it is a plugin of kubectl: it asks the agent of a pod's node.
//
// plan (without --against), restore and database work on files; every other verb asks the
// agent over its unix socket. All of them print with -o table, wide, json, yaml, name
// or jsonpath=TEMPLATE. Exit codes:
//
//	0  done                            3  no agent answers
//	1  failed                          4  check: there are findings; apply, plan, repair: refused
//	2  used in a way it cannot be      5  check: cannot tell
//
// Example:
//
//	cadastre plan --config conf/contiv.conf --node-id 5
//	cadastre leases --pod default/web -o wide
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := newApp(os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	a.kubectl.plugin = isPlugin(os.Args[0])
	code := a.run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
