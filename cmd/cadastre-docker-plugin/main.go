// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-docker-plugin is Docker's managed plugin: a proxy of this
// machine's agent. It forwards the engine's requests to the agent's socket. As long as
// no agent has answered there, the plugin serves them from a ledger of its own, in its
// data directory. Its status then says that it does not share the pods' plan.
//
// The two ledgers are separate. Pools of the own ledger are in address spaces of
// their own (PluginLocal, PluginGlobal), so the ID of a pool always names its ledger.
// After an agent has answered, which the plugin records before it answers the engine,
// new pools are the agent's only, and requests fail while the agent is away.
//
// The flags are the plugin's paths as in docker/plugin/config.json. The data
// directory holds the database and the socket of the local API:
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
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr, os.Exit)
	stop()
	os.Exit(code)
}
