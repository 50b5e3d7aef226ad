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
	*stage.Scenario
	place   stage.Place
	opt     stage.Options
	mode    string
	plane   plane
	nodes   []*node
	outside *outside
	others  []other        // in the order in which they started
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
	p := plane{dir: filepath.Join(opt.Dir, "plane"), assets: os.Getenv(assetsEnv)}
	t := &scenario{
		mode:     opt.Verb,
		Scenario: &stage.Scenario{W: stdout},
		place:    stage.Place{Root: opt.Root, Bin: opt.Bin, Dir: opt.Dir},
		opt:      opt,
		plane:    p,
		nodes:    newNodes(opt, p),
	}
	if err := furnish(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nIn a room of its own, with %s blocks:\n", t.mode)
	began := time.Now()
	err := t.all(ctx)
	ending := t.end(err == nil)
	if err == nil && ending == nil {
		t.Say("All that was as it must be. %.1f s.", time.Since(began).Seconds())
	}
	logs := t.agentLogs()
	for _, o := range t.others {
		logs = append(logs, stage.Log{Of: o.name, Path: o.log})
	}
	return t.End(ctx, err, ending, logs...)
}

func (t *scenario) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has taken longer than %s", limit))
	defer cancel()
	for _, step := range []func(context.Context) error{
		t.open,
		t.ready,
		t.pods,
		t.services,
		t.toTheOutside,
		t.hostPorts,
		t.witnessesSeePods,
		t.runtimeIsAway,
		t.agentsAreKilled,
		t.podGoesWithoutAgent,
		t.delIsLost,
		t.podComesWithoutAgent,
		t.addsFailBesideUs,
		t.nothingLeft,
		t.uninstall,
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
			err = errors.Join(err, fmt.Errorf("%s: %w", o.name, o.process.Ended()))
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
	if t.outside != nil {
		err = errors.Join(err, t.outside.close())
	}
	for _, n := range t.nodes {
		err = errors.Join(err, n.close())
	}
	return err
}

// here starts processes in this process's room.
func here(f func() error) error { return f() }

// start starts a program of the control plane that is to run until the end.
func (t *scenario) start(cmd *exec.Cmd) (*stage.Process, error) {
	return t.startAs(filepath.Base(cmd.Path), cmd)
}

// startOn starts a program on a node that is to run until the end.
func (t *scenario) startOn(n *node, name string, cmd *exec.Cmd) (*stage.Process, error) {
	return t.startAs(n.name+"-"+name, cmd)
}

func (t *scenario) startAs(name string, cmd *exec.Cmd) (*stage.Process, error) {
	log := filepath.Join(t.place.Dir, name+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = file, file, t.place.Dir
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
				return fmt.Errorf("%s: %s: %w", what, o.name, errors.Join(o.process.Ended(), last))
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

// open makes the networks, starts the control plane and applies the manifests.
func (t *scenario) open(ctx context.Context) (err error) {
	t.Step("Start etcd and a kube-apiserver beside a router, and apply k8s/crd and k8s/%s-kubernetes.", t.mode)
	var names []string
	for _, n := range t.nodes {
		names = append(names, n.name)
	}
	if err := t.plane.prepare(names...); err != nil {
		return err
	}
	for _, cmd := range t.plane.commands() {
		if _, err := t.start(cmd); err != nil {
			return err
		}
	}
	if t.outside, err = openOutside(); err != nil {
		return err
	}
	for _, n := range t.nodes {
		if err := n.open(t.opt); err != nil {
			return err
		}
	}
	err = t.eventually(ctx, "the API server is ready", func(ctx context.Context) error {
		_, err := t.plane.kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
	if err != nil {
		return err
	}
	if _, err := t.start(t.plane.controllers()); err != nil {
		return err
	}
	return t.plane.furnish(ctx, t.place, t.mode)
}

// ready starts the nodes, and waits until pods can run on them.
func (t *scenario) ready(ctx context.Context) error {
	t.Step("Start containerd, kubelet and kube-proxy on two nodes of different networks, and our operator.\n" +
		"    CNI's plugins are Debian's loopback and portmap: the DaemonSet's pods install ours, and write the list.")
	var set daemonSet
	if err := t.plane.read(ctx, &set, "daemonset", agentName, "--namespace="+namespace); err != nil {
		return err
	}
	all, err := images(t.place, set)
	if err != nil {
		return err
	}
	for _, n := range t.nodes {
		if err := t.startNode(ctx, n, all); err != nil {
			return err
		}
	}
	if err := t.startOperator(ctx); err != nil {
		return err
	}
	for _, n := range t.nodes {
		if err := t.startProxy(ctx, n); err != nil {
			return err
		}
	}
	if err := t.awaitAgents(ctx); err != nil {
		return err
	}
	if _, err := t.plane.kubectl(
		ctx,
		"wait",
		"--for=condition=Ready",
		"--timeout="+patience.String(),
		"node",
		"--all",
	); err != nil {
		return err
	}
	out, err := t.plane.kubectl(ctx, "get", "nodes", "--output=wide", "--no-headers")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		t.Say("%s", strings.Join(strings.Fields(line), " "))
	}
	return nil
}

// startNode starts a node's runtime and its kubelet.
func (t *scenario) startNode(ctx context.Context, n *node, images []string) error {
	if err := t.eventually(ctx, n.name+" has its mounts", n.ready); err != nil {
		return err
	}
	if err := n.prepare(); err != nil {
		return err
	}
	if err := t.startRuntime(ctx, n); err != nil {
		return err
	}
	err := t.eventually(ctx, "containerd takes images", func(ctx context.Context) error {
		return n.importImages(ctx, images)
	})
	if err != nil {
		return err
	}
	_, err = t.startOn(n, "kubelet", n.kubelet(ctx))
	return err
}

// startProxy starts kube-proxy when the node is there, which it asks for its addresses.
func (t *scenario) startProxy(ctx context.Context, n *node) error {
	err := t.eventually(ctx, "there is a node", func(ctx context.Context) error {
		_, err := t.plane.kubectl(ctx, "get", "node", n.name)
		return err
	})
	if err != nil {
		return err
	}
	_, err = t.startOn(n, "kube-proxy", n.proxy(ctx))
	return err
}

// startRuntime starts a node's containerd, for the first time or again.
func (t *scenario) startRuntime(ctx context.Context, n *node) error {
	cmd, err := n.containerd(ctx)
	if err != nil {
		return err
	}
	n.runtime, err = t.startOn(n, "containerd", cmd)
	return err
}

// stopRuntime stops containerd. Its containers run on.
func (t *scenario) stopRuntime(n *node) error {
	t.forget(n.runtime)
	return n.runtime.Halt(patience)
}

// forget removes a process from those that must not end.
func (t *scenario) forget(p *stage.Process) {
	t.others = slices.DeleteFunc(t.others, func(o other) bool { return o.process == p })
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
	t.manager, err = t.start(exec.Command(t.place.Program("cadastre-operator"), args...))
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
