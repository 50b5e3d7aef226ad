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

// Play is a program that shows something and checks what it shows.
type Play struct {
	Name   string   // of the program, and how its directory's name begins
	Usage  string   // the command lines that there are
	Verbs  []string // what Other knows
	Title  func(w Way, why string) string
	Socket string // the longest path below the directory that is a socket's
	// Acts are all that is to be told. They let go of everything but the files,
	// whatever happens. An error that they have printed is Told.
	Acts  func(context.Context, Place, Way, *Story) error
	Other func(ctx context.Context, opt Options, stdout, stderr io.Writer) error // one of Verbs
}

// Told is an error that has been printed.
type Told struct{ error }

// Unwrap is the error.
func (t Told) Unwrap() error { return t.error }

// Run is the whole program; it returns the exit code.
func (p Play) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opt, err := p.Parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return 2
	}
	switch opt.Verb {
	case "":
		err = p.whole(ctx, opt, stdout)
	case probe:
		err = netlab.Try()
	case inside:
		s := &Story{W: stdout, Steps: 1} // the first was told outside
		err = p.Acts(ctx, Place{opt.Root, opt.Bin, opt.Dir}, WayRoot, s)
	default:
		err = p.Other(ctx, opt, stdout, stderr)
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(Told)):
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", p.Name)
	default:
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	}
	return 1
}

// whole prepares a directory with the programs, has the story told in the way
// that works here, and removes the directory.
func (p Play) whole(ctx context.Context, opt Options, stdout io.Writer) (err error) {
	began := time.Now()
	w, why, err := Find(ctx, opt.Way)
	if err != nil {
		return fmt.Errorf("--namespaces=%s: %w", opt.Way, err)
	}
	fmt.Fprintln(stdout, p.Title(w, why))
	place, err := p.settle(ctx, opt)
	if err != nil {
		return err
	}
	err = p.prepare(ctx, opt, w, place, &Story{W: stdout})
	if left := remove(place.Dir); left != nil {
		fmt.Fprintf(stdout, "\nFAILED to clean up: %v\n", left)
		return Told{errors.Join(err, left)}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "\nAll was as it must be, and nothing is left of it. %.1f s.\n", time.Since(began).Seconds())
	return nil
}

// settle finds the repository and makes the directory.
func (p Play) settle(ctx context.Context, opt Options) (place Place, err error) {
	place = Place{Root: opt.Root, Bin: opt.Bin}
	if place.Root == "" {
		if place.Root, err = Repository(ctx); err != nil {
			return place, err
		}
	}
	if place.Dir, err = newDir("cadastre-"+p.Name, p.Socket); err == nil && place.Bin == "" {
		place.Bin = filepath.Join(place.Dir, "bin")
	}
	return place, err
}

// prepare builds the programs and has the rest told, here or inside.
func (p Play) prepare(ctx context.Context, opt Options, w Way, place Place, s *Story) error {
	if opt.Bin != "" {
		s.Step("Use the programs in %s.", opt.Bin)
	} else {
		s.Step("Build cadastre-agent, cadastre-cni, cadastre and CNI's bridge plugin. The first time takes a while.")
		if err := Build(ctx, place.Root, place.Bin, OurPrograms, BridgePlugin); err != nil {
			return err
		}
	}
	if w == WayUser {
		return enter(ctx, place, s.W)
	}
	return p.Acts(ctx, place, w, s)
}

// enter has the rest told by this program as root of a user namespace.
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
		return Told{err}
	}
	return err
}
