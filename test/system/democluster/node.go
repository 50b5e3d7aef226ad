// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// node is one machine of the cluster: its namespace, its agent, its pods.
type node struct {
	stage.Agent
	number int
	way    stage.Way
	ns     *netlab.Namespace // nil without namespaces
	agent  *stage.Process    // nil while it does not run
	pods   []*pod
	made   int   // pods so far
	logged int64 // how long the log was when the agent was started

	id      uint32
	address netip.Prefix // of nodeInterconnectCIDR, as it follows from id
	overlay netip.Prefix // of vxlanCIDR, likewise
}

// pod is one pod with the network that it was attached to.
type pod struct {
	*stage.Pod
	network *stage.Network
}

// inside calls f in the node's network namespace, if there is one.
func (n *node) inside(f func() error) error {
	if n.ns == nil {
		return f()
	}
	return n.ns.Do(f)
}

// launch starts the agent and does not wait for it.
func (n *node) launch() (err error) {
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return fmt.Errorf("start the agent of %s: %w", n.Node, err)
	}
	if log, err := os.Stat(n.Log()); err == nil { // it has run before
		n.logged = log.Size()
	}
	n.agent, err = n.Launch(n.inside)
	return err
}

// ready waits until the agent serves.
func (n *node) ready(ctx context.Context) error {
	if err := n.Await(ctx, n.agent); err != nil {
		return fmt.Errorf("%s: %w", n.Node, err)
	}
	return nil
}

// kill ends the agent with SIGKILL.
func (n *node) kill() error {
	p := n.agent
	n.agent = nil
	return p.Kill()
}

// stop ends the agent in good order.
func (n *node) stop() error {
	p := n.agent
	n.agent = nil
	return p.Stop(10 * time.Second)
}

// end lets go of everything, whatever state it is in.
func (n *node) end() error {
	var errs []error
	if n.agent != nil {
		errs = append(errs, n.agent.Halt(10*time.Second))
		n.agent = nil
	}
	for _, p := range n.pods {
		errs = append(errs, p.Close())
	}
	n.pods = nil
	if n.ns != nil {
		errs = append(errs, n.ns.Close())
		n.ns = nil
	}
	return errors.Join(errs...)
}

// status returns the agent's status.
func (n *node) status(ctx context.Context) (s localapi.Status, err error) {
	_, err = n.Read(ctx, &s, "status")
	return s, err
}

// add makes a pod and attaches it; where that fails the pod is there, too, and
// is to be deleted.
func (n *node) add(ctx context.Context) (*pod, error) {
	network, err := stage.NewNetwork(n.Agent, n.way, "")
	if err != nil {
		return nil, err
	}
	n.made++
	made, err := stage.NewPod(fmt.Sprintf("pod-%d%c", n.number, 'a'+rune(n.made-1)), n.way, n.Dir)
	if err != nil {
		return nil, err
	}
	p := &pod{made, network}
	others := n.all()
	n.pods = append(n.pods, p)
	if err := n.inside(func() error { return network.Add(ctx, p.Pod) }); err != nil {
		return p, err
	}
	if slices.ContainsFunc(others, func(o *stage.Pod) bool { return o.Address == p.Address }) {
		return p, fmt.Errorf("ADD %s: %s is another pod's", p.Name, p.Address)
	}
	if n.ns == nil {
		return p, nil
	}
	return p, p.VerifyInside()
}

// delete detaches a pod and forgets it.
func (n *node) delete(ctx context.Context, p *pod) error {
	if err := n.inside(func() error { return p.network.Del(ctx, p.Pod) }); err != nil {
		return err
	}
	err := p.VerifyDeleted(ctx)
	n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
	return errors.Join(err, p.Close())
}

func (n *node) all() (all []*stage.Pod) {
	for _, p := range n.pods {
		all = append(all, p.Pod)
	}
	return all
}

// verify fails unless every pod still has its address, by its interface, by
// CNI's CHECK and by the leases.
func (n *node) verify(ctx context.Context) error {
	for _, p := range n.pods {
		if err := n.inside(func() error { return p.network.Check(ctx, p.Pod) }); err != nil {
			return err
		}
		if n.ns == nil {
			continue
		}
		if err := p.VerifyInside(); err != nil {
			return err
		}
	}
	leases, _, err := n.Leases(ctx)
	if err != nil {
		return err
	}
	return stage.VerifyHeld(leases, n.all(), true)
}
