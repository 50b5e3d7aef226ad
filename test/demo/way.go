// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/test/netlab"
)

// way is how network namespaces are made.
type way string

const (
	wayAuto way = "auto" // the first of the others that works
	wayRoot way = "root" // by this process
	wayUser way = "user" // by this program, started again as root of a user namespace
	wayNone way = "none" // not at all
)

func (w *way) set(s string) error {
	switch way(s) {
	case wayAuto, wayRoot, wayUser, wayNone:
		*w = way(s)
		return nil
	}
	return fmt.Errorf("write one of %s, %s, %s, %s", wayAuto, wayRoot, wayUser, wayNone)
}

// find tries the ways for real. With none it says why; a way that was asked for
// by name and does not work is an error.
func find(ctx context.Context, want way) (found way, why string, err error) {
	switch want {
	case wayNone:
		return wayNone, "it was asked for", nil
	case wayRoot:
		return wayRoot, "", tryRoot()
	case wayUser:
		return wayUser, "", tryUser(ctx)
	}
	root := tryRoot()
	if root == nil {
		return wayRoot, "", nil
	}
	user := tryUser(ctx)
	if user == nil {
		return wayUser, "", nil
	}
	return wayNone, strings.ReplaceAll(fmt.Sprintf("%v; %v", root, user), "\n", "; "), ctx.Err()
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

func tryUser(ctx context.Context) error {
	cmd, err := again(ctx, "probe")
	if err != nil {
		return err
	}
	netlab.Enter(cmd)
	out, err := cmd.CombinedOutput()
	said := strings.TrimPrefix(string(bytes.TrimSpace(out)), "demo: ")
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

// again is this program with other arguments.
func again(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return exec.CommandContext(ctx, self, args...), nil
}
