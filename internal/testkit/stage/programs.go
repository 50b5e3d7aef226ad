// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// LookPath finds a program in PATH, or where Debian has those of root.
func LookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if path, err := exec.LookPath(dir + program); err == nil {
			return path, nil
		}
	}
	return "", err
}

// AptGet runs apt-get, which asks no questions. The error has the last line
// of what it said.
func AptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lines[len(lines)-1])
	}
	return nil
}
