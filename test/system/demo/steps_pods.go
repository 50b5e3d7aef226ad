// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// addTwo adds two pods.
func (d *demo) addTwo(ctx context.Context) error {
	d.Step("Give two pods an address each: %s.", d.how())
	for _, name := range []string{"pod-1", "pod-2"} {
		if err := d.add(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// addThird adds a third pod after the crash.
func (d *demo) addThird(ctx context.Context) error {
	d.Step("Give a third pod an address, which no other pod has.")
	if err := d.add(ctx, "pod-3"); err != nil {
		return err
	}
	if d.node == nil {
		return nil
	}
	return d.tellSent(ctx, "udp", d.pods[2].End(), d.pods[0].End())
}

func (d *demo) how() string {
	if d.way == stage.WayNone {
		return "CNI's ADD straight to cadastre-cni"
	}
	return "cadastre-cni asks the agent, which makes the interfaces"
}

// add makes a pod and gives it an address.
func (d *demo) add(ctx context.Context, name string) error {
	p, err := stage.NewPod(name, d.way, d.Dir)
	if err != nil {
		return err
	}
	others := d.pods
	d.pods = append(d.pods, p)
	if err := d.inNode(func() error { return d.network.Add(ctx, p) }); err != nil {
		return err
	}
	if err := p.VerifyAdded(d.plan.Pods, d.plan.Gateway, others); err != nil {
		return err
	}
	d.Say(
		"%s/%s was given %s for %s; its gateway is %s.",
		stage.PodNamespace,
		p.Name,
		p.Address,
		stage.PodInterface,
		p.Gateway,
	)
	return nil
}

// sendPackets sends something from pod to pod and to the gateway.
func (d *demo) sendPackets(ctx context.Context) error {
	if d.node == nil {
		d.Step("Pass over sending packets: there is nothing to send them through.")
		return nil
	}
	d.Step("Send packets from one pod to the other, and to their gateway, the node.")
	one, two := d.pods[0].End(), d.pods[1].End()
	gateway := stage.End{Name: "the gateway", Address: d.plan.Gateway, Within: d.node.Do}
	for _, x := range []struct {
		protocol string
		from, to stage.End
	}{{"udp", one, two}, {"tcp", two, one}, {"udp", one, gateway}} {
		if err := d.tellSent(ctx, x.protocol, x.from, x.to); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) tellSent(ctx context.Context, protocol string, from, to stage.End) error {
	x, err := stage.Send(ctx, protocol, from, to)
	if err != nil {
		return err
	}
	d.Say("%s  %-11s received %q from %s; %s received %q.", protocol, to.Name, x.Heard, x.Seen, from.Name, x.Answer)
	return nil
}

// delete deletes the pods and looks at what is left.
func (d *demo) delete(ctx context.Context) error {
	d.Step("Delete the pods with CNI's DEL.")
	if d.node != nil { // without, other programs change the network that the agent sees
		if err := d.AwaitRest(ctx, d.agent, d.inNode); err != nil {
			return err
		}
	}
	for _, p := range d.pods {
		if err := d.inNode(func() error { return d.network.Del(ctx, p) }); err != nil {
			return err
		}
		if err := p.VerifyDeleted(ctx); err != nil {
			return err
		}
	}
	return d.verifyDeleted(ctx)
}
