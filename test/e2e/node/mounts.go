// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// mountsAreGone looks for file systems of containers that have ended and that only the
// agent's pod still has mounted.
func (t *scenario) mountsAreGone(ctx context.Context) error {
	return t.eventually(ctx, "the agent's pod keeps no container's file system", func(context.Context) error {
		var errs []error
		for _, n := range t.nodes {
			errs = append(errs, n.mountsAreGone())
		}
		return errors.Join(errs...)
	})
}

func (n *node) mountsAreGone() error {
	pid, err := n.agentProcess()
	if err != nil {
		return err
	}
	here, err := mountedContainers(filepath.Join("/proc", strconv.Itoa(n.holder.PID()), "mountinfo"))
	if err != nil {
		return err
	}
	there, err := mountedContainers(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
	for id := range there {
		if !here[id] {
			err = errors.Join(err, fmt.Errorf("container %s is mounted in the agent's pod of %s only", id, n.name))
		}
	}
	return err
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
