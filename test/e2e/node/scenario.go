// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// scenario holds the state that the steps share.
type scenario struct {
	stage.Agent
	*stage.Scenario
	mode    string
	plane   plane
	node    node
	others  []other        // in the order in which they started
	runtime *stage.Process // containerd
	manager *stage.Process // our operator
}

// other is a program that runs all the time.
type other struct {
	name    string
	log     string
	process *stage.Process
}

// limit bounds the time of a scenario, patience that of each event that should
// happen soon.
const (
	limit    = 8 * time.Minute
	patience = 2 * time.Minute
)

// runInRoom takes every step in the room that this process is the first of, and ends
// our programs in good order. All other programs end with the room.
func runInRoom(ctx context.Context, opt stage.Options, stdout io.Writer) error {
	place := stage.Place{Root: opt.Root, Bin: opt.Bin, Dir: filepath.Join(opt.Dir, "agent")}
	p := plane{dir: filepath.Join(opt.Dir, "plane"), assets: os.Getenv(assetsEnv)}
	t := &scenario{
		mode:     opt.Verb,
		Scenario: &stage.Scenario{W: stdout},
		plane:    p,
		node:     node{dir: filepath.Join(opt.Dir, "node"), group: groupName(opt.Dir), plane: p},
		Agent:    stage.Agent{Place: place, Config: filepath.Join(opt.Dir, "contiv.conf"), Node: nodeName},
	}
	if err := furnish(ctx, opt.Dir); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nIn a room of its own, with %s blocks:\n", t.mode)
	began := time.Now()
	err := t.all(ctx)
	ending := t.end(err == nil)
	if err == nil && ending == nil {
		t.Say("All that was as it must be. %.1f s.", time.Since(began).Seconds())
	}
	logs := agentLogs()
	for _, o := range t.others {
		logs = append(logs, stage.Log{Of: o.name, Path: o.log})
	}
	return t.End(ctx, err, ending, logs...)
}

func (t *scenario) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has taken longer than %s", limit))
	defer cancel()
	for _, step := range []func(context.Context) error{
		t.open, t.ready, t.twoPods, t.witnessesSeePods, t.runtimeIsAway, t.agentIsKilled, t.podGoesWithoutAgent, t.delIsLost, t.podComesWithoutAgent, t.addsFailBehindUs, t.nothingLeft,
	} {
		if ctx.Err() != nil {
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

// end stops our programs. Of the others none may have ended by itself.
func (t *scenario) end(well bool) (err error) {
	for _, o := range t.others {
		select {
		case <-o.process.Done():
			err = errors.Join(err, o.process.Ended())
		default:
		}
	}
	if well {
		t.Step("Stop the operator in good order; all others end with the room.")
	}
	const soon = 20 * time.Second
	if t.manager != nil {
		err = errors.Join(err, t.manager.Stop(soon))
	}
	return err
}

// here starts processes in this process's room.
func here(f func() error) error { return f() }

// start starts a program that is to run until the end.
func (t *scenario) start(cmd *exec.Cmd) (*stage.Process, error) {
	name := filepath.Base(cmd.Path)
	log := filepath.Join(filepath.Dir(t.Dir), name+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = file, file, filepath.Dir(t.Dir)
	p, err := stage.Start(cmd, here)
	if err = errors.Join(err, file.Close()); err != nil { // it has its own
		return nil, err
	}
	t.others = append(t.others, other{name, log, p})
	return p, nil
}

// eventually tries until it succeeds, for as long as everything runs.
func (t *scenario) eventually(ctx context.Context, what string, try func(context.Context) error) error {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	var last error
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // that the time is over says nothing
			last = err
		}
		for _, o := range t.others {
			select {
			case <-o.process.Done():
				return fmt.Errorf("%s: %w", what, errors.Join(o.process.Ended(), last))
			default:
			}
		}
		select {
		case <-ctx.Done():
			if whole.Err() != nil {
				return context.Cause(whole)
			}
			return fmt.Errorf("%s: not within %s: %w", what, patience, last)
		case <-again.C:
		}
	}
}

// open starts the control plane and applies the manifests.
func (t *scenario) open(ctx context.Context) error {
	t.Step("Start etcd and a kube-apiserver, and apply k8s/crd and k8s/%s-kubernetes.", t.mode)
	if err := os.MkdirAll(t.Dir, 0o700); err != nil {
		return err
	}
	if err := os.Symlink("/run/cadastre", filepath.Dir(t.Socket())); err != nil { // which the agent's pod mounts
		return err
	}
	if err := t.plane.prepare(); err != nil {
		return err
	}
	for _, cmd := range t.plane.commands() {
		if _, err := t.start(cmd); err != nil {
			return err
		}
	}
	err := t.eventually(ctx, "the API server is ready", func(ctx context.Context) error {
		_, err := t.plane.kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
	if err != nil {
		return err
	}
	if _, err := t.start(t.plane.controllers()); err != nil {
		return err
	}
	return t.plane.furnish(ctx, t.Place, t.mode)
}

// ready starts the node, and waits until pods can run on it.
func (t *scenario) ready(ctx context.Context) error {
	t.Step("Start containerd, kubelet and our operator. The DaemonSet's pod installs CNI and serves.")
	if err := t.node.prepare(); err != nil {
		return err
	}
	if err := t.startRuntime(); err != nil {
		return err
	}
	var set daemonSet
	if err := t.plane.read(ctx, &set, "daemonset", agentName, "--namespace="+namespace); err != nil {
		return err
	}
	all, err := images(t.Place, set)
	if err != nil {
		return err
	}
	err = t.eventually(ctx, "containerd takes images", func(ctx context.Context) error {
		return t.node.importImages(ctx, all)
	})
	if err != nil {
		return err
	}
	if _, err := t.start(t.node.kubelet()); err != nil {
		return err
	}
	if err := t.startOperator(ctx); err != nil {
		return err
	}
	err = t.eventually(ctx, "there is a node", func(ctx context.Context) error {
		_, err := t.plane.kubectl(ctx, "get", "node", nodeName)
		return err
	})
	if err != nil {
		return err
	}
	if err := t.awaitAgent(ctx); err != nil {
		return err
	}
	if _, err := t.plane.kubectl(
		ctx,
		"wait",
		"--for=condition=Ready",
		"--timeout="+patience.String(),
		"node/"+nodeName,
	); err != nil {
		return err
	}
	out, err := t.plane.kubectl(ctx, "get", "node", nodeName, "--output=wide", "--no-headers")
	if err != nil {
		return err
	}
	t.Say("%s", strings.Join(strings.Fields(out), " "))
	return nil
}

// startRuntime starts containerd, for the first time or again.
func (t *scenario) startRuntime() error {
	cmd, err := t.node.containerd()
	if err != nil {
		return err
	}
	t.runtime, err = t.start(cmd)
	return err
}

// stopRuntime stops containerd. Its containers run on.
func (t *scenario) stopRuntime() error {
	t.others = slices.DeleteFunc(t.others, func(o other) bool { return o.process == t.runtime })
	return t.runtime.Halt(patience)
}

// startOperator starts our operator with the flags of its Deployment.
func (t *scenario) startOperator(ctx context.Context) error {
	var d deployment
	if err := t.plane.read(ctx, &d, "deployment", "cadastre-operator", "--namespace="+namespace); err != nil {
		return err
	}
	args, err := d.args()
	if err != nil {
		return err
	}
	t.Say("$ cadastre-operator %s", strings.Join(args, " "))
	args = append(args, "--kubeconfig="+t.plane.kubeconfig("cadastre-operator"))
	t.manager, err = t.start(exec.Command(t.Program("cadastre-operator"), args...))
	return err
}

// deployment is a Deployment, as far as it is needed here.
type deployment struct {
	Spec struct {
		Template struct {
			Spec struct{ Containers []struct{ Args []string } }
		}
	}
}

func (d deployment) args() ([]string, error) {
	if n := len(d.Spec.Template.Spec.Containers); n != 1 {
		return nil, fmt.Errorf("the operator's Deployment has %d containers, not one", n)
	}
	return d.Spec.Template.Spec.Containers[0].Args, nil
}
