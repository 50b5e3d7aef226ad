// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

func (t *scenario) twoPods(ctx context.Context) error {
	t.Step("Create a pod, and another: they run, and have the addresses that the ledger has leased to them.")
	if err := t.create(ctx, "first"); err != nil {
		return err
	}
	if _, err := t.expect(ctx, 1); err != nil {
		return err
	}
	if err := t.create(ctx, "second"); err != nil {
		return err
	}
	s, err := t.expect(ctx, 2)
	if err != nil {
		return err
	}
	if err := t.Show(ctx, t.Agent, "leases"); err != nil {
		return err
	}
	return t.reach(ctx, s.pods)
}

func (t *scenario) agentIsKilled(ctx context.Context) error {
	t.Step(
		"Kill the agent with SIGKILL: pods do not notice. kubelet starts it again: the leases are the same, and a new pod gets a new address.",
	)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.killAgent(ctx); err != nil {
		return err
	}
	if err := t.reach(ctx, before.pods); err != nil {
		return err
	}
	if err := t.awaitAgent(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods))
	if err = errors.Join(err, changed(before.leases, after.leases)); err != nil {
		return err
	}
	if err := t.create(ctx, "third"); err != nil {
		return err
	}
	now, err := t.expect(ctx, len(before.pods)+1) // two pods of one address would not agree with the leases
	if err != nil {
		return err
	}
	return t.reach(ctx, now.pods)
}

func (t *scenario) podGoesWithoutAgent(ctx context.Context) error {
	t.Step("Delete a pod while the agent is away: the pod goes, and its lease when the agent is back.")
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.sendAgentAway(ctx); err != nil {
		return err
	}
	if err := t.remove(ctx, "second"); err != nil {
		return err
	}
	if err := t.bringAgentBack(ctx); err != nil {
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
		"Create a pod while the agent is away: each ADD fails and leaks nothing. The agent comes back: the pod runs, with one lease.",
	)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.sendAgentAway(ctx); err != nil {
		return err
	}
	if err := t.create(ctx, "patient"); err != nil {
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
	if err := t.bringAgentBack(ctx); err != nil {
		return err
	}
	after, err := t.expect(ctx, len(before.pods)+1)
	if err != nil {
		return err
	}
	return t.reach(ctx, after.pods)
}

func (t *scenario) addsFailBehindUs(ctx context.Context) error {
	t.Step(
		"Break the plugin that comes after ours: each ADD leases an address, fails, and gives it back. Mend it: the pod runs, with one lease.",
	)
	before, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := t.node.breakPlugin(); err != nil {
		return err
	}
	if err := t.create(ctx, "unlucky"); err != nil {
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
	if err := t.node.mendPlugin(); err != nil {
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
