// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-docker-plugin is Docker's managed plugin: a door, and behind
// it this machine's agent. What the engine asks is forwarded to the agent's
// socket. Where no agent has ever answered there, the plugin has a ledger of its
// own, in its data directory, and says in its status that it does not share the
// pods' plan.
//
// The two never mix. Pools of the own ledger are in address spaces of their own
// (PluginLocal, PluginGlobal), so that each pool's ID says where it belongs, for
// as long as there is the pool. Once an agent has answered, which is written
// down before the engine hears it, new pools are the agent's only, and while it
// is away they are refused.
//
// The flags are the plugin's paths as docker/plugin/config.json has them. The
// data directory has the database and the socket of the local API:
//
//	cadastre --socket /var/lib/docker/plugins/ID/propagated-mount/agent.sock status
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stderr, os.Exit)
	stop()
	os.Exit(code)
}
