// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// quick makes the agent give up in seconds, for the steps below.
const quick = "  witnesses: {interval: 1s}\n  reclaim: {grace: 1s, undo: 2s}\n"

// loseDatabase removes what the agent has stored, as if its disk were new; it does not run.
func (t *scenario) loseDatabase() error {
	err := filepath.WalkDir(t.Dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".note") { // with its notes the agent asks for cadastre accept
			err = os.Remove(path)
		}
		return err
	})
	err = errors.Join(err, os.RemoveAll(t.State()))
	return errors.Join(err, os.MkdirAll(t.State(), 0o700))
}

// databaseIsLost loses the agent's database under networks with gateways, auxiliary
// addresses, and containers that run or do not.
func (t *scenario) databaseIsLost(ctx context.Context) error {
	t.Step("Lose the database of the agent while the engine has networks and containers; nothing is allocated twice.")
	if err := t.configure(quick); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.makeLosses(ctx); err != nil {
		return err
	}
	if err := errors.Join(t.killAgent(), t.loseDatabase()); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.fillLost(ctx); err != nil {
		return err
	}
	if err := t.expectStarted(ctx); err != nil {
		return err
	}

	t.Step("Lose it again, and kill the engine: the agent starts first and refuses what it cannot know.")
	if err := errors.Join(t.killAgent(), t.engine.kill(), t.loseDatabase()); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	// An engine asks for the addresses of its containers before it answers anything.
	if err := t.eventually(ctx, "containers start again", func(ctx context.Context) error {
		_, err := t.engine.do(ctx, "start", "fixed", "lost-1", "lost-2", "lost-fixed", "lost-plain")
		return err
	}); err != nil {
		return err
	}
	return t.expectStarted(ctx)
}

// makeLosses makes the networks and containers that the database loses.
func (t *scenario) makeLosses(ctx context.Context) error {
	err := t.network(ctx, "lost", "--subnet", "10.60.0.0/29", "--gateway", "10.60.0.3", "--aux-address", "a=10.60.0.1")
	if err == nil {
		err = t.network(ctx, "lost-plain", "--subnet", "10.61.0.0/29")
	}
	if err == nil {
		err = t.container(ctx, "lost-1", "lost")
	}
	if err == nil {
		err = t.container(ctx, "lost-plain", "lost-plain")
	}
	if err == nil {
		err = t.container(ctx, "lost-fixed", "lost", "--ip", "10.60.0.4")
	}
	if err == nil {
		_, err = t.engine.do(ctx, "stop", "--time", "0", "lost-fixed")
	}
	return err
}

// fillLost runs containers in a network until it is full.
func (t *scenario) fillLost(ctx context.Context) error {
	given := map[string]string{
		"10.60.0.3/29": "the gateway",
		"10.60.0.1/29": "the auxiliary address",
		"10.60.0.4/29": "lost-fixed, which does not run",
	}
	for _, name := range []string{"lost-1", "lost-2", "lost-3"} {
		if name != "lost-1" {
			if err := t.container(ctx, name, "lost"); err != nil {
				return err
			}
		}
		has, err := t.engine.do(ctx, "exec", name, "/inside")
		if err != nil {
			return err
		}
		if given[has] != "" {
			return fmt.Errorf("%s has %s, which is also that of %s", name, has, given[has])
		}
		given[has] = name
	}
	err := t.container(ctx, "lost-4", "lost")
	if err == nil || !strings.Contains(err.Error(), "no available addresses") {
		return fmt.Errorf("a container more than the network has addresses: %w", err)
	}
	_, err = t.engine.do(ctx, "rm", "--force", "lost-3", "lost-4")
	return err
}

// expectStarted looks once the container with an address of its choice runs: it has it.
func (t *scenario) expectStarted(ctx context.Context) error {
	if _, err := t.engine.do(ctx, "start", "lost-fixed"); err != nil {
		return err
	}
	s, err := t.expect(ctx)
	if err == nil && (len(s.inside["lost-fixed"]) != 1 || s.inside["lost-fixed"][0] != "10.60.0.4/29") {
		err = fmt.Errorf("the container with --ip 10.60.0.4 has %s", s.inside["lost-fixed"])
	}
	return err
}

// agentIsAway removes containers and a network while the agent does not run.
func (t *scenario) agentIsAway(ctx context.Context) error {
	t.Step("Remove containers and a network while the agent is away: it is not told. Their leases and the pool end.")
	if err := t.killAgent(); err != nil {
		return err
	}
	began := time.Now()
	for _, args := range [][]string{{"rm", "--force", "lost-1"}, {"rm", "--force", "lost-plain"}, {"network", "rm", "lost-plain"}} {
		if _, err := t.engine.do(ctx, args...); err != nil {
			return err
		}
	}
	t.Say("The engine has tried for %.1f s to tell the agent.", time.Since(began).Seconds())
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.gone(ctx, "10.61.0.0/29"); err != nil {
		return err
	}
	_, err := t.expect(ctx)
	return err
}

// gone waits until a pool has ended.
func (t *scenario) gone(ctx context.Context, cidr string) error {
	return t.eventually(ctx, "the pool "+cidr+" is given up", func(ctx context.Context) error {
		var pools []localapi.DockerPool
		text, err := t.Read(ctx, &pools, "docker", "pools")
		if err != nil {
			return err
		}
		for _, p := range pools {
			if p.CIDR == cidr {
				return errors.New(text)
			}
		}
		return nil
	})
}

// requestIsAbandoned kills the engine after it has requested a pool and before it has
// the network.
func (t *scenario) requestIsAbandoned(ctx context.Context) error {
	t.Step("Kill the engine after it has asked for a pool: the network never comes to be. The pool ends.")
	if err := t.agent.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	asked := make(chan error, 1)
	go func() { asked <- t.network(ctx, "abandoned", "--subnet", "10.62.0.0/24") }()
	// The request is then in the socket of the agent, which cannot say so; that it was is
	// seen below.
	time.Sleep(2 * time.Second)
	err := errors.Join(t.engine.kill(), t.agent.Signal(syscall.SIGCONT))
	if <-asked == nil {
		return errors.Join(err, errors.New("the engine made a network without the agent"))
	}
	if err != nil {
		return err
	}
	if err := t.eventually(ctx, "the agent has served the request", func(ctx context.Context) error {
		text, err := t.CLI(ctx, "docker", "pools")
		if err == nil && !strings.Contains(text, "10.62.0.0/24") {
			err = errors.New(text)
		}
		return err
	}); err != nil {
		return err
	}
	return t.withoutEngine(ctx)
}

// rounds waits until the agent has read its witnesses so many times.
func (t *scenario) rounds(ctx context.Context, n int) error {
	read := func(ctx context.Context) (rounds int, err error) {
		text, err := t.Get(ctx, localapi.PathMetrics)
		if err != nil {
			return 0, err
		}
		_, line, _ := strings.Cut(text, "\ncadastre_witness_rounds_total ")
		_, err = fmt.Sscan(line, &rounds)
		return rounds, err
	}
	before, err := read(ctx)
	if err != nil {
		return fmt.Errorf("count the rounds of the witnesses: %w", err)
	}
	return t.eventually(ctx, fmt.Sprintf("%d rounds of the witnesses", n), func(ctx context.Context) error {
		now, err := read(ctx)
		if err == nil && now < before+n {
			err = fmt.Errorf("there were %d", now-before)
		}
		return err
	})
}

// withoutEngine looks at the agent while there is no engine, and then starts it.
func (t *scenario) withoutEngine(ctx context.Context) error {
	t.Step("While the engine does not run nothing of it is given up.")
	before, _, err := t.Leases(ctx)
	if err != nil {
		return err
	}
	if err := t.rounds(ctx, 6); err != nil { // longer than interval, grace and undo together
		return err
	}
	if err := t.expectSame(ctx, before); err != nil {
		return err
	}
	text, err := t.CLI(ctx, "docker", "pools")
	if err == nil && !strings.Contains(text, "10.62.0.0/24") {
		err = fmt.Errorf("the pool was given up without the engine: %s", text)
	}
	if err != nil {
		return err
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	if err := t.gone(ctx, "10.62.0.0/24"); err != nil {
		return err
	}
	for _, name := range []string{"lost-2", "lost-fixed"} {
		if _, err := t.engine.do(ctx, "rm", "--force", name); err != nil {
			return err
		}
	}
	if _, err := t.engine.do(ctx, "network", "rm", "lost"); err != nil {
		return err
	}
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	return t.stopAgent()
}
