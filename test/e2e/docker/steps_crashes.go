// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// running waits until these containers run; it ignores the other ones.
func (t *scenario) running(ctx context.Context, want ...string) error {
	return t.eventually(ctx, fmt.Sprintf("the containers %s run", want), func(ctx context.Context) error {
		out, err := t.engine.do(ctx, "ps", "--format", "{{.Names}}")
		if err != nil {
			return err
		}
		now := strings.Fields(out)
		for _, name := range want {
			if !slices.Contains(now, name) {
				return fmt.Errorf("these run: %s", now)
			}
		}
		return nil
	})
}

// policies has containers of every restart policy crash.
func (t *scenario) policies(ctx context.Context) error {
	t.Step("Let a container of each restart policy crash.")
	policies := []string{"always", "on-failure", "unless-stopped", "no"}
	for _, p := range policies {
		if err := t.container(ctx, p, "plain", "--restart", p); err != nil {
			return err
		}
	}
	if err := t.container(ctx, "fixed", "subnet", "--restart", "always", "--ip", "10.50.0.88"); err != nil {
		return err
	}
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	for _, name := range append(policies, "fixed") {
		_, _ = t.engine.do(ctx, "exec", name, "/inside", "crash") // it may end with the container
	}
	for _, name := range []string{"always", "on-failure", "unless-stopped", "fixed"} {
		if err := t.eventually(ctx, name+" was started again", func(ctx context.Context) error {
			out, err := t.engine.do(ctx, "inspect", "--format", "{{.RestartCount}} {{.State.Running}}", name)
			if err != nil {
				return err
			}
			count, running, _ := strings.Cut(out, " ")
			if n, err := strconv.Atoi(count); err != nil || n == 0 || running != "true" {
				return fmt.Errorf("%s restarts, running: %s", count, running)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := t.running(ctx, "always", "on-failure", "unless-stopped", "fixed", "c-plain"); err != nil {
		return err
	}
	return t.expectFixed(ctx)
}

// expectFixed looks; the container with an address of its choice has it.
func (t *scenario) expectFixed(ctx context.Context) error {
	s, err := t.expect(ctx)
	if err == nil && !slices.Equal(s.inside["fixed"], []string{"10.50.0.88/24"}) {
		err = fmt.Errorf("the container with --ip 10.50.0.88 has %s", s.inside["fixed"])
	}
	return err
}

// back are the containers that every engine starts. One that was killed takes
// "unless-stopped" for stopped, at least Debian's does.
func back() []string { return []string{"always", "fixed"} }

// engineStops restarts the engine in good order.
func (t *scenario) engineStops(ctx context.Context) error {
	t.Step("Stop the engine and start it again.")
	if err := t.engine.stop(); err != nil {
		return err
	}
	all, _, err := t.Leases(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if dockers(l) && !strings.HasPrefix(l.IfName, "gateway#") {
			return fmt.Errorf("the engine has stopped, and %s is held by %q", l.IP, l.IfName)
		}
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	if err := t.running(ctx, append(back(), "unless-stopped")...); err != nil {
		return err
	}
	for _, name := range t.miscounted {
		if _, err := t.engine.do(ctx, "network", "rm", name); err != nil {
			return err
		}
	}
	return t.expectFixed(ctx)
}

// engineIsKilled kills the engine: it never says what its containers had.
func (t *scenario) engineIsKilled(ctx context.Context) error {
	t.Step("Kill the engine with SIGKILL and start it again.")
	if err := t.engine.kill(); err != nil {
		return err
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	if err := t.running(ctx, back()...); err != nil {
		return err
	}
	return t.expectFixed(ctx)
}

// agentIsKilled kills the agent under a running engine.
func (t *scenario) agentIsKilled(ctx context.Context) error {
	t.Step("Kill the agent with SIGKILL and start it again; the engine has not noticed.")
	before, _, err := t.Leases(ctx)
	if err != nil {
		return err
	}
	if err := t.killAgent(); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.expectSame(ctx, before); err != nil {
		return err
	}
	if err := t.network(ctx, "later", "--subnet", "10.59.0.0/24"); err != nil {
		return err
	}
	if err := t.container(ctx, "later", "later"); err != nil {
		return err
	}
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	_, err = t.engine.do(ctx, "rm", "--force", "later")
	return err
}

// bothAreKilled kills both; the agent is back first.
func (t *scenario) bothAreKilled(ctx context.Context) error {
	t.Step("Kill both with SIGKILL; start the agent, and then the engine.")
	if err := errors.Join(t.engine.kill(), t.killAgent()); err != nil {
		return err
	}
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if err := t.engine.start(ctx); err != nil {
		return err
	}
	if err := t.running(ctx, back()...); err != nil {
		return err
	}
	return t.expectFixed(ctx)
}

// engineWithoutAgent starts the engine while there is no agent: for each network
// and each container it tries for about 15 s. So there is one of each.
func (t *scenario) engineWithoutAgent(ctx context.Context) error {
	t.Step("Stop both; start the engine without an agent, and then the agent.")
	for _, name := range []string{"c-plain", "always", "unless-stopped", "on-failure", "no"} {
		if _, err := t.engine.do(ctx, "rm", "--force", name); err != nil {
			return err
		}
	}
	if _, err := t.engine.do(ctx, "network", "rm", "plain", "later"); err != nil {
		return err
	}
	if err := errors.Join(t.engine.stop(), t.stopAgent()); err != nil {
		return err
	}
	began := time.Now()
	if err := t.engine.launch(); err != nil {
		return err
	}
	if err := t.engine.await(ctx, 90*time.Second); err != nil {
		return err
	}
	out, err := t.engine.do(ctx, "ps", "--all", "--format", "{{.Names}}: {{.Status}}")
	if err != nil {
		return err
	}
	t.Say(
		"The engine answers after %.1f s; its container with --restart always could not start (%s).",
		time.Since(began).Seconds(),
		out,
	)
	if err := t.startAgent(ctx); err != nil {
		return err
	}
	if _, err := t.expect(ctx); err != nil {
		return err
	}
	if _, err := t.engine.do(ctx, "start", "fixed"); err != nil {
		return err
	}
	return t.expectFixed(ctx)
}

// engineFirst starts the engine first, with the socket there already: another
// process has opened it and hands it to the agent, as systemd does. What the engine
// has to release is not lost then.
func (t *scenario) engineFirst(ctx context.Context) (err error) {
	t.Step("Kill both; open the socket as systemd does, start the engine, and the agent 3 s later.")
	path := t.pluginSocket()
	if err := errors.Join(t.engine.kill(), t.killAgent(), os.Remove(path)); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	began := time.Now()
	if err := t.engine.launch(); err != nil {
		return err
	}
	if err := t.engine.await(ctx, 3*time.Second); err == nil {
		return errors.New("the engine did not wait for the agent")
	}
	if err := t.activateAgent(ctx, l); err != nil {
		return err
	}
	if err := t.engine.await(ctx, usually); err != nil {
		return err
	}
	t.Say("The engine answers after %.1f s, and has started its container by itself.", time.Since(began).Seconds())
	if err := t.running(ctx, "fixed"); err != nil {
		return err
	}
	if err := t.expectFixed(ctx); err != nil {
		return err
	}
	if err := t.stopAgent(); err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the agent has removed a socket that is not its own: %w", err)
	}
	return nil
}

// activateAgent starts the agent with a listener as its file 3.
func (t *scenario) activateAgent(ctx context.Context, l *net.UnixListener) error {
	file, err := l.File()
	if err != nil {
		return err
	}
	cmd := t.Command(nil)
	// Only the process itself knows its number in there.
	sh := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$@"`, "agent"}, cmd.Args...)...)
	sh.Dir, sh.Env = cmd.Dir, append(os.Environ(), "LISTEN_FDS=1", "LISTEN_FDNAMES=docker")
	sh.ExtraFiles = []*os.File{file}
	return errors.Join(t.launchAgent(ctx, sh), file.Close())
}
