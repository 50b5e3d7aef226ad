// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
)

// loseEverything leaves nothing of the cluster but the agents' disks and the
// kernel.
func (c *cluster) loseEverything(ctx context.Context) (err error) {
	c.Step(
		"Kill etcd and all agents with SIGKILL, and remove all data of etcd. Pods talk on: the kernel does not need them.",
	)
	if c.before, err = c.look(ctx, c.nodes...); err != nil {
		return err
	}
	if err := c.wipe(ctx); err != nil {
		return err
	}
	return c.reach(ctx)
}

// wipe kills everything and removes etcd's data. The agents notice first that
// etcd is gone: what they have read is in their mirrors then.
func (c *cluster) wipe(ctx context.Context) error {
	if err := c.etcd.kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.etcd.data()); err != nil {
		return fmt.Errorf("wipe etcd: %w", err)
	}
	if err := c.follows(ctx, fromStore, false, c.running()...); err != nil {
		return err
	}
	for _, n := range c.running() {
		if err := n.kill(); err != nil {
			return err
		}
	}
	return nil
}

// startOne starts the node with ID 3 while there is no etcd.
func (c *cluster) startOne(ctx context.Context) error {
	n := c.by(3)
	c.Step("Start the agent of %s, which had node ID 3, while etcd is away.", n.Node)
	if err := n.launch(); err != nil {
		return err
	}
	if err := c.alone(ctx, n); err != nil {
		return err
	}
	return c.unmoved(ctx, n)
}

// newcomerFirst starts an empty etcd and at once a node that was never there.
func (c *cluster) newcomerFirst(ctx context.Context) error {
	survivor := c.by(3)
	c.Step(
		"Start etcd, which is empty now, and at once a new node, node-4. %s writes what the store lacks, so node-4 gets a free ID. The others are still down; the routes to them stay.",
		survivor.Node,
	)
	newcomer, err := c.newNode(4)
	if err != nil {
		return err
	}
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	if err := newcomer.launch(); err != nil {
		return err
	}
	if err := c.enter(ctx, newcomer, 4); err != nil {
		return err
	}
	if err := c.follows(ctx, fromStore, true, survivor); err != nil {
		return err
	}
	for range 2 {
		if err := c.add(ctx, newcomer, firstRange()); err != nil {
			return err
		}
	}
	if err := c.unmoved(ctx, survivor); err != nil {
		return err
	}
	return c.heard(ctx)
}

// othersReturn starts the nodes that are not back yet, that with ID 1 last.
func (c *cluster) othersReturn(ctx context.Context) error {
	old := []*node{c.by(3), c.by(2), c.by(1)}
	c.Step(
		"Start the agents of %s and, last, of %s, which had node ID 1. Nothing has moved, although a newcomer was there first.",
		old[1].Node,
		old[2].Node,
	)
	for _, n := range old[1:] {
		if err := n.launch(); err != nil {
			return err
		}
		if err := n.ready(ctx); err != nil {
			return err
		}
	}
	if err := c.follows(ctx, fromStore, true, old...); err != nil {
		return err
	}
	if err := c.awaitAgreement(ctx); err != nil {
		return err
	}
	for _, n := range c.nodes {
		places, err := c.doubts(ctx, n)
		if err != nil {
			return err
		}
		if len(places) > 0 {
			return fmt.Errorf("%s says that its node ID is in doubt: %v", n.Node, places)
		}
	}
	c.Say("No node has had a doubt about its node ID.")
	if err := c.unmoved(ctx, old...); err != nil {
		return err
	}
	if err := c.heard(ctx); err != nil {
		return err
	}
	return c.reach(ctx)
}

// enter waits until a node that was started is one of the cluster, with an ID.
func (c *cluster) enter(ctx context.Context, n *node, id uint32) error {
	if err := c.learn(ctx, n); err != nil {
		return err
	}
	if n.id != id {
		return fmt.Errorf("%s has claimed node ID %d, not %d", n.Node, n.id, id)
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	return c.awaitAgreement(ctx)
}
