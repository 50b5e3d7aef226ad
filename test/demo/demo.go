// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/cadastre/cadastre/test/netlab"
)

// demo is what the steps share.
type demo struct {
	place
	*story
	way     way
	node    *netlab.Namespace // nil without namespaces, like every pod's
	pods    []*pod
	agent   *process
	network *network
	nodeID  uint32
	plan    plan
}

// plan is what cadastre plan prints, as far as it is compared here.
type plan struct {
	Pods    netip.Prefix `json:"podSubnetThisNode"`
	Gateway netip.Addr   `json:"podGatewayIP"`
}

// told is an error that has been printed.
type told struct{ error }

// tell takes every step and then, whatever has happened, lets go of everything
// but the files.
func tell(ctx context.Context, p place, w way, s *story) error {
	d := &demo{place: p, story: s, way: w}
	err := d.all(ctx)
	ending := d.end()
	switch {
	case err == nil && ending == nil:
		return nil
	case ctx.Err() != nil && ending == nil:
		fmt.Fprintf(s.w, "\nInterrupted in step %d.\n", s.steps)
	default:
		err = errors.Join(err, ending)
		fmt.Fprintf(s.w, "\nFAILED in step %d: %v\n", s.steps, err)
		d.tail()
	}
	return told{err}
}

func (d *demo) all(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for _, step := range []func(context.Context) error{
		d.openNode, d.startAgent, d.showPlan, d.addTwo, d.sendPackets, d.showLeases, d.crash, d.addThird, d.check, d.delete, d.stop,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// end stops what runs and closes the namespaces.
func (d *demo) end() error {
	var errs []error
	if d.agent != nil {
		errs = append(errs, d.agent.halt(10*time.Second))
		d.agent = nil
	}
	for _, p := range d.pods {
		if p.ns != nil {
			errs = append(errs, p.ns.Close())
		}
	}
	d.pods = nil
	if d.node != nil {
		errs = append(errs, d.node.Close())
		d.node = nil
	}
	return errors.Join(errs...)
}

// tail prints the end of the agent's log.
func (d *demo) tail() {
	const most = 20
	data, err := os.ReadFile(d.log())
	if err != nil || len(data) == 0 {
		return // it has not come so far
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	fmt.Fprintln(d.w, "The agent's log ends with:")
	d.say("%s", strings.Join(lines, "\n"))
}

// inNode calls f in the node's network namespace, if there is one.
func (d *demo) inNode(f func() error) error {
	if d.node == nil {
		return f()
	}
	return d.node.Do(f)
}
