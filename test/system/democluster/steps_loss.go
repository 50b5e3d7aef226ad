// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
)

// loseAllNodes leaves no node that knows what the store has lost, and starts a new node.
func (c *cluster) loseAllNodes(ctx context.Context) (err error) {
	c.Step(
		"Kill and wipe everything again, start etcd, and then a new node alone, node-6. It waits for nodes that know more; none comes, and it gets node ID 1.",
	)
	if c.before, err = c.look(ctx, c.nodes...); err != nil {
		return err
	}
	if err := c.wipe(ctx); err != nil {
		return err
	}
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	stranger, err := c.newNode(6)
	if err != nil {
		return err
	}
	if err := stranger.launch(); err != nil {
		return err
	}
	id, err := c.claimed(ctx, stranger)
	if err != nil {
		return err
	}
	if id != 1 {
		return fmt.Errorf("%s has claimed node ID %d, not 1, which no other node can have claimed", stranger.Node, id)
	}
	return c.heard(ctx)
}

// ownerReturns starts the node that had ID 1.
func (c *cluster) ownerReturns(ctx context.Context) error {
	n, stranger := c.by(1), c.nodes[len(c.nodes)-1]
	c.Step(
		"Start the agent of %s, whose node ID 1 is now that of %s. It says so and allocates nothing new; its pods keep what they have.",
		n.Node,
		stranger.Node,
	)
	if err := n.launch(); err != nil {
		return err
	}
	everywhere := []string{"status", "log", "events", "metrics"}
	err := c.eventually(ctx, n.Node+" knows that its ID is taken", func() error {
		places, err := c.doubts(ctx, n)
		if err == nil && !slices.Equal(places, everywhere) {
			err = fmt.Errorf("it says so in %v, not in %v", places, everywhere)
		}
		return err
	})
	if err != nil {
		return err
	}
	s, err := n.status(ctx)
	if err != nil {
		return err
	}
	c.Say("%s says in its %v: %s", n.Node, everywhere, s.Suspended)
	if err := c.allocatesNothing(ctx, n); err != nil {
		return err
	}
	if err := c.unmoved(ctx, n); err != nil {
		return err
	}
	return c.heard(ctx)
}

// giveBack gives ID 1 back, and starts the others.
func (c *cluster) giveBack(ctx context.Context) error {
	n, stranger := c.by(1), c.nodes[len(c.nodes)-1]
	c.Step(
		"Stop %s, which no pod is on, and release its node ID. %s has its own again, without a restart; the others start.",
		stranger.Node,
		n.Node,
	)
	if err := stranger.stop(); err != nil {
		return err
	}
	if err := c.leave(ctx, n, stranger); err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	for _, o := range c.nodes {
		if o == n {
			continue
		}
		if err := o.launch(); err != nil {
			return err
		}
	}
	if err := c.follows(ctx, fromStore, true, c.nodes...); err != nil {
		return err
	}
	if err := c.awaitAgreement(ctx); err != nil {
		return err
	}
	if err := c.unmoved(ctx, c.nodes...); err != nil {
		return err
	}
	if err := c.add(ctx, n, secondRange()); err != nil {
		return err
	}
	return c.heard(ctx)
}
