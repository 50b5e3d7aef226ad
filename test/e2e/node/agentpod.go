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

// agentPod returns the name of the agent's pod on a node.
func (t *scenario) agentPod(ctx context.Context, n *node) (string, error) {
	pods, err := t.agentPods(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if p.Spec.NodeName == n.name {
			return p.Metadata.Name, nil
		}
	}
	return "", fmt.Errorf("the agent has no pod on %s", n.name)
}

// awaitAgents binds the pods of the DaemonSet to the nodes, as a scheduler does, and waits
// until the agents in them serve.
func (t *scenario) awaitAgents(ctx context.Context) error {
	return t.eventually(ctx, "the agents' pods serve", func(ctx context.Context) error {
		pods, err := t.agentPods(ctx)
		if err != nil {
			return err
		}
		if len(pods) != len(t.nodes) {
			return fmt.Errorf("the agent's DaemonSet has %d pods", len(pods))
		}
		for _, p := range pods {
			if p.Spec.NodeName == "" {
				return t.bind(ctx, p)
			}
			if phase := p.Status.Phase; phase != "Running" {
				return fmt.Errorf("%s is %s", p.name(), phase)
			}
		}
		for _, n := range t.nodes {
			if _, err := n.agent.Get(ctx, localapi.PathReadyz); err != nil {
				return fmt.Errorf("the agent of %s: %w", n.name, err)
			}
		}
		return nil
	})
}

// bind does the scheduler's work for one pod of a DaemonSet. The pod does not serve yet:
// it is always an error.
func (t *scenario) bind(ctx context.Context, p pod) error {
	target, err := p.wantedNode()
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + p.Metadata.Namespace + "/pods/" + p.Metadata.Name + "/binding"
	_, err = t.plane.feed(ctx, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"`+p.Metadata.Name+`"},
		"target":{"apiVersion":"v1","kind":"Node","name":"`+target+`"}}`, "create", "--raw="+path, "--filename=-")
	return errors.Join(fmt.Errorf("%s has been bound to %s just now", p.name(), target), err)
}

// agentProcess returns the process of a node's agent, which is in the node's network
// namespace: this process sees the processes of all pods.
func (n *node) agentProcess() (pid int, err error) {
	own, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(n.holder.PID()), "ns/net"))
	if err != nil {
		return 0, fmt.Errorf("find the agent's process: %w", err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		if program, err := os.Readlink(path); err != nil || program != "/cadastre-agent" {
			continue // it may have ended
		}
		dir := filepath.Dir(path)
		if ns, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && ns == own {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, fmt.Errorf("find the agent's process on %s: none runs /cadastre-agent", n.name)
}

// killAgents ends the agents with SIGKILL, and waits for their end.
func (t *scenario) killAgents(ctx context.Context) error {
	for _, n := range t.nodes {
		pid, err := n.agentProcess()
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill the agent: %w", err)
		}
		err = t.eventually(ctx, "the agent has ended", func(context.Context) error {
			if now, err := n.agentProcess(); err == nil && now == pid {
				return fmt.Errorf("process %d runs", pid)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sendAgentsAway kills the agents, and has their pods removed before or after kubelet has
// started them again: the DaemonSet no longer wants these nodes.
func (t *scenario) sendAgentsAway(ctx context.Context) error {
	if err := t.killAgents(ctx); err != nil {
		return err
	}
	if err := t.selectNodes(ctx, `{"cadastre-e2e":"another-node"}`); err != nil {
		return err
	}
	return t.eventually(ctx, "the agents' pods are gone", func(ctx context.Context) error {
		pods, err := t.agentPods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%s is %s", pods[0].name(), pods[0].Status.Phase)
		}
		return err
	})
}

func (t *scenario) bringAgentsBack(ctx context.Context) error {
	if err := t.selectNodes(ctx, "null"); err != nil {
		return err
	}
	return t.awaitAgents(ctx)
}

func (t *scenario) selectNodes(ctx context.Context, selector string) error {
	_, err := t.plane.kubectl(ctx, "patch", "daemonset", agentName, "--namespace="+namespace,
		`--patch={"spec":{"template":{"spec":{"nodeSelector":`+selector+`}}}}`)
	return err
}

// agentLogs returns the logs of our pods.
func (t *scenario) agentLogs() (all []stage.Log) {
	for _, n := range t.nodes {
		paths, err := filepath.Glob(n.host("/var/log/pods/cadastre-*/*/*.log"))
		if err != nil {
			return nil
		}
		for _, path := range paths {
			of := "The container " + filepath.Base(filepath.Dir(path)) + " on " + n.name
			all = append(all, stage.Log{Of: of, Path: path})
		}
	}
	return all
}
