// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// Harness represents a program that shows a scenario and checks its outcome.
type Harness struct {
	Name   string   // of the program; its directory's name begins with it
	Usage  string   // the command lines that there are
	Verbs  []string // what Other knows
	Title  func(w Way, why string) string
	Socket string // the longest path below the directory that is a socket's
	// Scenario takes the steps. It ends and removes everything but the files, also if it
	// fails. An error that it has printed is of type reported.
	Scenario func(context.Context, Place, Way, *Scenario) error
	Other    func(ctx context.Context, opt Options, stdout, stderr io.Writer) error // one of Verbs
}

// reported marks an error that was printed already.
type reported struct{ error }

// Unwrap returns the error.
func (t reported) Unwrap() error { return t.error }

// Run runs the whole program and returns its exit code.
func (h Harness) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opt, err := h.Parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", h.Name, err)
		return 2
	}
	switch opt.Verb {
	case "":
		err = h.whole(ctx, opt, stdout)
	case probe:
		err = netlab.Try()
	case inside:
		s := &Scenario{W: stdout, steps: 1} // the first was taken outside
		err = h.Scenario(ctx, Place{opt.Root, opt.Bin, opt.Dir}, WayRoot, s)
	default:
		err = h.Other(ctx, opt, stdout, stderr)
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(reported)):
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", h.Name)
	default:
		fmt.Fprintf(stderr, "%s: %v\n", h.Name, err)
	}
	return 1
}

// whole prepares a directory with the programs, runs the scenario in the way that works
// here, and removes the directory.
func (h Harness) whole(ctx context.Context, opt Options, stdout io.Writer) (err error) {
	began := time.Now()
	w, why, err := Find(ctx, opt.Way)
	if err != nil {
		return fmt.Errorf("--namespaces=%s: %w", opt.Way, err)
	}
	fmt.Fprintln(stdout, h.Title(w, why))
	place, err := h.place(ctx, opt)
	if err != nil {
		return err
	}
	err = h.prepare(ctx, opt, w, place, &Scenario{W: stdout})
	if left := remove(place.Dir); left != nil {
		fmt.Fprintf(stdout, "\nFAILED to clean up: %v\n", left)
		return reported{errors.Join(err, left)}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nAll was as it must be, and nothing is left of it. %.1f s.\n", time.Since(began).Seconds())
	return nil
}

// place finds the repository and makes the directory.
func (h Harness) place(ctx context.Context, opt Options) (place Place, err error) {
	place = Place{Root: opt.Root, Bin: opt.Bin}
	if place.Root == "" {
		if place.Root, err = Repository(ctx); err != nil {
			return place, err
		}
	}
	if place.Dir, err = newDir("cadastre-"+h.Name, h.Socket); err == nil && place.Bin == "" {
		place.Bin = filepath.Join(place.Dir, "bin")
	}
	return place, err
}

// prepare builds the programs and runs the rest, here or inside a user namespace.
func (h Harness) prepare(ctx context.Context, opt Options, w Way, place Place, s *Scenario) error {
	if opt.Bin != "" {
		s.Step("Use the programs in %s.", opt.Bin)
	} else {
		s.Step("Build cadastre-agent, cadastre-cni and cadastre. The first time takes a while.")
		if err := Build(ctx, place.Root, place.Bin, OurPrograms); err != nil {
			return err
		}
	}
	if w == WayUser {
		return enter(ctx, place, s.W)
	}
	return h.Scenario(ctx, place, w, s)
}

// enter runs the rest in a child of this program, as root of a user namespace.
func enter(ctx context.Context, p Place, stdout io.Writer) error {
	cmd, err := Again(ctx, "--dir", p.Dir, "--bin", p.Bin, "--root", p.Root, inside)
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
		return reported{err}
	}
	return err
}
