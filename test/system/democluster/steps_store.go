// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
)

// loseEtcd kills etcd, and everything goes on.
func (c *cluster) loseEtcd(ctx context.Context) (err error) {
	c.Step("Kill etcd with SIGKILL. Pods come and go, an agent is killed and starts without it.")
	first, second := c.nodes[0], c.nodes[1]
	if err := c.etcd.kill(); err != nil {
		return err
	}
	if err := c.add(ctx, first, firstRange()); err != nil {
		return err
	}
	gone := second.pods[1]
	if err := second.delete(ctx, gone); err != nil {
		return err
	}
	c.Say("%s: %s was deleted.", second.Node, gone.Name)
	if err := c.follows(ctx, fromStore, false, first); err != nil {
		return err
	}
	if err := c.restart(ctx, second); err != nil {
		return err
	}
	if err := c.add(ctx, second, firstRange()); err != nil {
		return err
	}
	return c.reach(ctx)
}

// restart kills the agent of n and starts it while the store is away.
func (c *cluster) restart(ctx context.Context, n *node) (err error) {
	if c.before, err = c.look(ctx, n); err != nil {
		return err
	}
	if err := n.kill(); err != nil {
		return err
	}
	if err := n.launch(); err != nil {
		return err
	}
	if err := c.alone(ctx, n); err != nil {
		return err
	}
	return c.unmoved(ctx, n)
}

// alone waits until an agent serves without the store, from its mirror.
func (c *cluster) alone(ctx context.Context, n *node) error {
	var first string
	err := c.eventually(ctx, n.Node+" answers", func() error {
		leases, _, err := n.Leases(ctx)
		first = lines(leases)
		return err
	})
	if err != nil {
		return err
	}
	if was := c.before[n.Node].leases; first != was {
		return fmt.Errorf("the first leases that %s answers are\n%sthey were\n%s", n.Node, first, was)
	}
	if err := n.ready(ctx); err != nil {
		return err
	}
	if err := c.follows(ctx, fromMirror, false, n); err != nil {
		return err
	}
	c.Say("%s: the agent has started again, from its mirror of the store.", n.Node)
	return nil
}

// etcdComesBack starts etcd with the data that it had.
func (c *cluster) etcdComesBack(ctx context.Context) (err error) {
	c.Step("Start etcd again, with its data.")
	if c.before, err = c.look(ctx, c.nodes...); err != nil {
		return err
	}
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	if err := c.follows(ctx, fromStore, true, c.nodes...); err != nil {
		return err
	}
	c.Say("All agents follow it again.")
	return c.unmoved(ctx, c.nodes...)
}
