// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// cluster holds the state that the steps share.
type cluster struct {
	stage.Place
	*stage.Scenario
	way      stage.Way
	underlay *netlab.Namespace // nil without namespaces
	etcd     *etcd
	nodes    []*node         // by number; those that are gone are not in it
	talks    []talk          // between pods of different nodes, all the time
	logs     []stage.Log     // of all agents that ever ran
	before   map[string]view // what must not move
}

// talk is a stage.Talk.
type talk interface {
	Exchanges() uint64
	Err() error
	End() error
}

// limit bounds the time of the whole demo.
const limit = 4 * time.Minute

// runScenario takes every step and then, whatever has happened, lets go of everything
// but the files.
func runScenario(ctx context.Context, p stage.Place, w stage.Way, s *stage.Scenario) error {
	c := &cluster{Place: p, Scenario: s, way: w}
	c.etcd = &etcd{dir: p.Dir, within: c.within}
	err := c.all(ctx)
	ending := c.end()
	return s.End(ctx, err, ending, append(c.logs, stage.Log{Of: "Etcd", Path: c.etcd.log()})...)
}

func (c *cluster) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, step := range []func(context.Context) error{
		c.openNodes, c.startEtcd, c.startAgents, c.joinAll, c.addPods, c.sendPackets,
		c.loseEtcd, c.etcdComesBack,
		c.loseEverything, c.startOne, c.newcomerFirst, c.othersReturn,
		c.changePools, c.newPods, c.releaseNode, c.replaceNode,
		c.loseAllNodes, c.ownerReturns, c.giveBack,
		c.delete, c.stop,
	} {
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
func (c *cluster) end() error {
	silent := c.silence()
	errs := make([]error, len(c.nodes))
	var ending sync.WaitGroup // an agent that cannot tell the store waits a little
	for i, n := range c.nodes {
		ending.Go(func() { errs[i] = n.end() })
	}
	ending.Wait()
	c.nodes = nil
	errs = append(errs, silent, c.etcd.end())
	if c.underlay != nil {
		errs = append(errs, c.underlay.Close())
		c.underlay = nil
	}
	return errors.Join(errs...)
}

// within calls f in the underlay's network namespace, if there is one.
func (c *cluster) within(f func() error) error {
	if c.underlay == nil {
		return f()
	}
	return c.underlay.Do(f)
}

// newNode makes another node, whose agent does not run yet.
func (c *cluster) newNode(number int) (*node, error) {
	name := fmt.Sprintf("node-%d", number)
	n := &node{number: number, way: c.way}
	n.Agent = stage.Agent{
		Place:  stage.Place{Root: c.Root, Bin: c.Bin, Dir: filepath.Join(c.Dir, name)},
		Config: c.config(),
		Node:   name,
	}
	if c.underlay != nil {
		var err error
		if n.ns, err = openNode(c.underlay, name, number); err != nil {
			return nil, fmt.Errorf("open %s: %w", name, err)
		}
	}
	c.nodes = append(c.nodes, n)
	c.logs = append(c.logs, stage.Log{Of: name, Path: n.Log()})
	return n, nil
}

// by is the node with an ID.
func (c *cluster) by(id uint32) *node {
	for _, n := range c.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

func (c *cluster) config() string { return filepath.Join(c.Dir, "contiv.conf") }
func (c *cluster) pools() string  { return filepath.Join(c.Dir, "pools.yaml") }

// write writes a file and shows it.
func (c *cluster) write(path, text string) error {
	c.Say("%s:\n  %s", filepath.Base(path), strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  "))
	return os.WriteFile(path, []byte(text), 0o600)
}

// contivConf is the configuration of every node. The times are short, so that the
// demo is; addresses that were given back rest for as long as it takes. A
// newcomer waits for two probing intervals, within which an agent has to find an
// etcd that was away for seconds. The longer etcd was away, the less often the
// agent asks.
func (c *cluster) contivConf() string {
	network := "dataplane: linux\n  transport: vxlan"
	if c.way == stage.WayNone {
		network = "dataplane: none" // the namespace is the machine's
	}
	return fmt.Sprintf(`ipamConfig:
  podSubnetCIDR: 10.11.0.0/16
  podSubnetOneNodePrefixLen: 24
  nodeInterconnectCIDR: 192.168.16.0/24
cadastre:
  kvdb: {type: etcd, endpoints: ["%s"]}
  %s
  coolDown: 1h
  reclaim: {enabled: false}
  nodeIDs: {refresh: 500ms, fresh: 3s, expire: 24h, quarantine: 0s}
  controller: {delayLocalResync: 300ms, remoteDBProbingInterval: 800ms, delayAfterErrorHealing: 300ms}
`, c.etcd.client, network)
}

// eventually asks f again until it is content, as long as all agents run and all
// pods talk.
func (c *cluster) eventually(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if ended := c.ended(); ended != nil {
			return fmt.Errorf("%s: %w", what, ended)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-again.C:
		}
	}
}

// ended is the error of an agent that has ended by itself, or of pods that have
// ceased to reach each other.
func (c *cluster) ended() error {
	for _, t := range c.talks {
		if err := t.Err(); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if n.agent == nil {
			continue
		}
		select {
		case <-n.agent.Done():
			return fmt.Errorf("%s: %w", n.Node, n.agent.Ended())
		default:
		}
	}
	return nil
}
