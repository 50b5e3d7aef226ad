// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cadastre-operator-openstack is cadastre-operator with OpenStack as a further source of
// the nodes' addresses.
//
//	cadastre-operator-openstack --netresource-provider=openstack --openstack-cluster=prod
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/operator"
	"github.com/cadastre/cadastre/providers/openstack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	options := &openstack.Options{}
	code := operator.Run(
		ctx,
		operator.Options{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr},
		operator.WithProvider(operator.Provider{
			Name:  openstack.Name,
			Help:  openstack.Help,
			Flags: options.Flags,
			Open: func(ctx context.Context, env operator.Environment) (operator.Opened, error) {
				cloud, metrics, err := options.Open(ctx, env.Log, env.QPS, env.Burst)
				if err != nil {
					return operator.Opened{}, err
				}
				return operator.Opened{
					Cloud:      cloud,
					Aliases:    cloud,
					Collectors: []prometheus.Collector{metrics},
				}, nil
			},
		}),
	)
	stop()
	os.Exit(code)
}
