// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-agent is the node daemon: it derives the node's subnets and
// leases addresses to pods. Package agent lists its parts.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/cadastre/cadastre/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agent.Main(ctx, agent.Program{
		Name:   "cadastre-agent",
		Args:   os.Args[1:],
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Exit:   os.Exit,
	})
	stop()
	os.Exit(code)
}
