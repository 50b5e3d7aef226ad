// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// Pods serve a page with their name and the source address of the request.
const pagePort = "8080"

func pageOf(address string) string { return "http://" + address + ":" + pagePort }

// reach fails unless each pod has its address, and each other pod answers it. The other
// pod answers to a ping, and with a page that has the first pod's own address as the
// source of the request.
func (t *scenario) reach(ctx context.Context, pods []pod) error {
	for _, from := range pods {
		has, err := t.inside(ctx, from.Metadata.Name, "ip", "-4", "-o", "addr", "show", "dev", "eth0")
		if err != nil {
			return err
		}
		if !strings.Contains(has, " "+from.Status.PodIP+"/") {
			return fmt.Errorf("%s has not %s inside: %s", from.Metadata.Name, from.Status.PodIP, has)
		}
		for _, to := range pods {
			if to.Status.PodIP == from.Status.PodIP {
				continue
			}
			if err := t.reaches(ctx, from, to); err != nil {
				return err
			}
		}
	}
	t.Say("Each has its address inside, and they reach each other with it.")
	return nil
}

// reaches fails unless one pod reaches another. Node records of a node that has just
// started may be on their way.
func (t *scenario) reaches(ctx context.Context, from, to pod) error {
	what := fmt.Sprintf("%s reaches %s", from.Metadata.Name, to.Metadata.Name)
	return t.eventually(ctx, what, func(ctx context.Context) error {
		if _, err := t.inside(ctx, from.Metadata.Name, "ping", "-c", "1", "-W", "5", to.Status.PodIP); err != nil {
			return err
		}
		answer, err := t.fetch(ctx, from.Metadata.Name, pageOf(to.Status.PodIP))
		if want := to.Metadata.Name + " " + from.Status.PodIP; err == nil && answer != want {
			err = fmt.Errorf("the answer is %q, want %q", answer, want)
		}
		return err
	})
}

// nodesReach fails unless each node reaches each pod.
func (t *scenario) nodesReach(ctx context.Context, pods []pod) error {
	for _, n := range t.nodes {
		for _, to := range pods {
			answer, err := n.fetch(ctx, pageOf(to.Status.PodIP))
			if err == nil && !strings.HasPrefix(answer, to.Metadata.Name+" ") {
				err = fmt.Errorf("the answer is %q", answer)
			}
			if err != nil {
				return fmt.Errorf("from %s to %s: %w", n.name, to.name(), err)
			}
		}
	}
	t.Say("Each node reaches each pod.")
	return nil
}

// services makes a Service of all pods and one of a single pod, which asks itself by it.
func (t *scenario) services(ctx context.Context) error {
	t.Step("Create Services: pods and nodes reach pods of both nodes by the address of a Service, and a pod itself.")
	if _, err := t.plane.kubectl(
		ctx,
		"wait",
		"--for=condition=Ready",
		"--timeout="+patience.String(),
		"pod",
		"--all",
	); err != nil {
		return err
	}
	all, err := t.createService(ctx, "all", "app", "page")
	if err != nil {
		return err
	}
	own, err := t.createService(ctx, "own", "pod", "first")
	if err != nil {
		return err
	}
	want := []string{"far", "first", "second"}
	for _, from := range []string{"first", "far"} {
		if err := t.servedBy(ctx, want, func() (string, error) { return t.fetch(ctx, from, pageOf(all)) }); err != nil {
			return fmt.Errorf("from %s: %w", from, err)
		}
	}
	for _, n := range t.nodes {
		if err := t.servedBy(ctx, want, func() (string, error) { return n.fetch(ctx, pageOf(all)) }); err != nil {
			return fmt.Errorf("from %s: %w", n.name, err)
		}
	}
	itself := func() (string, error) { return t.fetch(ctx, "first", pageOf(own)) }
	if err := t.servedBy(ctx, []string{"first"}, itself); err != nil {
		return fmt.Errorf("from first to itself: %w", err)
	}
	t.Say("%s answers pods and nodes with pods of both nodes, %s its only pod with itself.", all, own)
	return nil
}

// createService creates a Service of the pods with a label, and returns its address.
func (t *scenario) createService(ctx context.Context, name, label, value string) (string, error) {
	_, err := t.plane.feed(ctx, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"`+name+`"},
		"spec":{"selector":{"`+label+`":"`+value+`"},"ports":[{"port":`+pagePort+`}]}}`, "create", "--filename=-")
	if err != nil {
		return "", err
	}
	return t.plane.kubectl(ctx, "get", "service", name, "--output=jsonpath={.spec.clusterIP}")
}

// servedBy asks a Service until each of the pods, and no other, has answered.
func (t *scenario) servedBy(ctx context.Context, want []string, ask func() (string, error)) error {
	seen := map[string]bool{}
	return t.eventually(ctx, "the Service answers", func(context.Context) error {
		answer, err := ask()
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(answer, " ")
		seen[name] = true
		if have := slices.Sorted(maps.Keys(seen)); !slices.Equal(have, want) {
			return fmt.Errorf("these have answered: %q, want %q", have, want)
		}
		return nil
	})
}

// toTheOutside compares the source addresses that a host outside sees with the nodes'.
func (t *scenario) toTheOutside(ctx context.Context) error {
	t.Step("Ask a host outside which address it sees: that of the node, of each pod.")
	s, err := t.look(ctx)
	if err != nil {
		return err
	}
	for _, n := range t.nodes {
		for _, p := range s.pods {
			if p.Spec.NodeName != n.name {
				continue
			}
			seen, err := t.fetch(ctx, p.Metadata.Name, outsideURL)
			if err == nil && seen != n.ip {
				err = fmt.Errorf("it sees %s, want %s", seen, n.ip)
			}
			if err != nil {
				return fmt.Errorf("from %s to the outside: %w", p.name(), err)
			}
			t.Say("%s %s is seen as %s.", p.Metadata.Name, p.Status.PodIP, seen)
		}
	}
	return nil
}

// flow holds the pings of one pod to each other pod that run until the file /stop is in the pod.
type flow struct {
	from  string
	pings []*exec.Cmd
	out   []*strings.Builder
}

const (
	flowRound = "50" // packets
	flowLine  = flowRound + " packets transmitted, " + flowRound + " packets received, 0% packet loss"
)

// startFlow begins pings, and returns when each has been answered.
func (t *scenario) startFlow(ctx context.Context, from string, pods []pod) (*flow, error) {
	f := &flow{from: from}
	for _, to := range pods {
		if to.Metadata.Name == from {
			continue
		}
		script := "/bin/busybox ping -c 1 -W 5 " + to.Status.PodIP + " && while [ ! -e /stop ]; do /bin/busybox ping -q -c " +
			flowRound + " -i 0.02 -W 5 " + to.Status.PodIP + "; done"
		cmd := t.plane.command(ctx, "exec", from, "--", "/bin/busybox", "sh", "-c", script)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			return nil, fmt.Errorf("begin to ping: %w", err)
		}
		f.pings, f.out = append(f.pings, cmd), append(f.out, &out)
	}
	// Rounds, and not their shells.
	pinging := regexp.MustCompile(`(?m)^ *[0-9]+ \S+ +/bin/busybox ping -q`)
	return f, t.eventually(ctx, "pings run", func(ctx context.Context) error {
		running, err := t.inside(ctx, from, "ps")
		if err == nil && len(pinging.FindAllString(running, -1)) != len(f.pings) {
			err = errors.New(running)
		}
		return err
	})
}

// endFlow ends the pings. A packet without an answer is an error.
func (t *scenario) endFlow(ctx context.Context, f *flow) error {
	if _, err := t.inside(ctx, f.from, "touch", "/stop"); err != nil {
		return err
	}
	const packetsEach = 50
	var rounds int
	for i, cmd := range f.pings {
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("ping: %w: %s", err, f.out[i])
		}
		n, err := lossless(f.out[i].String())
		if err != nil {
			return err
		}
		rounds += n
	}
	t.Say("%d packets were sent meanwhile, and all were answered.", rounds*packetsEach)
	return nil
}

// lossless returns the number of rounds in the output of pings, and fails if one has lost
// a packet.
func lossless(out string) (rounds int, err error) {
	lines := regexp.MustCompile(`(?m)^.* packets transmitted, .*$`).FindAllString(out, -1)
	for i, line := range lines {
		if i == 0 {
			continue // the first packet alone
		}
		if line != flowLine {
			return 0, fmt.Errorf("want only rounds of %q: %q", flowLine, line)
		}
		rounds++
	}
	if rounds == 0 {
		return 0, fmt.Errorf("no round of pings has ended: %s", out)
	}
	return rounds, nil
}
