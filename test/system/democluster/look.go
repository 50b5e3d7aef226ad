// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// plan holds the part of the output of cadastre plan that is compared here.
type plan struct {
	Pods    netip.Prefix `json:"podSubnetThisNode"`
	Address netip.Prefix `json:"nodeIPAddress"`
	Overlay netip.Prefix `json:"vxlanIPAddress"`
}

// claimed waits until the agent of n has an ID.
func (c *cluster) claimed(ctx context.Context, n *node) (id uint32, err error) {
	return id, c.eventually(ctx, n.Node+" claims a node ID", func() error {
		s, err := n.status(ctx)
		if id = s.NodeID; err == nil && (s.NodeName != n.Node || id == 0) {
			err = fmt.Errorf("it is node %q with ID %d", s.NodeName, id)
		}
		return err
	})
}

// learn learns the ID of n, and what follows from it.
func (c *cluster) learn(ctx context.Context, n *node) error {
	id, err := c.claimed(ctx, n)
	if err != nil {
		return err
	}
	var p plan
	if _, err := n.Read(ctx, &p, "plan", "--config", c.config(), "--node-id", strconv.Itoa(int(id))); err != nil {
		return err
	}
	n.id, n.address, n.overlay = id, p.Address, p.Overlay
	return nil
}

// running are the nodes whose agents run.
func (c *cluster) running() (nodes []*node) {
	for _, n := range c.nodes {
		if n.agent != nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// agree fails until all agents that run list the same nodes: those that there
// are. Each node must have an ID and subnets of its own, and the address that
// follows from its ID.
func (c *cluster) agree(ctx context.Context) error {
	for _, via := range c.running() {
		var list []localapi.Node
		if _, err := via.Read(ctx, &list, "node", "list"); err != nil {
			return err
		}
		if err := c.compare(list); err != nil {
			return fmt.Errorf("node list of %s: %w", via.Node, err)
		}
	}
	return nil
}

func (c *cluster) compare(list []localapi.Node) error {
	ids, subnets, names := map[uint32]string{}, map[string]string{}, map[string]localapi.Node{}
	for _, l := range list {
		if l.Released {
			continue
		}
		if other, taken := ids[l.ID]; taken {
			return fmt.Errorf("%s and %s have node ID %d", other, l.Name, l.ID)
		}
		ids[l.ID], names[l.Name] = l.Name, l
		if len(l.PodCIDRs) == 0 {
			return fmt.Errorf("%s has no pod subnet", l.Name)
		}
		for _, s := range l.PodCIDRs {
			if other, taken := subnets[s]; taken {
				return fmt.Errorf("%s and %s have pod subnet %s", other, l.Name, s)
			}
			subnets[s] = l.Name
		}
	}
	if len(names) != len(c.nodes) {
		return fmt.Errorf("it has %v, not %d nodes", slices.Sorted(maps.Keys(names)), len(c.nodes))
	}
	for _, n := range c.nodes {
		l := names[n.Node]
		if l.ID != n.id || !slices.Equal(l.Addresses, []string{n.address.String()}) {
			return fmt.Errorf("%s has ID %d and %v, not ID %d and %s", n.Node, l.ID, l.Addresses, n.id, n.address)
		}
	}
	return nil
}

// view holds the addresses and subnets of a node that must not move.
type view struct {
	id     uint32
	blocks string
	leases string
	held   int
}

func (c *cluster) look(ctx context.Context, nodes ...*node) (map[string]view, error) {
	views := map[string]view{}
	for _, n := range nodes {
		s, err := n.status(ctx)
		if err != nil {
			return nil, err
		}
		leases, _, err := n.Leases(ctx)
		if err != nil {
			return nil, err
		}
		v := view{id: s.NodeID, leases: lines(leases)}
		for _, b := range s.Blocks {
			v.blocks += fmt.Sprintf("%s %s %s\n", b.Pool, b.Block, b.State)
		}
		for _, l := range leases {
			if l.State == "held" && l.Purpose == "pod" {
				v.held++
			}
		}
		views[n.Node] = v
	}
	return views, nil
}

// lines are leases with everything that is known of them, one a line.
func lines(leases []localapi.Lease) (text string) {
	for _, l := range leases {
		if l.State != "held" {
			l.Since = time.Time{} // when it was given back is known less exactly on the disk
		}
		text += fmt.Sprintf("%+v\n", l)
	}
	return text
}

// unmoved fails unless nodes are as they were in c.before, and their pods have
// what they were given.
func (c *cluster) unmoved(ctx context.Context, nodes ...*node) error {
	for _, n := range nodes {
		if err := n.verify(ctx); err != nil {
			return fmt.Errorf("%s: %w", n.Node, err)
		}
	}
	now, err := c.look(ctx, nodes...)
	if err != nil {
		return err
	}
	held := 0
	for name, v := range now {
		was := c.before[name]
		held += v.held
		switch {
		case v.id != was.id:
			return fmt.Errorf("%s has ID %d, it had %d", name, v.id, was.id)
		case v.blocks != was.blocks:
			return fmt.Errorf("%s has the blocks\n%sit had\n%s", name, v.blocks, was.blocks)
		case v.leases != was.leases:
			return fmt.Errorf("%s has the leases\n%sit had\n%s", name, v.leases, was.leases)
		}
	}
	c.Say("Compared with before: IDs and blocks are the same, and so are the leases; all %d pods pass CHECK.", held)
	return nil
}

// Where an agent's state is from.
const (
	fromStore  = "remote"
	fromMirror = "mirror"
)

// follows waits until agents have their state from source, and are or are not
// connected to the store.
func (c *cluster) follows(ctx context.Context, source string, connected bool, nodes ...*node) error {
	for _, n := range nodes {
		err := c.eventually(ctx, n.Node+" and the store", func() error {
			s, err := n.status(ctx)
			if err == nil && (s.StateFrom != source || s.KVDBConnected != connected) {
				err = fmt.Errorf("its state is from %q, connected: %t (%s)", s.StateFrom, s.KVDBConnected, s.KVDBError)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// routed waits until every node whose agent runs has a route through its VXLAN link to
// each subnet of every other one.
func (c *cluster) routed(ctx context.Context) error {
	if c.way == stage.WayNone {
		return nil
	}
	return c.eventually(ctx, "routes", func() error {
		for _, n := range c.running() {
			if err := c.routedOn(ctx, n); err != nil {
				return fmt.Errorf("%s: %w", n.Node, err)
			}
		}
		return nil
	})
}

func (c *cluster) routedOn(ctx context.Context, n *node) error {
	var list []localapi.Node
	if _, err := n.Read(ctx, &list, "node", "list"); err != nil {
		return err
	}
	var has map[netip.Prefix]netip.Addr
	err := n.inside(func() (err error) {
		has, err = routes()
		return err
	})
	if err != nil {
		return err
	}
	want := map[netip.Prefix]netip.Addr{}
	for _, l := range list {
		for _, s := range l.PodCIDRs {
			dst, err := netip.ParsePrefix(s)
			if err != nil {
				return err
			}
			if other := c.by(l.ID); other != nil && other != n {
				want[dst] = other.overlay.Addr()
			}
		}
	}
	if !maps.Equal(has, want) {
		return fmt.Errorf("its routes are %v, not %v", has, want)
	}
	return nil
}

// reach sends packets from every pod to every other one.
func (c *cluster) reach(ctx context.Context) error {
	var pods []*pod
	for _, n := range c.nodes {
		pods = append(pods, n.pods...)
	}
	if c.way == stage.WayNone {
		c.Say("Passed over: packets between the %d pods, which have no network.", len(pods))
		return nil
	}
	sent := 0
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			for _, protocol := range []string{"udp", "tcp"} {
				if _, err := stage.Send(ctx, protocol, from.End(), to.End()); err != nil {
					return err
				}
				sent++
			}
		}
	}
	c.Say(
		"Each of the %d pods has reached every other one: %d exchanges over udp and tcp, each from the pod's own address.",
		len(pods),
		sent,
	)
	return nil
}

// refused fails unless cadastre refuses args for a reason that says why.
func (c *cluster) refused(ctx context.Context, n *node, why string, args ...string) error {
	c.Say("$ cadastre %s", strings.Join(args, " "))
	out, err := n.CLI(ctx, args...)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return fmt.Errorf("cadastre %v is not refused: %s", args, out)
	case !strings.Contains(err.Error(), why):
		return fmt.Errorf("it should say that %s: %w", why, err)
	}
	_, said, _ := strings.Cut(err.Error(), "exit status ")
	c.Say("exit status %s", said)
	return nil
}

// allocatesNothing fails unless an ADD is refused.
func (c *cluster) allocatesNothing(ctx context.Context, n *node) error {
	p, err := n.add(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p == nil:
		return err
	case err == nil:
		return fmt.Errorf("%s was given %s on %s, which should allocate nothing", p.Name, p.Address, n.Node)
	case !strings.Contains(err.Error(), "allocates no new address: node ID"):
		return err
	}
	c.Say("%s: %v", n.Node, err)
	return n.delete(ctx, p)
}

// doubts are the places where n says that its ID is in doubt, or was since its
// agent has started. The places are its status, its log, its events, and its
// metrics.
func (c *cluster) doubts(ctx context.Context, n *node) (places []string, err error) {
	s, err := n.status(ctx)
	if err != nil {
		return nil, err
	}
	log, err := os.ReadFile(n.Log())
	if err != nil {
		return nil, err
	}
	var events []struct{ Name string }
	if _, err := n.Read(ctx, &events, "events"); err != nil {
		return nil, err
	}
	metrics, err := n.Get(ctx, localapi.PathMetrics)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", n.Node, err)
	}
	if s.NodeIDProblem != "" && s.Suspended != "" && !s.Ready {
		places = append(places, "status")
	}
	if strings.Contains(string(log[n.logged:]), "ID is in doubt") {
		places = append(places, "log")
	}
	if slices.ContainsFunc(
		events,
		func(e struct{ Name string }) bool { return e.Name == new(nodesync.NodeIDChange).GetName() },
	) {
		places = append(places, "events")
	}
	if strings.Contains(metrics, "\ncadastre_node_id_conflict 1\n") {
		places = append(places, "metrics")
	}
	return places, nil
}
