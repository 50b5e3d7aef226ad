// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-agent-ec2 is cadastre-agent on machines of Amazon EC2: with podBlocks
// interfaces it keeps addresses of the machine's interfaces warm.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/agent"
	"github.com/cadastre/cadastre/providers/ec2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	options := &ec2.Options{}
	code := agent.Main(ctx, agent.Program{
		Name:   "cadastre-agent-ec2",
		Args:   os.Args[1:],
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Exit:   os.Exit,
		Cloud: &agent.CloudProvider{
			Name:  ec2.Name,
			Help:  ec2.Help,
			Flags: options.Flags,
			Open: func(ctx context.Context, env agent.CloudEnvironment) (agent.OpenedCloud, error) {
				cloud, metrics, err := options.Open(ctx, env.Log, env.QPS, env.Burst)
				if err != nil {
					return agent.OpenedCloud{}, err
				}
				return agent.OpenedCloud{Cloud: cloud, Collectors: []prometheus.Collector{metrics}}, nil
			},
		},
	})
	stop()
	os.Exit(code)
}
