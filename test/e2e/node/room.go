// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// clones are the namespaces of a room. All that runs in it ends with its first
// process, which ends with this one; mounts and interfaces go with it.
const clones = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID

// runScenario builds what is missing and has the scenario told in a room for each mode.
func runScenario(ctx context.Context, p stage.Place, _ stage.Way, s *stage.Scenario) error {
	assets, err := programs(ctx, p, s)
	if err != nil {
		return err
	}
	for _, mode := range []string{derived, external} {
		if err := tellInRoom(ctx, p, s.W, mode, assets); err != nil {
			return err
		}
	}
	return nil
}

// tellInRoom has a scenario told by this program in a room, and removes what is left
// outside of it.
func tellInRoom(ctx context.Context, p stage.Place, stdout io.Writer, mode, assets string) (err error) {
	dir := filepath.Join(p.Dir, mode)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	was, err := saved()
	if err != nil {
		return err
	}
	g, err := newGroups(groupName(dir))
	for _, n := range newNodes(stage.Options{Dir: dir}, plane{}) {
		err = errors.Join(err, g.divide(n.name))
	}
	unmake, failed := mountPoints()
	if err = errors.Join(err, failed); err == nil {
		err = enter(ctx, p, stdout, mode, assets)
	}
	left := errors.Join(g.remove(), unmake(), restore(was))
	if left != nil {
		fmt.Fprintf(stdout, "\nFAILED to clean up: %v\n", left)
	}
	return errors.Join(err, left)
}

// groupName is that of the control groups of a room, which is unique as its
// directory is.
func groupName(dir string) string {
	return filepath.Base(filepath.Dir(dir)) + "-" + filepath.Base(dir)
}

// enter starts this program as the first process of a room.
func enter(ctx context.Context, p stage.Place, stdout io.Writer, mode, assets string) error {
	cmd, err := stage.Again(ctx, "--dir", filepath.Join(p.Dir, mode), "--bin", p.Bin, "--root", p.Root, mode)
	if err != nil {
		return err
	}
	cmd.Env = append(
		os.Environ(),
		assetsEnv+"="+assets,
		"PATH="+os.Getenv("PATH")+":/usr/sbin:/usr/bin:/sbin:/bin",
		"TMPDIR="+p.Dir,
	)
	cmd.Stdout, cmd.Stderr = stdout, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: clones}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	runtime.LockOSThread() // or it is killed when this thread ends
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the scenario of %s blocks: %w", mode, err)
	}
	return nil
}

// ownDirs returns the directories of the machine that each node has its own of, with
// their names in the node's directory.
func ownDirs() map[string]string {
	return map[string]string{
		"/run":     "run",
		"/var/lib": "lib",
		"/var/log": "log",
		"/opt/cni": "opt-cni",
		"/etc/cni": "etc-cni",
	}
}

// mountPoints makes those of the machine's directories that it lacks, so that a node can
// mount its own there. remove removes them.
func mountPoints() (remove func() error, err error) {
	var made []string
	remove = func() error {
		var errs []error
		for _, dir := range made {
			errs = append(errs, os.Remove(dir))
		}
		made = nil
		return errors.Join(errs...)
	}
	for dir := range ownDirs() {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, fs.ErrExist):
			return remove, fmt.Errorf("make a directory for a node's own: %w", err)
		}
	}
	return remove, nil
}

// furnish mounts what the room has of its own, and makes the router.
func furnish() error {
	if os.Getpid() != 1 {
		return errors.New("this is for the program itself: start it without a verb")
	}
	err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE) // nothing is seen outside
	if err == nil {
		err = mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC)
	}
	if err != nil {
		return fmt.Errorf("furnish the room: %w", err)
	}
	return openRouter()
}

func mount(source, target, kind string, flags uintptr) error {
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}
