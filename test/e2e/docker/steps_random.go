// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// campaign is a random sequence of steps, with the containers and networks that they leave.
type campaign struct {
	*scenario
	random *rand.Rand

	made       int
	networks   []string
	containers map[string]bool // whether it runs, by name
	unseen     bool            // a container was removed behind the agent: the engine waits long for the agent then
}

// campaignTime and campaignSteps bound a campaign: the first one that is reached ends it.
const (
	campaignTime  = 20 * time.Second
	campaignSteps = 150
)

// Limits of what a campaign has at once.
const (
	maxNetworks   = 4
	maxContainers = 8
)

// atRandom lets containers, networks, agent and engine fail at random. After each loss, and
// in the end, containers, engine and ledger agree.
func (t *scenario) atRandom(ctx context.Context) error {
	seed, err := effort.Pick()
	if err != nil {
		return err
	}
	t.Step(
		"Start, stop and kill containers, networks, agent and engine at random, and lose the database (CADASTRE_TEST_SEED=%d).",
		seed,
	)
	if err := t.configure(quick); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	c := &campaign{scenario: t, random: rand.New(rand.NewPCG(seed, 0)), containers: map[string]bool{}}
	began, counts := time.Now(), map[string]int{}
	for range campaignSteps {
		if time.Since(began) > campaignTime {
			break
		}
		name, err := c.step(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		counts[name]++
	}
	t.Say("%v; the database is lost once more", counts)
	if err := errors.Join(c.lose(ctx), c.agrees(ctx)); err != nil {
		return err
	}
	if err := c.clear(ctx); err != nil {
		return err
	}
	if err := c.agrees(ctx); err != nil {
		return err
	}
	if _, err := t.expect(ctx); err != nil { // without containers there are no ghosts
		return err
	}
	return t.stopAgent()
}

// step takes one step. The steps that lose something compare afterwards.
func (c *campaign) step(ctx context.Context) (name string, err error) {
	n := c.random.IntN(100) // the sum of the weights
	for _, s := range []struct {
		name   string
		weight int
		do     func(context.Context) error
		losing bool
	}{
		{"make a network", 15, c.makeNetwork, false},
		{"remove a network", 6, c.removeNetwork, false},
		{"run a container", 30, c.run, false},
		{"start a container", 10, c.start, false},
		{"stop a container", 8, c.stopper("stop", "--time", "0"), false},
		{"kill a container", 8, c.stopper("kill"), false},
		{"remove a container", 8, c.remove, false},
		{"kill the agent", 5, c.restartAgent, true},
		{"remove behind the agent", 4, c.removeUnseen, true},
		{"lose the database", 4, c.lose, true},
		{"kill the engine", 2, c.restartEngine, true},
	} {
		if n -= s.weight; n >= 0 {
			continue
		}
		err := s.do(ctx)
		if err == nil && s.losing {
			err = c.agrees(ctx)
		}
		return s.name, err
	}
	return "none", errors.New("the weights of the steps are not 100 in all")
}

// agrees waits until containers, engine and ledger agree, and no pool is without a network.
func (c *campaign) agrees(ctx context.Context) error {
	if err := c.eventually(ctx, "containers, engine and ledger agree", c.compare); err != nil {
		return err
	}
	return c.eventually(ctx, "each pool has a network", func(ctx context.Context) error {
		var networks []struct {
			Name string
			IPAM struct {
				Driver string
				Config []struct{ Subnet string }
			}
		}
		if err := c.engine.get(ctx, "/networks", &networks); err != nil {
			return err
		}
		want := map[string]string{}
		for _, n := range networks {
			for _, x := range n.IPAM.Config {
				if n.IPAM.Driver == driver {
					want[x.Subnet] = n.Name
				}
			}
		}
		var pools []localapi.DockerPool
		if _, err := c.Read(ctx, &pools, "docker", "pools"); err != nil {
			return err
		}
		for _, p := range pools {
			if want[p.CIDR] == "" {
				return fmt.Errorf("pool %s has no network", p.CIDR)
			}
			delete(want, p.CIDR)
		}
		if len(want) > 0 {
			return fmt.Errorf("networks without a pool: %v", want)
		}
		return nil
	})
}

// compare compares as look does, except for the leases of ghosts.
func (c *campaign) compare(ctx context.Context) error {
	var s scene
	if err := errors.Join(c.lookAtContainers(ctx, &s), c.lookAtNetworks(ctx, &s)); err != nil {
		return err
	}
	var err error
	if s.leases, _, err = c.Leases(ctx); err != nil {
		return err
	}
	ghosts, err := c.ghosts(ctx)
	if err != nil {
		return err
	}
	for _, e := range s.endpoints {
		ip, _, _ := strings.Cut(e.address, "/")
		delete(ghosts, ip) // a container that runs has the address now
	}
	s.leases = slices.DeleteFunc(s.leases, func(l localapi.Lease) bool { return ghosts[l.IP] })
	_, err = c.CLI(ctx, "check", "--ledger")
	return errors.Join(s.compare(), err)
}

// ghosts returns the addresses that the engine lists for containers that do not run, as it
// does after it was killed under them. An agent that starts then leases such an address to
// the container, until the container is started or removed: the engine might still use it.
func (c *campaign) ghosts(ctx context.Context) (map[string]bool, error) {
	var all []struct {
		State           string
		NetworkSettings struct{ Networks map[string]attachment }
	}
	if err := c.engine.get(ctx, "/containers/json?all=1", &all); err != nil {
		return nil, err
	}
	ghosts := map[string]bool{}
	for _, x := range all {
		for _, a := range x.NetworkSettings.Networks {
			if x.State != "running" && a.IPAddress != "" {
				ghosts[a.IPAddress] = true
			}
		}
	}
	return ghosts, nil
}

// names returns the containers that run or do not, sorted.
func (c *campaign) names(run bool) (all []string) {
	for name, runs := range c.containers {
		if runs == run {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// pick returns one of the names, "" if there is none.
func (c *campaign) pick(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[c.random.IntN(len(all))]
}

func (c *campaign) makeNetwork(ctx context.Context) error {
	if len(c.networks) >= maxNetworks {
		return nil
	}
	c.made++
	name := fmt.Sprint("random-net-", c.made)
	at := func(host int) string { return fmt.Sprintf("10.%d.%d.%d", 70, c.made, host) }
	args := []string{"--subnet", at(0) + "/28"}
	if c.random.IntN(2) == 0 {
		args = append(args, "--gateway", at(1+c.random.IntN(4)))
	}
	if c.random.IntN(2) == 0 {
		args = append(args, "--aux-address", "a="+at(5+c.random.IntN(4)))
	}
	c.networks = append(c.networks, name)
	return c.network(ctx, name, args...)
}

// removeNetwork removes a network with its containers.
func (c *campaign) removeNetwork(ctx context.Context) error {
	name := c.pick(c.networks)
	if name == "" {
		return nil
	}
	used, err := c.engine.do(ctx, "ps", "--all", "--quiet", "--filter", "network="+name)
	if err != nil || used != "" {
		return err // a later step may remove it
	}
	if _, err := c.engine.do(ctx, "network", "rm", name); err != nil {
		return err
	}
	c.networks = slices.DeleteFunc(c.networks, func(n string) bool { return n == name })
	return nil
}

func (c *campaign) run(ctx context.Context) error {
	network := c.pick(c.networks)
	if network == "" || len(c.containers) >= maxContainers {
		return nil
	}
	c.made++
	name := fmt.Sprint("random-", c.made)
	c.containers[name] = true
	return c.container(ctx, name, network)
}

func (c *campaign) start(ctx context.Context) error {
	name := c.pick(c.names(false))
	if name == "" {
		return nil
	}
	c.containers[name] = true
	_, err := c.engine.do(ctx, "start", name)
	return err
}

// stopper returns a step that ends a container that runs.
func (c *campaign) stopper(command ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		name := c.pick(c.names(true))
		if name == "" {
			return nil
		}
		c.containers[name] = false
		_, err := c.engine.do(ctx, append(command, name)...)
		return err
	}
}

func (c *campaign) remove(ctx context.Context) error {
	name := c.pick(append(c.names(true), c.names(false)...))
	if name == "" {
		return nil
	}
	delete(c.containers, name)
	_, err := c.engine.do(ctx, "rm", "--force", name)
	return err
}

func (c *campaign) restartAgent(ctx context.Context) error {
	if err := c.killAgent(); err != nil {
		return err
	}
	return c.startAgent(ctx)
}

// removeUnseen removes a container while the agent does not run, which is never told.
func (c *campaign) removeUnseen(ctx context.Context) error {
	if c.unseen {
		return nil
	}
	c.unseen = len(c.containers) > 0
	if err := c.killAgent(); err != nil {
		return err
	}
	return errors.Join(c.remove(ctx), c.startAgent(ctx))
}

// lose removes the database and both of its notes: the agent starts as on a new node.
func (c *campaign) lose(ctx context.Context) error {
	if err := errors.Join(c.killAgent(), c.loseDatabase()); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(c.Dir, "run", "db.note")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return c.startAgent(ctx)
}

// restartEngine kills the engine: its containers end without a word.
func (c *campaign) restartEngine(ctx context.Context) error {
	if err := c.engine.kill(); err != nil {
		return err
	}
	for name := range c.containers {
		c.containers[name] = false
	}
	return c.engine.start(ctx)
}

// clear removes all containers and networks.
func (c *campaign) clear(ctx context.Context) error {
	for name := range c.containers {
		if _, err := c.engine.do(ctx, "rm", "--force", name); err != nil {
			return err
		}
	}
	for _, name := range c.networks {
		if _, err := c.engine.do(ctx, "network", "rm", name); err != nil {
			return err
		}
	}
	return nil
}
