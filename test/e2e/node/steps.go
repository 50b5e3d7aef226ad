// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

func (t *scenario) pods(ctx context.Context) error {
	t.Step(
		"Create two pods on a node and one on the other: they run, have the leased addresses, and reach each other.",
	)
	for i, x := range []struct {
		node *node
		name string
	}{{t.nodes[0], "first"}, {t.nodes[0], "second"}, {t.nodes[1], "far"}} {
		if err := t.create(ctx, x.node, x.name); err != nil {
			return err
		}
		if _, err := t.expect(ctx, i+1); err != nil {
			return err
		}
	}
	for _, n := range t.nodes {
		if err := t.Show(ctx, n.agent, "leases"); err != nil {
			return err
		}
	}
	s, err := t.look(ctx)
	if err != nil {
		return err
	}
	return errors.Join(t.reach(ctx, s.pods), t.nodesReach(ctx, s.pods))
}

func (t *scenario) agentsAreKilled(ctx context.Context) error {
	t.Step("Kill both agents with SIGKILL while pods talk: no packet is lost. kubelet starts them again:\n" +
		"    the leases are the same, and a new pod gets a new address.")
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	flow, err := t.startFlow(ctx, "first", before.pods)
	if err != nil {
		return err
	}
	if err := t.killAgents(ctx); err != nil {
		return err
	}
	if err := t.reach(ctx, before.pods); err != nil {
		return err
	}
	if err := t.awaitAgents(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods))
	if err = errors.Join(err, changed(before.leases, after.leases)); err != nil {
		return err
	}
	if err := t.endFlow(ctx, flow); err != nil {
		return err
	}
	if err := t.create(ctx, t.nodes[0], "third"); err != nil {
		return err
	}
	now, err := t.expect(ctx, len(before.pods)+1) // two pods of one address would not agree with the leases
	if err != nil {
		return err
	}
	return t.reach(ctx, now.pods)
}

func (t *scenario) podGoesWithoutAgent(ctx context.Context) error {
	t.Step("Delete a pod while the agents are away: the pod goes, and its lease when they are back.")
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.sendAgentsAway(ctx); err != nil {
		return err
	}
	if err := t.remove(ctx, "second"); err != nil {
		return err
	}
	if err := t.bringAgentsBack(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods)-1)
	if err != nil {
		return err
	}
	return t.reach(ctx, after.pods)
}

func (t *scenario) podComesWithoutAgent(ctx context.Context) error {
	t.Step(
		"Create a pod while the agents are away: each ADD fails and leaks nothing. The agents come back: the pod runs, with one lease.",
	)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.sendAgentsAway(ctx); err != nil {
		return err
	}
	if err := t.create(ctx, t.nodes[0], "patient"); err != nil {
		return err
	}
	failed, err := t.awaitFailures(ctx, "patient")
	if err != nil {
		return err
	}
	if !strings.Contains(failed.last, "the Cadastre agent does not answer at /run/cadastre/agent.sock") {
		return fmt.Errorf("the pod's events do not say what is wrong: %s", failed.last)
	}
	t.Say("%d ADDs have failed; the pod's events say why.", failed.count)
	if err := t.bringAgentsBack(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods)+1)
	if err != nil {
		return err
	}
	return t.reach(ctx, after.pods)
}

func (t *scenario) addsFailBesideUs(ctx context.Context) error {
	t.Step(
		"Break the plugin that is executed beside ours: each ADD leases an address, fails, and gives it back. Mend it: the pod runs, with one lease.",
	)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.nodes[0].breakPlugin(); err != nil {
		return err
	}
	if err := t.create(ctx, t.nodes[0], "unlucky"); err != nil {
		return err
	}
	failed, err := t.awaitFailures(ctx, "unlucky")
	if err != nil {
		return err
	}
	if !strings.Contains(failed.last, broken) {
		return fmt.Errorf("it failed for another reason: %s", failed.last)
	}
	t.Say("%d ADDs have failed.", failed.count)
	if err := t.nodes[0].mendPlugin(); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods)+1)
	if err != nil {
		return err
	}
	return t.reach(ctx, after.pods)
}

// awaitFailures waits until containerd has failed more than once to make a pod's
// sandbox.
func (t *scenario) awaitFailures(ctx context.Context, name string) (f failures, err error) {
	const atLeast = 2
	err = t.eventually(ctx, fmt.Sprintf("%d ADDs fail", atLeast), func(ctx context.Context) (err error) {
		if f, err = t.failures(ctx, name); err == nil && f.count < atLeast {
			err = fmt.Errorf("it were %d", f.count)
		}
		return err
	})
	return f, err
}

// failures are the sandboxes of a pod that could not be made.
type failures struct {
	count int
	last  string
}

func (t *scenario) failures(ctx context.Context, name string) (f failures, err error) {
	var list struct {
		Items []struct {
			Count   int
			Message string
		}
	}
	err = t.plane.read(
		ctx,
		&list,
		"events",
		"--field-selector=involvedObject.name="+name+",reason=FailedCreatePodSandBox",
	)
	for _, e := range list.Items {
		f.count, f.last = f.count+max(e.Count, 1), e.Message
	}
	return f, err
}

func (t *scenario) nothingLeft(ctx context.Context) error {
	t.Step("Delete all pods: no lease is held for a pod.")
	if err := t.remove(ctx, "--all"); err != nil {
		return err
	}
	if _, err := t.expect(ctx, 0); err != nil {
		return err
	}
	return t.mountsAreGone(ctx)
}
