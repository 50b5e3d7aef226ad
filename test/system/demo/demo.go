// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// demo holds the state that the steps share.
type demo struct {
	stage.Agent
	*stage.Scenario
	way     stage.Way
	node    *netlab.Namespace // nil without namespaces, like every pod's
	pods    []*stage.Pod
	agent   *stage.Process
	network *stage.Network
	nodeID  uint32
	plan    plan
}

// plan holds the part of the output of cadastre plan that is compared here.
type plan struct {
	Pods    netip.Prefix `json:"podSubnetThisNode"`
	Gateway netip.Addr   `json:"podGatewayIP"`
}

// agentIn is the node's agent.
func agentIn(p stage.Place) stage.Agent {
	return stage.Agent{Place: p, Config: filepath.Join(p.Dir, "contiv.conf"), Node: "demo-node"}
}

// runScenario takes every step and then, whatever has happened, lets go of everything
// but the files.
func runScenario(ctx context.Context, p stage.Place, w stage.Way, s *stage.Scenario) error {
	d := &demo{Agent: agentIn(p), Scenario: s, way: w}
	err := d.all(ctx)
	return s.End(ctx, err, d.end(), stage.Log{Of: "The agent", Path: d.Log()})
}

// timeLimit bounds the steps that no person takes part in.
const timeLimit = 2 * time.Minute

func (d *demo) all(ctx context.Context) error {
	err := d.steps(
		ctx, d.openNode, d.startAgent, d.showPlan, d.addTwo, d.sendPackets, d.showLeases, d.crash, d.addThird, d.check,
	)
	if err == nil {
		err = d.showPage(ctx)
	}
	if err != nil {
		return err
	}
	return d.steps(ctx, d.delete, d.stop)
}

func (d *demo) steps(ctx context.Context, all ...func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	for _, step := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// end stops what runs and closes the namespaces.
func (d *demo) end() error {
	var errs []error
	if d.agent != nil {
		errs = append(errs, d.agent.Halt(10*time.Second))
		d.agent = nil
	}
	for _, p := range d.pods {
		errs = append(errs, p.Close())
	}
	d.pods = nil
	if d.node != nil {
		errs = append(errs, d.node.Close())
		d.node = nil
	}
	return errors.Join(errs...)
}

// inNode calls f in the node's network namespace, if there is one.
func (d *demo) inNode(f func() error) error {
	if d.node == nil {
		return f()
	}
	return d.node.Do(f)
}
