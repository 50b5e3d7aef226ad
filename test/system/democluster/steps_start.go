// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// openNodes makes the network namespaces.
func (c *cluster) openNodes(context.Context) (err error) {
	if c.way == stage.WayNone {
		c.Step("Pass over opening network namespaces.")
	} else {
		c.Step("Open network namespaces: three nodes, and what connects them; this machine's own is not touched.")
		if c.underlay, err = openUnderlay(); err != nil {
			return err
		}
	}
	for number := 1; number <= 3; number++ {
		if _, err := c.newNode(number); err != nil {
			return err
		}
	}
	return nil
}

// startEtcd starts etcd, where it can be reached by all.
func (c *cluster) startEtcd(ctx context.Context) error {
	c.Step("Start etcd, a process of its own.")
	c.etcd.client, c.etcd.peer = "http://"+etcdAddress+":2379", "http://127.0.0.1:2380"
	if c.way == stage.WayNone {
		for _, url := range []*string{&c.etcd.client, &c.etcd.peer} {
			at, err := freePort()
			if err != nil {
				return err
			}
			*url = "http://" + at.String()
		}
	}
	if err := c.etcd.start(ctx); err != nil {
		return err
	}
	c.Say("It serves at %s.", c.etcd.client)
	return nil
}

// startAgents starts all agents at the same time.
func (c *cluster) startAgents(ctx context.Context) error {
	c.Step("Start three agents at the same time, with the same configuration.")
	if err := c.write(c.config(), c.contivConf()); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.launch(); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := c.learn(ctx, n); err != nil {
			return err
		}
		c.Say("%s has claimed node ID %d.", n.Node, n.id)
	}
	for id := uint32(1); id <= 3; id++ {
		if c.by(id) == nil {
			return fmt.Errorf("no node has claimed node ID %d", id)
		}
	}
	return nil
}

// joinAll waits until the nodes know each other, and have the routes.
func (c *cluster) joinAll(ctx context.Context) error {
	if c.way == stage.WayNone {
		c.Step("Pass over the routes between the nodes.")
	} else {
		c.Step(
			"Each agent makes a VXLAN link, and routes to the other nodes' subnets through it: only a router is between the nodes.",
		)
	}
	for _, n := range c.nodes {
		if err := n.ready(ctx); err != nil {
			return err
		}
	}
	if err := c.awaitAgreement(ctx); err != nil {
		return err
	}
	if c.way == stage.WayNone {
		return nil
	}
	for _, n := range c.nodes {
		if err := c.showRoutes(n); err != nil {
			return err
		}
	}
	return nil
}

// awaitAgreement waits until all nodes agree on who is there, and have their routes.
func (c *cluster) awaitAgreement(ctx context.Context) error {
	if err := c.eventually(ctx, "the nodes agree", func() error { return c.agree(ctx) }); err != nil {
		return err
	}
	if err := c.routed(ctx); err != nil {
		return err
	}
	return c.Show(ctx, c.running()[0].Agent, "node", "list")
}

func (c *cluster) showRoutes(n *node) error {
	return n.inside(func() error {
		all, err := routes()
		if err != nil {
			return err
		}
		for _, o := range c.nodes {
			for dst, gateway := range all {
				if gateway == o.overlay.Addr() {
					c.Say("%s: %s via %s, %s", n.Node, dst, gateway, o.Node)
				}
			}
		}
		return nil
	})
}

// addPods adds two pods on each node.
func (c *cluster) addPods(ctx context.Context) error {
	how := "cadastre-cni asks the agent, which makes the interfaces"
	if c.way == stage.WayNone {
		how = "CNI's ADD straight to cadastre-cni"
	}
	c.Step("Add two pods on each node: %s.", how)
	for _, n := range c.nodes {
		for range 2 {
			if err := c.add(ctx, n, firstRange()); err != nil {
				return err
			}
		}
	}
	return nil
}

// firstRange and secondRange return the ranges of the pods' addresses.
func firstRange() netip.Prefix  { return netip.MustParsePrefix("10.11.0.0/16") }
func secondRange() netip.Prefix { return netip.MustParsePrefix("10.12.0.0/16") }

// add adds a pod on n, whose address must be of n's block of a range.
func (c *cluster) add(ctx context.Context, n *node, of netip.Prefix) error {
	p, err := n.add(ctx)
	if err != nil {
		return err
	}
	octets := of.Addr().As4()
	octets[2] = byte(n.id)
	if block := netip.PrefixFrom(netip.AddrFrom4(octets), 24); !block.Contains(p.Address.Addr()) {
		return fmt.Errorf("ADD %s on node ID %d: %s is not an address of %s", p.Name, n.id, p.Address, block)
	}
	c.Say("%s: %s was given %s; its gateway is %s.", n.Node, p.Name, p.Address, p.Gateway)
	return nil
}

// sendPackets sends packets across the nodes.
func (c *cluster) sendPackets(ctx context.Context) error {
	c.Step("Send packets from every pod to every other one.")
	if err := c.reach(ctx); err != nil {
		return err
	}
	return c.startTalks()
}

// startTalks has a pod of each node talk to one of each other node from now on.
func (c *cluster) startTalks() error {
	if c.way == stage.WayNone {
		return nil
	}
	for i, from := range c.nodes {
		for _, to := range c.nodes[:i] {
			t, err := stage.NewTalk(from.pods[0].End(), to.pods[0].End())
			if err != nil {
				return err
			}
			c.talks = append(c.talks, t)
		}
	}
	c.Say(
		"The first pods of the nodes go on talking to each other, hundreds of times a second, until they are deleted.",
	)
	return nil
}

// silence ends the talks; it fails if one had ended by itself.
func (c *cluster) silence() error {
	errs := make([]error, len(c.talks))
	for i, t := range c.talks {
		errs[i] = t.End()
	}
	c.talks = nil
	return errors.Join(errs...)
}

// heard fails if pods that talk have ceased to reach each other for a moment. A
// packet that is under way must arrive, and the next one.
func (c *cluster) heard(ctx context.Context) error {
	all := uint64(0)
	for _, t := range c.talks {
		before := t.Exchanges()
		err := c.eventually(ctx, "pods talk", func() error {
			if t.Exchanges() < before+2 {
				return errors.New("nothing arrives")
			}
			return nil
		})
		if err != nil {
			return err
		}
		all += t.Exchanges()
	}
	if c.way != stage.WayNone {
		c.Say("No packet was lost between the pods that talk all the time, in %d exchanges so far.", all)
	}
	return nil
}
