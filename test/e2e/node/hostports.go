// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// hostPort is a port of the node that a pod asks for.
const hostPort = "18080"

// hostPorts has a pod on each node ask for a port of it. The agent's image has no loader, so
// Debian's portmap cannot run in it; one node has a link to portmap that leads nowhere there.
func (t *scenario) hostPorts(ctx context.Context) error {
	t.Step("Create a pod with a host port on each node: the other node reaches it by the address of the node.")
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	var names []string
	for i, n := range t.nodes {
		name := fmt.Sprint("port-", i+1)
		names = append(names, name)
		ports := `{"containerPort":` + pagePort + `,"hostPort":` + hostPort + `}`
		if err := t.createWithPorts(ctx, n, name, ports); err != nil {
			return err
		}
	}
	if _, err := t.expect(ctx, len(before.pods)+len(names)); err != nil {
		return err
	}
	for i, n := range t.nodes {
		if err := t.portIsOpen(ctx, t.nodes[len(t.nodes)-1-i], n, names[i]); err != nil {
			return err
		}
		if err := t.saysAssumed(ctx, n); err != nil {
			return err
		}
	}
	if err := t.remove(ctx, names...); err != nil {
		return err
	}
	_, err = t.expect(ctx, len(before.pods))
	return err
}

// portIsOpen waits until a pod answers another node at the host port.
func (t *scenario) portIsOpen(ctx context.Context, from, n *node, pod string) error {
	url := "http://" + n.ip + ":" + hostPort
	return t.eventually(ctx, from.name+" reaches "+url, func(ctx context.Context) error {
		answer, err := from.fetch(ctx, url)
		if err == nil && !strings.HasPrefix(answer, pod+" ") {
			err = fmt.Errorf("the answer is %q, want one of %s", answer, pod)
		}
		return err
	})
}

// saysAssumed fails unless the agent says that it could not ask portmap.
func (t *scenario) saysAssumed(ctx context.Context, n *node) error {
	var s localapi.Status
	if _, err := n.agent.Read(ctx, &s, "status"); err != nil {
		return err
	}
	if h := s.HostPorts; h == nil || len(h.Versions) == 0 || !strings.Contains(h.Reason, "assumed") {
		return fmt.Errorf("the status of %s has the host ports %+v, want assumed versions", n.name, h)
	}
	t.Say("%s: host ports: %s.", n.name, s.HostPorts.Reason)
	return nil
}
