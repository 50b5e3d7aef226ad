// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// poolsYAML is the second file of pools.
const poolsYAML = `pools:
- name: pods-2
  ranges:
  - {cidr: 10.12.0.0/16, oneNodePrefixLen: 24}
- name: default
  state: draining
`

// removal is one that comes too early.
const removal = `pools:
- name: default
  state: removed
`

// changePools adds a pool and drains the first one.
func (c *cluster) changePools(ctx context.Context) error {
	c.Step("Give new pods another range: plan, then apply.")
	via := c.nodes[0]
	if err := c.write(c.pools(), poolsYAML); err != nil {
		return err
	}
	if err := c.eventually(ctx, "the store knows all leases", func() error { return c.counted(ctx, via) }); err != nil {
		return err
	}
	if err := c.Show(ctx, via.Agent, "plan", "--against", via.Socket(), "-f", c.pools()); err != nil {
		return err
	}
	if err := c.Show(ctx, via.Agent, "apply", "-f", c.pools()); err != nil {
		return err
	}
	for _, n := range c.nodes {
		want := fmt.Sprintf("10.12.%d.0/24", n.id)
		err := c.eventually(ctx, n.Node+" follows the pools", func() error {
			s, err := n.status(ctx)
			if err != nil {
				return err
			}
			for _, b := range s.Blocks {
				if b.Block == want && b.State == "active" {
					return nil
				}
			}
			return fmt.Errorf("%s is not open: %+v", want, s.Blocks)
		})
		if err != nil {
			return err
		}
	}
	if err := c.routed(ctx); err != nil {
		return err
	}
	return c.Show(ctx, via.Agent, "pool", "list")
}

// counted fails until the store has the last word of every node. An address that
// was given back and rests counts as a lease.
func (c *cluster) counted(ctx context.Context, via *node) error {
	var list []localapi.Node
	if _, err := via.Read(ctx, &list, "node", "list"); err != nil {
		return err
	}
	said := map[string]uint64{}
	for _, l := range list {
		for _, u := range l.Pools {
			said[l.Name] += u.Leases
		}
	}
	for _, n := range c.nodes {
		leases, _, err := n.Leases(ctx)
		if err != nil {
			return err
		}
		has := uint64(0)
		for _, l := range leases {
			if l.Purpose == "pod" {
				has++
			}
		}
		if said[n.Node] != has {
			return fmt.Errorf("%s has %d leases, and it has said %d", n.Node, has, said[n.Node])
		}
	}
	return nil
}

// newPods adds a pod on each node and wants it to be of the new range.
func (c *cluster) newPods(ctx context.Context) error {
	c.Step("Add a pod on each node. The pods that were there keep their addresses, and all reach each other.")
	for _, n := range c.nodes {
		if err := c.add(ctx, n, secondRange()); err != nil {
			return err
		}
		if err := n.verify(ctx); err != nil {
			return err
		}
	}
	if err := c.reach(ctx); err != nil {
		return err
	}
	if err := c.write(c.pools(), removal); err != nil {
		return err
	}
	return c.refused(ctx, c.nodes[0], "3 leases", "apply", "-f", c.pools())
}

// releaseNode makes the ID of node-4 free.
func (c *cluster) releaseNode(ctx context.Context) error {
	n, via := c.by(4), c.nodes[0]
	c.Step("Take %s out of the cluster for good: its ID is released, which is refused while its agent runs.", n.Node)
	if err := c.refused(ctx, via, "was there not long ago", "node", "release", n.Node); err != nil {
		return err
	}
	for len(n.pods) > 0 {
		if err := n.delete(ctx, n.pods[0]); err != nil {
			return err
		}
	}
	if err := n.stop(); err != nil {
		return err
	}
	if err := c.leave(ctx, via, n); err != nil {
		return err
	}
	return c.awaitAgreement(ctx)
}

// leave releases the ID of a node whose agent was stopped, which may be at once,
// and forgets the node.
func (c *cluster) leave(ctx context.Context, via, n *node) error {
	if err := c.Show(ctx, via.Agent, "node", "release", n.Node); err != nil {
		return err
	}
	c.nodes = slices.DeleteFunc(c.nodes, func(o *node) bool { return o == n })
	return n.end()
}

// replaceNode starts another node, which gets the ID that is free.
func (c *cluster) replaceNode(ctx context.Context) error {
	c.Step("Start a new node, node-5. It gets the ID and the subnets that are free.")
	n, err := c.newNode(5)
	if err != nil {
		return err
	}
	if err := n.launch(); err != nil {
		return err
	}
	if err := c.enter(ctx, n, 4); err != nil {
		return err
	}
	if err := c.add(ctx, n, secondRange()); err != nil {
		return err
	}
	return c.reach(ctx)
}

// delete deletes all pods and looks at what is left.
func (c *cluster) delete(ctx context.Context) error {
	c.Step("Delete all pods, and check every ledger against itself and its file.")
	if err := c.heard(ctx); err != nil {
		return err
	}
	if err := c.silence(); err != nil {
		return err
	}
	for _, n := range c.running() {
		if n.ns == nil { // other programs change the machine's own network
			break
		}
		if err := n.AwaitRest(ctx, n.agent, n.inside); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		for len(n.pods) > 0 {
			if err := n.delete(ctx, n.pods[0]); err != nil {
				return err
			}
		}
		leases, _, err := n.Leases(ctx)
		if err != nil {
			return err
		}
		if err := stage.VerifyHeld(leases, nil, true); err != nil {
			return err
		}
		var report localapi.CheckReport
		if _, err := n.Read(ctx, &report, "check", "--ledger"); err != nil {
			return err
		}
		if len(report.Findings) > 0 {
			return fmt.Errorf("check of %s: %v", n.Node, report.Findings)
		}
		c.Say("%s: no pod holds an address; the check of %d leases is clean.", n.Node, report.Leases)
	}
	return nil
}

// stop ends all in good order.
func (c *cluster) stop(context.Context) error {
	c.Step("Stop the agents and etcd, close every network namespace, remove every file.")
	for _, n := range c.nodes {
		if err := n.stop(); err != nil {
			return err
		}
	}
	if err := c.etcd.stop(); err != nil {
		return err
	}
	return c.end()
}
