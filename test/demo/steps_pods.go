// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/cadastre/cadastre/test/netlab"
)

// addTwo adds two pods.
func (d *demo) addTwo(ctx context.Context) error {
	d.step("Give two pods an address each: %s.", d.how())
	for _, name := range []string{"pod-1", "pod-2"} {
		if err := d.add(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// addThird adds a third pod after the crash.
func (d *demo) addThird(ctx context.Context) error {
	d.step("Give a third pod an address, which nobody else has.")
	if err := d.add(ctx, "pod-3"); err != nil {
		return err
	}
	if d.node == nil {
		return nil
	}
	return d.tellSent(ctx, "udp", d.pods[2].end(), d.pods[0].end())
}

func (d *demo) how() string {
	if d.way == wayNone {
		return "CNI's ADD straight to cadastre-cni"
	}
	return "CNI's bridge plugin asks cadastre-cni, which asks the agent"
}

// add makes a pod and gives it an address.
func (d *demo) add(ctx context.Context, name string) error {
	p := &pod{name: name, netns: filepath.Join(d.dir, "no-namespace-of-"+name)}
	if d.node != nil {
		ns, err := netlab.New()
		if err != nil {
			return err
		}
		p.ns, p.netns = ns, ns.Path()
	}
	others := d.pods
	d.pods = append(d.pods, p)
	if err := d.inNode(func() error { return d.network.add(ctx, p) }); err != nil {
		return err
	}
	if err := d.verifyAdded(p, others); err != nil {
		return fmt.Errorf("ADD %s: %w", p.name, err)
	}
	d.say("%s/%s was given %s for %s; its gateway is %s.", podNamespace, p.name, p.address, podInterface, p.gateway)
	return nil
}

// verifyAdded compares what ADD has answered with the plan, with the other pods
// and with the interface.
func (d *demo) verifyAdded(p *pod, others []*pod) error {
	switch {
	case p.address.Masked() != d.plan.Pods || p.address == d.plan.Pods:
		return fmt.Errorf("%s is no address of %s", p.address, d.plan.Pods)
	case p.gateway != d.plan.Gateway || p.address.Addr() == p.gateway:
		return fmt.Errorf("the gateway of %s is %s, not the plan's %s", p.address, p.gateway, d.plan.Gateway)
	case slices.ContainsFunc(others, func(o *pod) bool { return o.address == p.address }):
		return fmt.Errorf("%s is another pod's", p.address)
	case p.ns == nil:
		return nil
	}
	has, err := p.inside()
	if err != nil {
		return err
	}
	if !slices.Contains(has, p.address) {
		return fmt.Errorf("its interface has %v, not %s", has, p.address)
	}
	return nil
}

// sendPackets sends something from pod to pod and to the gateway.
func (d *demo) sendPackets(ctx context.Context) error {
	if d.node == nil {
		d.step("Pass over sending packets: there is nothing to send them through.")
		return nil
	}
	d.step("Send packets from one pod to the other, and to their gateway, the node's bridge.")
	one, two := d.pods[0].end(), d.pods[1].end()
	gateway := end{"the gateway", d.plan.Gateway, d.node.Do}
	for _, x := range []struct {
		protocol string
		from, to end
	}{{"udp", one, two}, {"tcp", two, one}, {"udp", one, gateway}} {
		if err := d.tellSent(ctx, x.protocol, x.from, x.to); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) tellSent(ctx context.Context, protocol string, from, to end) error {
	x, err := send(ctx, protocol, from, to)
	if err != nil {
		return err
	}
	d.say("%s  %-11s received %q from %s; %s received %q.", protocol, to.name, x.heard, x.seen, from.name, x.answer)
	return nil
}

// delete deletes the pods and looks at what is left.
func (d *demo) delete(ctx context.Context) error {
	d.step("Delete the pods with CNI's DEL.")
	for _, p := range d.pods {
		if err := d.inNode(func() error { return d.network.del(ctx, p) }); err != nil {
			return err
		}
		var has []netip.Prefix
		if p.ns != nil {
			var err error
			if has, err = p.inside(); err != nil {
				return err
			}
		}
		if len(has) > 0 {
			return fmt.Errorf("DEL %s: its interface still has %v", p.name, has)
		}
	}
	return d.verifyDeleted(ctx)
}
