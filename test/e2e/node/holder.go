// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// holderVerb is the verb of the process that holds a node's namespaces.
const holderVerb = "node"

// furnished is the file that the holder writes when the node's mounts are there.
const furnished = "furnished"

// hold mounts what a node has of its own, and waits until it is ended. It runs in a mount
// namespace of its own below the room's.
func hold(ctx context.Context, dir string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("hold a node: %w", err)
	}
	room, err := os.Readlink("/proc/1/ns/mnt")
	if err != nil {
		return fmt.Errorf("hold a node: %w", err)
	}
	if own == room {
		return errors.New("this is for the program itself: start it without a verb")
	}
	err = mount("", "/", "", unix.MS_REC|unix.MS_SHARED) // containers see what kubelet mounts
	for target, name := range ownDirs() {
		if err == nil {
			err = mount(filepath.Join(dir, name), target, "", unix.MS_BIND)
		}
		if err == nil { // what was mounted is of another group
			err = mount("", target, "", unix.MS_SHARED)
		}
	}
	for path, value := range settings() { // kubelet finds what it wants, and writes nothing
		file := filepath.Join(dir, strings.ReplaceAll(path[1:], "/", "."))
		if err == nil {
			err = os.WriteFile(file, []byte(value+"\n"), 0o644)
		}
		if err == nil {
			err = mount(file, path, "", unix.MS_BIND)
		}
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, furnished), nil, 0o600)
	}
	if err != nil {
		return fmt.Errorf("furnish a node: %w", err)
	}
	<-ctx.Done()
	return nil
}

// open makes the node's namespaces and its link to the router.
func (n *node) open(opt stage.Options) (err error) {
	for _, own := range ownDirs() {
		if err := os.MkdirAll(n.path(own), 0o755); err != nil {
			return fmt.Errorf("open %s: %w", n.name, err)
		}
	}
	if n.ns, err = netlab.New(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("open %s: %w", n.name, err)
	}
	cmd := exec.Command(
		"unshare",
		"--mount",
		self,
		"--dir="+n.dir,
		"--bin="+opt.Bin,
		"--root="+opt.Root,
		holderVerb,
	)
	cmd.Stderr = os.Stderr
	if n.holder, err = stage.Start(cmd, n.ns.Do); err != nil {
		return err
	}
	return attach(n.ns, n.name, n.ip, n.gateway)
}

// close ends the holder; the namespaces end with the node's other processes.
func (n *node) close() error {
	if n.holder == nil {
		return nil
	}
	return errors.Join(n.holder.Kill(), n.ns.Close())
}

// ready fails until the node's mounts are there.
func (n *node) ready(context.Context) error {
	_, err := os.Stat(n.path(furnished))
	return err
}

// host returns the path, for this process, of a file in one of the node's own directories.
func (n *node) host(path string) string {
	for target, own := range ownDirs() {
		if rest, ok := strings.CutPrefix(path, target+"/"); ok {
			return filepath.Join(n.dir, own, rest)
		}
	}
	return path
}

// command returns a command that runs in the namespaces of the node.
func (n *node) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(n.holder.PID()), "--mount", "--net", "--", program}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}
