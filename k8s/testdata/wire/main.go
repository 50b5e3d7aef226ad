// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command wire makes the wire of a pod in the network namespace that its argument names,
// as the agent does.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound/linux"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(netns string) error {
	wires, err := linux.NewWires(linux.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = wires.Close() }()
	return wires.Create(context.Background(), kv.SinkPodPrefix+"cadastre/c1/eth0", &kv.PodNetwork{
		Namespace: "default", Name: "web", Network: "cadastre", ContainerId: "c1", IfName: "eth0",
		Addresses: []string{"10.1.5.2/24", "fd01::2/64"},
		Gateways:  []string{"10.1.5.1", "fd01::1"},
		Routes:    []*kv.Route{{Dst: "0.0.0.0/0", Gateway: "10.1.5.1"}, {Dst: "::/0", Gateway: "fd01::1"}},
		Wire: &kv.Wire{
			Netns: netns, HostIfName: "cad0123456789ab", Mtu: 1450,
			HostMac: "0a:00:00:00:00:01", PodMac: "0a:00:00:00:00:02", Pool: "default",
		},
	})
}
