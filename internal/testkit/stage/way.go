// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// Way selects the process that makes network namespaces.
type Way string

// The ways.
const (
	WayAuto Way = "auto" // the first of the following that works
	WayRoot Way = "root" // by this process
	WayUser Way = "user" // by this program, started again as root of a user namespace
	WayNone Way = "none" // not at all
)

// set is for a flag.
func (w *Way) set(s string) error {
	switch Way(s) {
	case WayAuto, WayRoot, WayUser, WayNone:
		*w = Way(s)
		return nil
	}
	return fmt.Errorf("write one of %s, %s, %s, %s", WayAuto, WayRoot, WayUser, WayNone)
}

// Find tries the ways for real. With none it says why; a way that was asked for
// by name and does not work is an error.
func Find(ctx context.Context, want Way) (found Way, why string, err error) {
	switch want {
	case WayNone:
		return WayNone, "it was asked for", nil
	case WayRoot:
		return WayRoot, "", tryRoot()
	case WayUser:
		return WayUser, "", TryUser(ctx)
	}
	root := tryRoot()
	if root == nil {
		return WayRoot, "", nil
	}
	user := TryUser(ctx)
	if user == nil {
		return WayUser, "", nil
	}
	return WayNone, strings.ReplaceAll(fmt.Sprintf("%v; %v", root, user), "\n", "; "), ctx.Err()
}

func tryRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("this user is not root")
	}
	if err := netlab.Try(); err != nil {
		return fmt.Errorf("root may not: %w", err)
	}
	return nil
}

// TryUser tries WayUser: this program has to be a Harness.
func TryUser(ctx context.Context) error {
	cmd, err := Again(ctx, probe)
	if err != nil {
		return err
	}
	netlab.Enter(cmd)
	out, err := cmd.CombinedOutput()
	_, said, _ := strings.Cut(string(bytes.TrimSpace(out)), ": ") // the program's name is before it
	switch {
	case err == nil:
		return nil
	case said != "":
		return fmt.Errorf("root of a user namespace may not: %s", said)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("no more user namespaces are allowed: %w", err)
	}
	return fmt.Errorf("a user namespace cannot be made: %w", err)
}

// Again is this program with other arguments.
func Again(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return exec.CommandContext(ctx, self, args...), nil
}
