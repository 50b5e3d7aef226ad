// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// openNode makes the node's network namespace, in which everything else runs.
func (d *demo) openNode(context.Context) (err error) {
	if d.way == stage.WayNone {
		d.Step("Pass over opening network namespaces.")
	} else {
		d.Step("Open a network namespace for a node; this machine's own is not touched.")
		if d.node, err = netlab.New(); err != nil {
			return err
		}
	}
	d.network, err = stage.NewNetwork(d.Agent, d.way, "")
	return err
}

// startAgent starts the agent and learns its node ID.
func (d *demo) startAgent(ctx context.Context) error {
	d.Step("Start the node's agent with conf/contiv.conf%s, on its own embedded store.", d.plane())
	if err := d.configure(); err != nil {
		return err
	}
	if err := d.launch(ctx); err != nil {
		return err
	}
	var status localapi.Status
	if _, err := d.Read(ctx, &status, "status"); err != nil {
		return err
	}
	if status.NodeName != d.Node || status.NodeID == 0 {
		return fmt.Errorf(
			"the agent is node %q with ID %d, not %q with an ID of its own",
			status.NodeName,
			status.NodeID,
			d.Node,
		)
	}
	if d.nodeID != 0 && d.nodeID != status.NodeID {
		return fmt.Errorf("the agent has become node ID %d, it was %d", status.NodeID, d.nodeID)
	}
	d.nodeID = status.NodeID
	d.Say("%s has claimed node ID %d.", status.NodeName, status.NodeID)
	return nil
}

// plane says what is added to the configuration.
func (d *demo) plane() string {
	if d.way == stage.WayNone {
		return ""
	}
	return " and \"dataplane: linux\""
}

// configure writes the agent's configuration.
func (d *demo) configure() error {
	text, err := os.ReadFile(filepath.Join(d.Root, "conf", "contiv.conf"))
	if err == nil && d.way != stage.WayNone {
		text = append(text, "  # The agent makes the interfaces of pods.\n  dataplane: linux\n"...)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(d.Config, text, 0o600)
}

// launch starts an agent and waits until it serves.
func (d *demo) launch(ctx context.Context) error {
	var err error
	if d.agent, err = d.Launch(d.inNode); err != nil {
		return err
	}
	return d.Await(ctx, d.agent)
}

// showPlan shows what the node ID means.
func (d *demo) showPlan(ctx context.Context) error {
	d.Step("See what node ID %d means in addresses.", d.nodeID)
	args := []string{"plan", "--config", filepath.Join("conf", "contiv.conf"), "--node-id", strconv.Itoa(int(d.nodeID))}
	if err := d.Show(ctx, d.Agent, args...); err != nil {
		return err
	}
	if _, err := d.Read(ctx, &d.plan, args...); err != nil {
		return err
	}
	if !d.plan.Pods.IsValid() || !d.plan.Pods.Contains(d.plan.Gateway) {
		return fmt.Errorf("the plan has pods in %s with the gateway %s", d.plan.Pods, d.plan.Gateway)
	}
	return nil
}

// crash kills the agent and starts it again.
func (d *demo) crash(ctx context.Context) (err error) {
	d.Step("Kill the agent with SIGKILL and start it again.")
	talk, err := d.talk()
	if err != nil {
		return err
	}
	if talk != nil {
		defer func() { err = errors.Join(err, talk.End()) }()
	}
	_, before, err := d.Leases(ctx)
	if err != nil {
		return err
	}
	killed := d.agent
	d.agent = nil
	if err := killed.Kill(); err != nil {
		return err
	}
	if err := d.launch(ctx); err != nil {
		return err
	}
	all, after, err := d.Leases(ctx)
	if err != nil {
		return err
	}
	if before != after {
		return fmt.Errorf("the leases are not the same: before %s after %s", before, after)
	}
	d.Say("It has the same %d leases as before, to the last byte.", len(all))
	if talk != nil {
		if err := talk.Err(); err != nil {
			return err
		}
		d.Say("Two pods talked all the time: no packet was lost in %d exchanges.", talk.Exchanges())
	}
	return d.Show(ctx, d.Agent, "leases")
}

// talk has two pods talk to each other from now on, if they have a network.
func (d *demo) talk() (*stage.Talk, error) {
	if d.node == nil {
		return nil, nil //nolint:nilnil // without namespaces there is no talk
	}
	return stage.NewTalk(d.pods[0].End(), d.pods[1].End())
}

// check asks CNI's CHECK and the ledger.
func (d *demo) check(ctx context.Context) error {
	d.Step("Check every pod with CNI's CHECK, and the ledger against itself and its file.")
	for _, p := range d.pods {
		if err := d.inNode(func() error { return d.network.Check(ctx, p) }); err != nil {
			return err
		}
		d.Say("%s/%s still has %s.", stage.PodNamespace, p.Name, p.Address)
	}
	return d.Show(ctx, d.Agent, "check", "--ledger")
}

// stop ends the agent in good order and closes the namespaces.
func (d *demo) stop(context.Context) error {
	if d.node == nil {
		d.Step("Stop the agent and remove every file.")
	} else {
		d.Step("Stop the agent, close every network namespace, remove every file.")
	}
	agent := d.agent
	d.agent = nil
	return errors.Join(agent.Stop(10*time.Second), d.end())
}
