// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// witnessesProgram is in the agent's image for this test: it reads the witnesses with
// the rights of the agent's container.
const witnessesProgram = "witnesses"

// seen is the output of that program.
type seen struct {
	Runtime struct {
		State, Reason, Source string
		Sandboxes             []sandbox
	}
}

type sandbox struct{ ID, Namespace, Name, NetNS string }

// ask runs the program in the agent's pod.
func (t *scenario) ask(ctx context.Context) (s seen, err error) {
	out, err := t.plane.kubectl(ctx, "exec", "daemonset/"+agentName, "--namespace="+namespace, "--", "/"+witnessesProgram)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("ask the witnesses: %w: %s", err, out)
	}
	return s, nil
}

// witnessesSeePods compares the sandboxes with the leases: the key of a lease has the
// ID of its sandbox and the file of its network namespace.
func (t *scenario) witnessesSeePods(ctx context.Context) error {
	t.Step("Ask the witnesses in the agent's pod, with the rights of the shipped manifest: they see the sandbox of each lease.")
	now, err := t.look(ctx)
	if err != nil {
		return err
	}
	s, err := t.ask(ctx)
	if err != nil {
		return err
	}
	if s.Runtime.State != "present" {
		return fmt.Errorf("the runtime is %s: %s", s.Runtime.State, s.Runtime.Reason)
	}
	t.Say("runtime: present, %s, %d sandboxes", s.Runtime.Source, len(s.Runtime.Sandboxes))
	return s.compare(now)
}

// compare finds leases without a sandbox.
func (s seen) compare(now scene) error {
	names := map[string]string{}
	for _, x := range s.Runtime.Sandboxes {
		names[x.ID] = x.Namespace + "/" + x.Name
		if !strings.HasPrefix(x.NetNS, "/var/run/netns/") && x.Namespace != namespace {
			return fmt.Errorf("the sandbox of %s/%s has network namespace %q", x.Namespace, x.Name, x.NetNS)
		}
	}
	var errs []error
	for _, l := range now.leases {
		if pod := l.PodNamespace + "/" + l.PodName; names[l.ContainerID] != pod {
			errs = append(errs, fmt.Errorf("%s of %s: sandbox %s is %q", l.IP, pod, l.ContainerID, names[l.ContainerID]))
		}
	}
	return errors.Join(errs...)
}

// runtimeIsAway takes the socket away from a runtime that runs, and then restarts it: the
// agent's pod sees the new socket.
func (t *scenario) runtimeIsAway(ctx context.Context) error {
	t.Step("Remove the runtime's socket: the witness is missing, and says why. Restart the runtime: it is present again.")
	now, err := t.look(ctx)
	if err != nil {
		return err
	}
	if err := os.Remove(runtimeSocket); err != nil {
		return err
	}
	s, err := t.ask(ctx) // through connections that were open before
	if err != nil {
		return err
	}
	if s.Runtime.State != "missing" || !strings.Contains(s.Runtime.Reason, runtimeSocket) {
		return fmt.Errorf("the runtime without its socket is %s: %q", s.Runtime.State, s.Runtime.Reason)
	}
	t.Say("runtime: missing, %s", s.Runtime.Reason)
	if err := t.stopRuntime(); err != nil {
		return err
	}
	if err := t.startRuntime(); err != nil {
		return err
	}
	return t.eventually(ctx, "the runtime is present again", func(ctx context.Context) error {
		s, err := t.ask(ctx)
		if err == nil && s.Runtime.State != "present" {
			err = fmt.Errorf("it is %s: %s", s.Runtime.State, s.Runtime.Reason)
		}
		return errors.Join(err, s.compare(now))
	})
}

// mountsAreGone looks for file systems of containers that have ended and that only the
// agent's pod still has mounted.
func (t *scenario) mountsAreGone(ctx context.Context) error {
	return t.eventually(ctx, "the agent's pod keeps no container's file system", func(context.Context) error {
		pid, err := agentProcess()
		if err != nil {
			return err
		}
		here, err := mountedContainers("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		there, err := mountedContainers(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
		for id := range there {
			if !here[id] {
				err = errors.Join(err, fmt.Errorf("container %s is mounted in the agent's pod only", id))
			}
		}
		return err
	})
}

// mountedContainers returns the IDs of containers and sandboxes of which something is
// mounted below containerd's folder.
func mountedContainers(mountinfo string) (map[string]bool, error) {
	file, err := os.Open(mountinfo)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	found := map[string]bool{}
	id := regexp.MustCompile("^" + filepath.Dir(runtimeSocket) + "/.*?/([0-9a-f]{64})(/|$)")
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		const mountPoint = 4
		if fields := strings.Fields(lines.Text()); len(fields) > mountPoint {
			if m := id.FindStringSubmatch(fields[mountPoint]); m != nil {
				found[m[1]] = true
			}
		}
	}
	return found, lines.Err()
}
