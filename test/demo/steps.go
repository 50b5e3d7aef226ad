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

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/test/netlab"
)

// openNode makes the node's network namespace, in which everything else runs.
func (d *demo) openNode(context.Context) (err error) {
	if d.way == wayNone {
		d.step("Pass over opening network namespaces.")
	} else {
		d.step("Open a network namespace for a node; this machine's own is not touched.")
		if d.node, err = netlab.New(); err != nil {
			return err
		}
	}
	d.network, err = newNetwork(d.place, d.way)
	return err
}

// startAgent starts the agent and learns its node ID.
func (d *demo) startAgent(ctx context.Context) error {
	d.step("Start the node's agent with conf/contiv.conf, on its own embedded store.")
	if err := d.launch(ctx); err != nil {
		return err
	}
	var status localapi.Status
	if _, err := d.read(ctx, &status, "status"); err != nil {
		return err
	}
	if status.NodeName != nodeName || status.NodeID == 0 {
		return fmt.Errorf("the agent is node %q with ID %d, not %q with an ID of its own", status.NodeName, status.NodeID, nodeName)
	}
	if d.nodeID != 0 && d.nodeID != status.NodeID {
		return fmt.Errorf("the agent has become node ID %d, it was %d", status.NodeID, d.nodeID)
	}
	d.nodeID = status.NodeID
	d.say("%s has claimed node ID %d.", status.NodeName, status.NodeID)
	return nil
}

// launch starts an agent and waits until it serves.
func (d *demo) launch(ctx context.Context) error {
	log, err := os.OpenFile(d.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the agent's log: %w", err)
	}
	agent, err := start(agentCommand(d.place, log), d.inNode)
	if err = errors.Join(err, log.Close()); err != nil { // the agent has its own
		return err
	}
	d.agent = agent
	return waitReady(ctx, agent, d.socket())
}

// showPlan shows what the node ID means.
func (d *demo) showPlan(ctx context.Context) error {
	d.step("See what node ID %d means in addresses.", d.nodeID)
	args := []string{"plan", "--config", filepath.Join("conf", "contiv.conf"), "--node-id", strconv.Itoa(int(d.nodeID))}
	if err := d.show(ctx, args...); err != nil {
		return err
	}
	if _, err := d.read(ctx, &d.plan, args...); err != nil {
		return err
	}
	if !d.plan.Pods.IsValid() || !d.plan.Pods.Contains(d.plan.Gateway) {
		return fmt.Errorf("the plan has pods in %s with the gateway %s", d.plan.Pods, d.plan.Gateway)
	}
	return nil
}

// crash kills the agent and starts it again.
func (d *demo) crash(ctx context.Context) error {
	d.step("Kill the agent with SIGKILL and start it again.")
	before, err := d.leases(ctx)
	if err != nil {
		return err
	}
	killed := d.agent
	d.agent = nil
	if err := killed.kill(); err != nil {
		return err
	}
	if err := d.launch(ctx); err != nil {
		return err
	}
	after, err := d.leases(ctx)
	if err != nil {
		return err
	}
	if before.text != after.text {
		return fmt.Errorf("the leases are not the same: before %s after %s", before.text, after.text)
	}
	d.say("It has the same %d leases as before, to the last byte.", len(after.all))
	return d.show(ctx, "leases")
}

// check asks CNI's CHECK and the ledger.
func (d *demo) check(ctx context.Context) error {
	d.step("Check every pod with CNI's CHECK, and the ledger against itself and its file.")
	for _, p := range d.pods {
		if err := d.inNode(func() error { return d.network.check(ctx, p) }); err != nil {
			return err
		}
		d.say("%s/%s still has %s.", podNamespace, p.name, p.address)
	}
	return d.show(ctx, "check")
}

// stop ends the agent in good order and closes the namespaces.
func (d *demo) stop(context.Context) error {
	if d.node == nil {
		d.step("Stop the agent and remove every file.")
	} else {
		d.step("Stop the agent, close every network namespace, remove every file.")
	}
	agent := d.agent
	d.agent = nil
	return errors.Join(agent.stop(10*time.Second), d.end())
}
