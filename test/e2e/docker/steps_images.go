// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// stageOf returns an image's stage of our Dockerfile as a Dockerfile of its own, and the
// programs that it copies. The stage that builds them needs a registry.
func stageOf(dockerfile, name string) (text string, programs []string, err error) {
	_, text, found := strings.Cut(dockerfile, "\nFROM scratch AS "+name+"\n")
	if !found {
		return "", nil, fmt.Errorf("it has no stage %s", name)
	}
	text, _, _ = strings.Cut(text, "\nFROM ")
	const built = "/src/bin/dist/"
	text = "FROM scratch\n" + strings.ReplaceAll(text, "COPY --from=build ", "COPY ")
	for word := range strings.FieldsSeq(text) {
		if name, ok := strings.CutPrefix(word, built); ok {
			programs = append(programs, name)
		}
	}
	return strings.ReplaceAll(text, built, ""), programs, nil
}

// imageOf builds the image of a stage of our Dockerfile from programs that are there.
func (t *scenario) imageOf(ctx context.Context, from, name string) error {
	dockerfile := filepath.Join(t.Root, "docker", "Dockerfile")
	whole, err := os.ReadFile(dockerfile)
	if err != nil {
		return err
	}
	text, programs, err := stageOf(string(whole), from)
	if err != nil {
		return fmt.Errorf("%s: %w", dockerfile, err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(name string, data []byte, err error) error {
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))})
		}
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	}
	err = add("Dockerfile", []byte(text), nil)
	for _, p := range programs {
		data, rerr := os.ReadFile(t.Program(p))
		err = errors.Join(err, add(p, data, rerr))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("%s: %w", dockerfile, err)
	}
	_, err = t.engine.feed(ctx, &buf, "build", "--quiet", "--tag", name, "-")
	return err
}

// images builds the images and runs them as they are meant to be.
func (t *scenario) images(ctx context.Context) error {
	t.Step(
		"Build the images of docker/Dockerfile. Install the CNI plugin with the one, and run an agent of the other, with a capability and nothing to write to but its state.",
	)
	if err := stage.Build(ctx, t.Root, t.Bin, "./docker/cni-installer"); err != nil {
		return err
	}
	const cniImage, agentImage = "cadastre-e2e/cni:1", "cadastre-e2e/agent:1"
	if err := errors.Join(
		t.imageOf(ctx, "cni", cniImage),
		t.imageOf(ctx, "agent", agentImage),
	); err != nil {
		return err
	}
	if _, err := os.Stat(t.Program("cadastre-operator")); err == nil {
		if err := t.imageOf(ctx, "operator", "cadastre-e2e/operator:1"); err != nil {
			return err
		}
	}
	bin := filepath.Join(t.engine.dir, "cni-bin")
	out, err := t.engine.do(ctx, "run", "--rm", "--network", "none", "--volume", bin+":/host/opt/cni/bin", cniImage)
	if err != nil {
		return err
	}
	t.Say("%s", out)
	if _, err := os.Stat(filepath.Join(bin, "cadastre-cni")); err != nil {
		return err
	}
	conf := filepath.Join(t.engine.dir, "compose.conf")
	if err := os.WriteFile(conf, []byte("ipamConfig: {podSubnetCIDR: 10.9.0.0/16}\n"), 0o644); err != nil {
		return err
	}
	_, err = t.engine.do(
		ctx,
		"run",
		"--detach",
		"--name",
		"agent",
		"--network",
		"host",
		"--read-only",
		"--cap-drop",
		"ALL",
		"--cap-add",
		"NET_ADMIN",
		"--security-opt",
		"no-new-privileges:true",
		"--health-interval",
		"1s",
		"--volume",
		conf+":/etc/cadastre/contiv.conf:ro",
		"--volume",
		"state:/var/lib/cadastre",
		"--tmpfs",
		"/run/cadastre:mode=0700",
		agentImage,
		"--node-name=in-a-container",
	)
	if err != nil {
		return err
	}
	err = t.eventually(ctx, "the agent in a container is healthy", func(ctx context.Context) error {
		out, err := t.engine.do(ctx, "inspect", "--format", "{{.State.Health.Status}}", "agent")
		if err == nil && out != "healthy" {
			err = errors.New(out)
		}
		return err
	})
	if err != nil {
		said, _ := t.engine.do(ctx, "logs", "agent")
		return fmt.Errorf("%w: %s", err, said)
	}
	if out, err = t.engine.do(ctx, "exec", "agent", "/cadastre", "status", "--ready"); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if _, err := t.engine.do(ctx, "rm", "--force", "--volumes", "agent"); err != nil {
		return err
	}
	_, err = t.engine.do(ctx, "volume", "rm", "state")
	return err
}

// pluginName is the engine's name of the managed plugin.
const pluginName = "cadastre-e2e/plugin:1"

// managedPlugin has the engine run its plugin: without an agent, then with one.
func (t *scenario) managedPlugin(ctx context.Context) (err error) {
	t.Step(
		"Install docker/plugin as a managed plugin: without an agent it has a ledger of its own, with one it is its door.",
	)
	dir := filepath.Join(t.engine.dir, "plugin")
	if err := t.pluginFiles(dir); err != nil {
		return err
	}
	if _, err := t.engine.do(ctx, "plugin", "create", pluginName, dir); err != nil {
		return err
	}
	defer func() {
		_, rerr := t.engine.do(context.WithoutCancel(ctx), "plugin", "rm", "--force", pluginName)
		err = errors.Join(err, rerr)
	}()
	if _, err := t.engine.do(ctx, "plugin", "set", pluginName, "AGENT_SOCKET=/run/host/none.sock"); err != nil {
		return err
	}
	own, err := t.throughPlugin(ctx, func(ctx context.Context) (stage.Agent, error) { return t.ownLedger(ctx) })
	if err != nil {
		return err
	}
	if _, err := t.engine.do(ctx, "plugin", "set", pluginName, "AGENT_SOCKET=/run/host/"+driver+".sock"); err != nil {
		return err
	}
	agents, err := t.throughPlugin(ctx, func(context.Context) (stage.Agent, error) { return t.Agent, nil })
	if err != nil {
		return err
	}
	t.Say("Without an agent a container was given %s; with the agent %s.", own, agents)
	return nil
}

// pluginFiles makes the same files as make dist.
func (t *scenario) pluginFiles(dir string) error {
	config, err := os.ReadFile(filepath.Join(t.Root, "docker", "plugin", "config.json"))
	if err != nil {
		return err
	}
	program, err := os.ReadFile(t.Program("cadastre-docker-plugin"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.MkdirAll(
			filepath.Join(dir, "rootfs", "data"),
			0o755,
		),
		os.MkdirAll(filepath.Join(dir, "rootfs", "run", "host"), 0o755),
		os.WriteFile(filepath.Join(dir, "rootfs", "run", "docker.sock"), nil, 0o644), // another is mounted there
		os.WriteFile(
			filepath.Join(dir, "config.json"),
			config,
			0o644,
		),
		os.WriteFile(filepath.Join(dir, "rootfs", "cadastre-docker-plugin"), program, 0o755),
	)
}

// ownLedger is the plugin as something to look at with cadastre.
func (t *scenario) ownLedger(ctx context.Context) (stage.Agent, error) {
	id, err := t.engine.do(ctx, "plugin", "inspect", "--format", "{{.ID}}", pluginName)
	if err != nil {
		return stage.Agent{}, err
	}
	a := t.Agent
	a.Dir = filepath.Join(t.engine.dir, "own")
	if err := os.MkdirAll(filepath.Dir(a.Socket()), 0o700); err != nil {
		return a, err
	}
	data := filepath.Join(t.engine.dir, "data", "plugins", id, "propagated-mount", "agent.sock")
	_ = os.Remove(a.Socket())
	if err := os.Symlink(data, a.Socket()); err != nil { // its path is too long for a socket's
		return a, err
	}
	var s localapi.Status
	if _, err := a.Read(ctx, &s, "status"); err != nil {
		return a, err
	}
	t.Say("cadastre status: %s", strings.Join(s.Notes, "; "))
	return a, nil
}

// throughPlugin enables the plugin and runs a container in a network of it; its
// address is a lease of the agent or plugin behind it.
func (t *scenario) throughPlugin(
	ctx context.Context,
	behind func(context.Context) (stage.Agent, error),
) (given string, err error) {
	if _, err := t.engine.do(ctx, "plugin", "enable", pluginName); err != nil {
		return "", err
	}
	if _, err := t.engine.do(ctx, "network", "create", "--ipam-driver", pluginName, "plugged"); err != nil {
		return "", err
	}
	if err := t.container(ctx, "plugged", "plugged"); err != nil {
		return "", err
	}
	if given, err = t.engine.do(ctx, "exec", "plugged", "/inside"); err != nil {
		return "", err
	}
	a, err := behind(ctx)
	if err != nil {
		return "", err
	}
	ip, _, _ := strings.Cut(given, "/")
	held := func() (n int, err error) {
		all, _, err := a.Leases(ctx)
		for _, l := range all {
			if l.IP == ip && dockers(l) {
				n++
			}
		}
		return n, err
	}
	if n, err := held(); err != nil || n != 1 {
		return "", fmt.Errorf("%s in a container of the plugin has %d leases: %w", given, n, err)
	}
	for _, args := range [][]string{{"rm", "--force", "plugged"}, {"network", "rm", "plugged"}, {"plugin", "disable", pluginName}} {
		if n, err := held(); args[0] == "plugin" && (err != nil || n != 0) {
			return "", fmt.Errorf("%s still has %d leases: %w", given, n, err)
		}
		if _, err := t.engine.do(ctx, args...); err != nil {
			return "", err
		}
	}
	return given, nil
}
