// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// agentName is the name of the agent's DaemonSet, agentLabel the one of its pods.
const (
	agentName  = "cadastre-agent"
	agentLabel = "app.kubernetes.io/name=cadastre-agent"
)

// daemonSet is a DaemonSet, as far as it is needed here.
type daemonSet struct {
	Spec struct {
		Template struct {
			Spec struct{ Containers, InitContainers []struct{ Image string } }
		}
	}
}

// images returns the names of the images of the agent and of the installer of CNI.
func (d daemonSet) images() (agent, installer string, err error) {
	spec := d.Spec.Template.Spec
	if len(spec.Containers) != 1 || len(spec.InitContainers) != 1 {
		return "", "", fmt.Errorf("the agent's DaemonSet has %d containers and %d init containers, want one of each",
			len(spec.Containers), len(spec.InitContainers))
	}
	return spec.Containers[0].Image, spec.InitContainers[0].Image, nil
}

// agentPods returns the pods of the DaemonSet.
func (t *scenario) agentPods(ctx context.Context) ([]pod, error) {
	var list struct{ Items []pod }
	err := t.plane.read(ctx, &list, "pods", "--namespace="+namespace, "--selector="+agentLabel)
	return list.Items, err
}

// awaitAgent binds the pod of the DaemonSet to the node, as a scheduler does, and waits
// until the agent in it serves.
func (t *scenario) awaitAgent(ctx context.Context) error {
	return t.eventually(ctx, "the agent's pod serves", func(ctx context.Context) error {
		pods, err := t.agentPods(ctx)
		if err != nil {
			return err
		}
		if len(pods) != 1 {
			return fmt.Errorf("the agent's DaemonSet has %d pods", len(pods))
		}
		if name := pods[0].Metadata.Name; pods[0].Spec.NodeName == "" {
			return t.bind(ctx, name)
		}
		if phase := pods[0].Status.Phase; phase != "Running" {
			return fmt.Errorf("%s is %s", pods[0].name(), phase)
		}
		_, err = t.Get(ctx, localapi.PathReadyz)
		return err
	})
}

// bind does the scheduler's work for one pod. The pod does not serve yet: it is always an
// error.
func (t *scenario) bind(ctx context.Context, name string) error {
	path := "/api/v1/namespaces/" + namespace + "/pods/" + name + "/binding"
	_, err := t.plane.feed(ctx, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"`+name+`"},
		"target":{"apiVersion":"v1","kind":"Node","name":"`+nodeName+`"}}`, "create", "--raw="+path, "--filename=-")
	return errors.Join(errors.New("the agent's pod has been bound to the node just now"), err)
}

// agentProcess returns the agent's process: this one sees the processes of all pods.
func agentProcess() (pid int, err error) {
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		if program, err := os.Readlink(path); err == nil && program == "/cadastre-agent" { // it may have ended
			return strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	return 0, errors.New("find the agent's process: none runs /cadastre-agent")
}

// killAgent ends the agent with SIGKILL, and waits for its end.
func (t *scenario) killAgent(ctx context.Context) error {
	pid, err := agentProcess()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the agent: %w", err)
	}
	return t.eventually(ctx, "the agent has ended", func(context.Context) error {
		if now, err := agentProcess(); err == nil && now == pid {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// sendAgentAway kills the agent, and has its pod removed before or after kubelet has
// started it again: the DaemonSet no longer wants this node.
func (t *scenario) sendAgentAway(ctx context.Context) error {
	if err := t.killAgent(ctx); err != nil {
		return err
	}
	if err := t.selectNodes(ctx, `{"cadastre-e2e":"another-node"}`); err != nil {
		return err
	}
	return t.eventually(ctx, "the agent's pod is gone", func(ctx context.Context) error {
		pods, err := t.agentPods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%s is %s", pods[0].name(), pods[0].Status.Phase)
		}
		return err
	})
}

func (t *scenario) bringAgentBack(ctx context.Context) error {
	if err := t.selectNodes(ctx, "null"); err != nil {
		return err
	}
	return t.awaitAgent(ctx)
}

func (t *scenario) selectNodes(ctx context.Context, selector string) error {
	_, err := t.plane.kubectl(ctx, "patch", "daemonset", agentName, "--namespace="+namespace,
		`--patch={"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
	return err
}

// agentLogs are the logs of the agent's pods.
func agentLogs() (all []stage.Log) {
	paths, err := filepath.Glob("/var/log/pods/" + namespace + "_" + agentName + "-*/*/*.log")
	if err != nil {
		return nil
	}
	for _, path := range paths {
		all = append(all, stage.Log{Of: "The agent's container " + filepath.Base(filepath.Dir(path)), Path: path})
	}
	return all
}
