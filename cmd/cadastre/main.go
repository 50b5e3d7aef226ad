// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre is the command line for people: what a node ID means in
// addresses, which addresses are allocated and to whom, and how the node's agent is.
// kubectl finds it as a plugin where it is installed as kubectl-cadastre.
//
// plan (without --against), restore and database work on files; every other verb asks the
// agent over its unix socket. All of them print with -o table, wide, json or
// yaml. Exit codes:
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
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}

// run is the whole program; it returns the exit code.
func run(
	ctx context.Context,
	args []string,
	stdin io.Reader,
	stdout, stderr io.Writer,
	getenv func(string) string,
) int {
	return newApp(stdin, stdout, stderr, getenv).run(ctx, args)
}
