// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// scenario holds the state that the steps share.
type scenario struct {
	stage.Agent
	*stage.Scenario
	room   *room
	engine *engine
	agent  *stage.Process // nil while it does not run

	miscounted []string // networks that the engine does not let go of before its restart
}

// limit bounds the time of the whole scenario.
const limit = 12 * time.Minute

// runScenario takes every step and then, whatever has happened, lets go of everything
// but the files.
func runScenario(ctx context.Context, p stage.Place, s *stage.Scenario, dockerd string) error {
	t := &scenario{Scenario: s, Agent: stage.Agent{
		Place: stage.Place{
			Root: p.Root,
			Bin:  p.Bin,
			Dir:  filepath.Join(p.Dir, "agent"),
		},
		Config: filepath.Join(p.Dir, "contiv.conf"),
		Node:   "node-1",
	}}
	t.engine = newEngine(p.Dir, dockerd, nil)
	err := t.all(ctx)
	ending := t.end()
	return s.End(
		ctx,
		err,
		ending,
		stage.Log{Of: "The agent", Path: t.Log()},
		stage.Log{Of: "The engine", Path: t.engine.log()},
	)
}

func (t *scenario) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for _, step := range []func(context.Context) error{
		t.open, t.everyWay, t.refusals, t.twoNetworks, t.manyEndpoints, t.images, t.managedPlugin,
		t.policies, t.engineStops, t.engineIsKilled, t.agentIsKilled, t.bothAreKilled,
		t.engineWithoutAgent, t.engineFirst,
		t.databaseIsLost, t.agentIsAway, t.requestIsAbandoned, t.atRandom, t.onePlan, t.nothingLeft,
	} {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		began := time.Now()
		if err := step(ctx); err != nil {
			return err
		}
		t.Say("(%.1f s)", time.Since(began).Seconds())
	}
	return nil
}

// end stops what runs, closes the room and removes what is outside of it.
func (t *scenario) end() error {
	err := t.engine.end()
	if t.agent != nil {
		err = errors.Join(err, t.stopAgent())
	}
	if t.room != nil {
		err = errors.Join(err, t.room.close())
		t.room = nil
	}
	return errors.Join(err, t.engine.removeCgroups())
}

// open makes the room, and in it agent and engine.
func (t *scenario) open(ctx context.Context) (err error) {
	t.Step("Open a room of its own for an agent and an engine, and make an image of one static program.")
	if err := os.MkdirAll(t.Dir, 0o700); err != nil {
		return err
	}
	inside := filepath.Join(t.engine.dir, "inside")
	build := exec.CommandContext(
		ctx,
		"go",
		"build",
		"-trimpath",
		"-ldflags=-s -w",
		"-o",
		inside,
		"./test/e2e/docker/inside",
	)
	build.Dir, build.Env = t.Root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build what is inside of the image: %w: %s", err, out)
	}
	if t.room, err = openRoom(ctx, t.engine.dir); err != nil {
		return err
	}
	t.engine.room = t.room
	if err := t.configure(""); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	version, err := t.engine.do(
		ctx,
		"version",
		"--format",
		"engine {{.Server.Version}} (API {{.Server.APIVersion}}), client {{.Client.Version}}",
	)
	if err != nil {
		return err
	}
	t.Say("%s", version)
	return t.engine.load(ctx, inside)
}

// pluginSocket is the path at which the engine looks for the driver, as seen in the room.
const pluginSocket = "/run/docker/plugins/cadastre.sock"

// configure writes the agent's configuration. What is released is gone at once.
func (t *scenario) configure(more string) error {
	return os.WriteFile(t.Config, []byte(`ipamConfig:
  podSubnetCIDR: 10.1.0.0/16
  podSubnetOneNodePrefixLen: 24
cadastre:
  coolDown: 0s
  docker:
    enabled: true
    socket: `+pluginSocket+"\n"+more), 0o600)
}

// startAgent starts the agent in the room and waits until it serves.
func (t *scenario) startAgent(ctx context.Context) (err error) {
	return t.launchAgent(ctx, t.Command(nil))
}

func (t *scenario) launchAgent(ctx context.Context, cmd *exec.Cmd) (err error) {
	if t.agent, err = t.room.start(cmd, t.Log()); err != nil {
		return err
	}
	return t.eventually(ctx, "the agent serves", func(ctx context.Context) error {
		select {
		case <-t.agent.Done():
			return over{t.agent.Ended()}
		default:
		}
		if _, err := t.Get(ctx, localapi.PathReadyz); err != nil {
			return err
		}
		_, err := os.Stat(t.pluginSocket())
		return err
	})
}

// pluginSocket returns the path at which the engine looks for the driver, as seen from
// outside.
func (t *scenario) pluginSocket() string {
	return filepath.Join(runDir(t.engine.dir), strings.TrimPrefix(pluginSocket, "/run"))
}

// stopAgent ends it in good order.
func (t *scenario) stopAgent() error {
	p := t.agent
	t.agent = nil
	return p.Stop(20 * time.Second)
}

// killAgent ends it with SIGKILL.
func (t *scenario) killAgent() error {
	p := t.agent
	t.agent = nil
	return p.Kill()
}

// over is an error that no waiting can cure.
type over struct{ error }

// eventually asks f again until it is content.
func (t *scenario) eventually(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	var last error // but for those that are only the end of the time
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if errors.As(err, new(over)) {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, last)
		case <-again.C:
		}
	}
}
