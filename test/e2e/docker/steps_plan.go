// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// onePlan has containers and a pod share the node's block.
func (t *scenario) onePlan(ctx context.Context) error {
	t.Step(
		"Start the agent with docker.fromPods: networks are parts of the node's pod block. Add a pod through CNI beside them.",
	)
	if err := t.configure("    fromPods: true\n"); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	cni, err := stage.NewNetwork(t.Agent, stage.WayNone, "")
	if err != nil {
		return err
	}
	pod, err := stage.NewPod("pod-1", stage.WayNone, t.engine.dir)
	if err != nil {
		return err
	}
	if err := cni.Add(ctx, pod); err != nil {
		return err
	}
	for _, name := range []string{"part-1", "part-2"} {
		if err := t.network(ctx, name); err != nil {
			return err
		}
		if err := t.container(ctx, name, name); err != nil {
			return err
		}
	}
	s, err := t.expect(ctx)
	if err != nil {
		return err
	}
	block := netip.MustParsePrefix("10.1.1.0/24")
	seen := map[netip.Addr]string{pod.Address.Addr(): "the pod"}
	for _, name := range []string{"part-1", "part-2"} {
		for _, a := range s.inside[name] {
			ip := netip.MustParsePrefix(a).Addr()
			if !block.Contains(ip) || seen[ip] != "" {
				return fmt.Errorf("%s has %s, which is not of %s, or is of %s", name, a, block, seen[ip])
			}
			seen[ip] = name
		}
	}
	if err := t.showLeases(ctx); err != nil {
		return err
	}
	if err := cni.Del(ctx, pod); err != nil {
		return err
	}
	_, err = t.engine.do(ctx, "rm", "--force", "part-1", "part-2", "fixed")
	return err
}

// showLeases shows who holds what, but for what the node itself needs.
func (t *scenario) showLeases(ctx context.Context) error {
	t.Say("$ cadastre leases")
	out, err := t.CLI(ctx, "leases")
	if err == nil {
		t.Say("%s", out)
	}
	return err
}

// nothingLeft removes everything and looks at what is left.
func (t *scenario) nothingLeft(ctx context.Context) error {
	t.Step("Remove all networks: no lease and no pool of Docker is left. Stop both, close the room, remove every file.")
	for _, name := range []string{"part-1", "part-2", "subnet"} {
		if _, err := t.engine.do(ctx, "network", "rm", name); err != nil {
			return err
		}
	}
	s, err := t.expect(ctx)
	if err != nil {
		return err
	}
	if n := len(s.inside) + len(s.endpoints) + len(s.gateways) + len(s.aux); n > 0 {
		return fmt.Errorf("there are still %d containers, endpoints and gateways", n)
	}
	for _, l := range s.leases {
		if l.Purpose != "infra" && l.State == "held" || dockers(l) {
			return fmt.Errorf("%s is still held for a %s", l.IP, l.Purpose)
		}
	}
	var status localapi.Status
	if _, err := t.Read(ctx, &status, "status"); err != nil {
		return err
	}
	for _, b := range status.Blocks {
		if strings.HasPrefix(b.Pool, "docker/") {
			return fmt.Errorf("pool %s still has %s", b.Pool, b.Block)
		}
	}
	if err := t.Show(ctx, t.Agent, "check", "--ledger"); err != nil {
		return err
	}
	return t.end()
}
