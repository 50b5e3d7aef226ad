// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

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

// startEmpty starts an empty etcd, at once a node that was never there, and
// then the node with ID 2. Whatever the order in which they come, ID 3 and ID 2
// are claimed by those who remember them, and ID 1 is the smallest that the
// empty store knows nobody of.
func (c *cluster) startEmpty(ctx context.Context) error {
	second, third := c.by(2), c.by(3)
	c.Step("Start etcd, which is empty now, at once a new node, node-4, and then %s, which had node ID 2.", second.Node)
	stranger, err := c.newNode(4)
	if err != nil {
		return err
	}
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	if err := stranger.launch(); err != nil {
		return err
	}
	if err := second.launch(); err != nil {
		return err
	}
	if err := c.follows(ctx, fromStore, true, second, third); err != nil {
		return err
	}
	id, err := c.claimed(ctx, stranger)
	if err != nil {
		return err
	}
	if id != 1 {
		return fmt.Errorf("%s has claimed node ID %d, not 1, which nobody else has claimed", stranger.Node, id)
	}
	c.Say("%s and %s have claimed the IDs that they remember, %s the smallest other one: 1.", third.Node, second.Node, stranger.Node)
	return c.unmoved(ctx, second, third)
}

// loser starts the node with ID 1, which another node has claimed meanwhile.
func (c *cluster) loser(ctx context.Context) error {
	n, stranger := c.by(1), c.nodes[len(c.nodes)-1]
	c.Step("Start the agent of %s, whose node ID 1 is now that of %s. It says so and lends nothing new; its pods keep what they have.", n.Node, stranger.Node)
	if err := n.launch(); err != nil {
		return err
	}
	err := c.eventually(ctx, n.Node+" knows that its ID is taken", func() error {
		s, err := n.status(ctx)
		if err == nil && (s.NodeIDProblem == "" || s.Ready || s.Suspended == "") {
			err = fmt.Errorf("it says %q, ready: %t, suspended: %q", s.NodeIDProblem, s.Ready, s.Suspended)
		}
		if err == nil {
			c.Say("%s: %s", n.Node, s.Suspended)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := c.lendsNothing(ctx, n); err != nil {
		return err
	}
	if err := c.unmoved(ctx, n); err != nil {
		return err
	}
	return c.reach(ctx)
}

// settleIDs gives ID 1 back.
func (c *cluster) settleIDs(ctx context.Context) error {
	n, stranger, via := c.by(1), c.nodes[len(c.nodes)-1], c.by(3)
	c.Step("Stop %s, which no pod is on yet, and release its node ID. %s has its own again, without a restart.", stranger.Node, n.Node)
	if err := stranger.stop(); err != nil {
		return err
	}
	if err := c.release(ctx, via, stranger); err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	return c.unmoved(ctx, c.by(1), c.by(2), c.by(3))
}

// welcome starts node-4 again, which gets an ID of its own.
func (c *cluster) welcome(ctx context.Context) error {
	stranger := c.nodes[len(c.nodes)-1]
	c.Step("Start %s again, and add pods there. No address and no subnet has moved.", stranger.Node)
	if err := stranger.launch(); err != nil {
		return err
	}
	if err := c.enter(ctx, stranger, 4); err != nil {
		return err
	}
	for range 2 {
		if err := c.add(ctx, stranger, firstRange()); err != nil {
			return err
		}
	}
	if err := c.unmoved(ctx, c.by(1), c.by(2), c.by(3)); err != nil {
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
	if err := c.join(ctx, n); err != nil {
		return err
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	return c.settled(ctx)
}
