// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command wire makes the wire of a pod in the network namespace that its argument names,
// and an address on the cloud's interface ens1, as the agent does.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound/linux"
)

func main() {
	if err := cmp.Or(wire(os.Args[1]), uplink()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func wire(netns string) error {
	wires, err := linux.Wires(linux.Options{})
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

// uplink makes an address on the link with a MAC. What the agent only logs is an error here.
func uplink() error {
	var log bytes.Buffer
	all, err := linux.Descriptors(linux.Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	const address = "10.77.1.9"
	for _, v := range []struct {
		key   string
		value proto.Message
	}{
		{kv.SinkUplinkPrefix + "eni-1", &kv.Uplink{
			Interface: "eni-1", Mac: "02:77:00:00:01:01", Table: kv.UplinkTables + 1,
			Ranges: []*kv.SubnetRange{{Cidr: "10.77.1.0/24", Gateway: "10.77.1.1"}},
		}},
		{kv.SinkSourcePrefix + address, &kv.UplinkAddress{Address: address, Interface: "eni-1", Table: kv.UplinkTables + 1}},
	} {
		for _, d := range all {
			if d.Handles(v.key) {
				err = errors.Join(err, d.Create(context.Background(), v.key, v.value))
			}
		}
	}
	if err == nil && log.Len() > 0 {
		err = errors.New(log.String())
	}
	return err
}
