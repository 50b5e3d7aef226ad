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
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/test/netlab"
)

// whole prepares a directory with the programs, has the story told in the way
// that works here, and removes the directory.
func whole(ctx context.Context, opt options, stdout io.Writer) (err error) {
	began := time.Now()
	w, why, err := find(ctx, opt.way)
	if err != nil {
		return fmt.Errorf("--namespaces=%s: %w", opt.way, err)
	}
	s := &story{w: stdout}
	s.title(w, why)
	p, err := settle(ctx, opt)
	if err != nil {
		return err
	}
	err = play(ctx, opt, w, p, s)
	if left := remove(p.dir); left != nil {
		fmt.Fprintf(stdout, "\nFAILED to clean up: %v\n", left)
		return told{errors.Join(err, left)}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nAll was as it must be, and nothing is left of it. %.1f s.\n", time.Since(began).Seconds())
	return nil
}

// title says what is to come.
func (s *story) title(w way, why string) {
	switch w {
	case wayNone:
		fmt.Fprintf(s.w, "Cadastre's demo, without network namespaces (%s): all is done but sending packets.\n", why)
	case wayUser:
		fmt.Fprintln(s.w, "Cadastre's demo, in network namespaces of a user namespace: nobody needs to be root.")
	default:
		fmt.Fprintln(s.w, "Cadastre's demo, in network namespaces of its own.")
	}
}

// settle finds the repository and makes the directory.
func settle(ctx context.Context, opt options) (p place, err error) {
	p = place{root: opt.root, bin: opt.bin}
	if p.root == "" {
		if p.root, err = repository(ctx); err != nil {
			return p, err
		}
	}
	if p.dir, err = newDir(); err == nil && p.bin == "" {
		p.bin = filepath.Join(p.dir, "bin")
	}
	return p, err
}

// play builds the programs and has the rest told, here or inside.
func play(ctx context.Context, opt options, w way, p place, s *story) error {
	if opt.bin != "" {
		s.step("Use the programs in %s.", opt.bin)
	} else {
		s.step("Build cadastre-agent, cadastre-cni, cadastre and CNI's bridge plugin. The first time takes a while.")
		if err := build(ctx, p.root, p.bin, ourPrograms, mainPlugin); err != nil {
			return err
		}
	}
	if w == wayUser {
		return enter(ctx, p, s.w)
	}
	return tell(ctx, p, w, s)
}

// enter has the rest told by this program as root of a user namespace.
func enter(ctx context.Context, p place, stdout io.Writer) error {
	cmd, err := again(ctx, "--dir", p.dir, "--bin", p.bin, "--root", p.root, "inside")
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = stdout, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	netlab.Enter(cmd)
	runtime.LockOSThread() // or it is killed when this thread ends
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
		return told{err}
	}
	return err
}

// inside is what enter starts.
func inside(ctx context.Context, opt options, stdout io.Writer) error {
	s := &story{w: stdout, steps: 1} // the first was told outside
	return tell(ctx, place{root: opt.root, bin: opt.bin, dir: opt.dir}, wayRoot, s)
}

// remove removes the directory and makes sure of it.
func remove(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		if _, err = os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("%s is not removed: %w", dir, err)
}
