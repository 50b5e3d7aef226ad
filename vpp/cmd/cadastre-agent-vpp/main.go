// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-agent-vpp is cadastre-agent on machines with VPP: with dataplane vpp it
// makes the network of the pods there.
package main

import (
	"context"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/vpp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := agent.Main(ctx, agent.Program{
		Name:   "cadastre-agent-vpp",
		Args:   os.Args[1:],
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Exit:   os.Exit,
		Dataplane: &agent.Dataplane{
			Name: string(contivconf.DataplaneVPP),
			Help: "the network of the pods in VPP 25.10",
			Open: open,
		},
	})
	stop()
	os.Exit(code)
}

func open(_ context.Context, env agent.DataplaneEnvironment) ([]*southbound.Descriptor, error) {
	conf, node := env.Conf.Cadastre.VPP, env.Conf.VPPNode(env.Node)
	return vpp.Descriptors(vpp.Options{
		Socket: conf.Socket,
		Main:   vpp.MainInterface{Name: node.Main, Gateways: node.Gateways},
		Log:    env.Log,
		Random: rand.Float64,
	})
}
