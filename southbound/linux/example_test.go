// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux_test

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/southbound/linux"
)

// The southbound of a node's agent: the event loop commits to the scheduler, and Run repeats
// failed values until its context ends. After node 7 came, ip route shows
// "10.1.7.0/24 via 192.168.16.7 dev eth0 proto 202".
func ExampleRoutes() {
	routes, err := linux.Routes(linux.Options{})
	if err != nil {
		panic(err)
	}
	sink := southbound.New(southbound.Options{
		OnFailure: func(key string, err error) { fmt.Println("southbound value", key, "failed:", err) },
	}, routes...)
	defer sink.Close()
	ctx, stop := context.WithCancel(context.Background())
	retries := make(chan error)
	go func() { retries <- sink.Run(ctx) }()
	loop := controller.New(controller.DefaultConfig(), controller.Deps{Sink: sink})
	_ = loop // loop.Run(ctx) until the agent ends
	stop()
	fmt.Println("retries ended:", <-retries)
	// Output:
	// retries ended: <nil>
}
