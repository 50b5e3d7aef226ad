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
	"strings"
	"time"
)

// measure builds the packages and runs each count times. A round runs every
// package once, so that a bad minute of the machine spoils one run of many
// rows and not all runs of a few. A package that fails does not stop the others.
func measure(ctx context.Context, o options) error {
	if _, err := os.Stat(filepath.Join("test", "peers", "workload", "go.mod")); err != nil {
		return fmt.Errorf("this is to be run from the root of the repository: %w", err)
	}
	bin, err := os.MkdirTemp("", "cadastre-report")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if err := os.WriteFile(machineFile(o.out), []byte(describeMachine(o)), 0o644); err != nil {
		return err
	}
	var built []pkg
	var errs []error
	for _, p := range o.packages {
		say("build %s", p.name)
		if err := buildTest(ctx, p, bin); err != nil {
			errs = append(errs, fmt.Errorf("%s: build: %w", p.name, err))
			continue
		}
		if err := os.WriteFile(rawFile(o.out, p), nil, 0o644); err != nil {
			return err
		}
		built = append(built, p)
	}
	for round := range o.count {
		for _, p := range built {
			began := time.Now()
			err := runTest(ctx, o, p, bin)
			say("round %d of %d: %s took %s", round+1, o.count, p.name, time.Since(began).Round(time.Second))
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w: see %s", p.name, err, rawFile(o.out, p)))
			}
		}
	}
	return errors.Join(errs...)
}

func rawFile(out string, p pkg) string { return filepath.Join(out, p.name+".txt") }

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// buildTest compiles a package's test program. In the modules of the peers
// go.mod is brought up to date on the way: what ours requires changes with the
// main module.
func buildTest(ctx context.Context, p pkg, bin string) error {
	args := []string{"test", "-c", "-o", filepath.Join(bin, p.name)}
	if _, err := os.Stat(filepath.Join(p.dir, "go.mod")); err == nil {
		args = append(args, "-mod=mod")
	}
	c := exec.CommandContext(ctx, "go", append(args, ".")...)
	c.Dir = p.dir
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// benchtime returns the time of each of p's benchmarks. A number of times is not divided.
func (p pkg) benchtime(o options) string {
	d, err := time.ParseDuration(o.benchtime)
	if err != nil || p.share == 0 {
		return o.benchtime
	}
	return (d / time.Duration(p.share)).String()
}

// runTest runs a package's benchmarks once and appends to its raw file: those
// named Parallel with one and with two processors, all others as they are.
func runTest(ctx context.Context, o options, p pkg, bin string) error {
	f, err := os.OpenFile(rawFile(o.out, p), os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	which := o.bench
	if which == "." && p.bench != "" {
		which = p.bench
	}
	runs := [][]string{{"-test.bench", which, "-test.skip", "Parallel"}}
	if which == "." || strings.Contains(which, "Parallel") {
		runs = append(runs, []string{"-test.bench", "Parallel", "-test.cpu", "1,2"})
	}
	for _, flags := range runs {
		args := append([]string{"-test.run", "^$", "-test.benchtime", p.benchtime(o), "-test.timeout", "30m"}, flags...)
		c := exec.CommandContext(ctx, filepath.Join(bin, p.name), args...)
		c.Dir, c.Stdout, c.Stderr = p.dir, f, f
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		c.WaitDelay = 10 * time.Second
		err = errors.Join(err, c.Run())
	}
	return errors.Join(err, f.Close())
}
