// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command ci runs targets of the Makefile and suites (suites.mk) for "make ci". It ends with a
// table of what ran, for how long, and what did not run, and why.
//
//	go run ./test/ci -first "test control-plane" -lane "race fuzz" -lane "e2e-docker vpp:EFFORT=10"
//
// The targets of -first run one after another, and the first that fails ends the run.
// Then the lanes run beside each other, and the targets of a lane one after another, even
// after one that failed: most end-to-end targets wait more than they compute. What shares
// a lock of the machine (apt-get, Docker) belongs into one lane. "vpp:EFFORT=10" is
// "make -f test/ci/suites.mk vpp EFFORT=10". The output of a target is printed when it ends, whole, and is kept
// in the folder of -logs. After -limit, all that runs is ended, and the table is printed.
//
// A suite of modules runs if they, or what they import, have changed since the merge base with
// -base. If there is none, it runs.
//
// With -strict (CI=true) a target fails if a part of it did not run (its output says "NOT
// RUN" and why), except for the reasons of mayLack.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	r := run{out: os.Stdout, make: "make", file: "test/ci/suites.mk", now: time.Now}
	var first string
	var lanes []string
	flag.StringVar(&first, "first", "", "targets that run before the lanes, one after another")
	flag.Func("lane", "targets that run one after another, beside the other lanes", func(targets string) error {
		lanes = append(lanes, targets)
		return nil
	})
	flag.StringVar(&r.logs, "logs", ".cache/ci", "the folder of the outputs")
	flag.BoolVar(&r.strict, "strict", os.Getenv("CI") == "true", "a part that does not run fails its target (CI=true)")
	base := flag.String(
		"base",
		cmp.Or(os.Getenv("CI_BASE"), "origin/main"),
		"the commit or branch to compare with (CI_BASE)",
	)
	limit := flag.Duration("limit", 85*time.Minute, "how long all of it may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("ended after %v", *limit))
	defer cancel()
	root, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	r.changes = since(ctx, root, *base)
	if err := r.all(ctx, first, lanes); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is one run of targets. Its methods may be called by the goroutine of each lane.
type run struct {
	out  io.Writer
	make string
	file string // of the targets; "": the Makefile
	logs string
	now  func() time.Time
	// strict fails a target a part of which did not run.
	strict  bool
	changes changes

	began time.Time
	ran   []*target  // in the order of the table
	mu    sync.Mutex // of out, to which lanes write
}

// shownAgain holds the number of lines at the end of a failed target's output that stand
// again above the table.
const shownAgain = 25

// target is one target of the Makefile.
type target struct {
	name   string // such as "vpp:EFFORT=10"
	took   time.Duration
	cpu    time.Duration
	err    error
	notRun []string // why parts of it did not run, as its output says
	last   []string // lines of its output
	fails  failures
	begun  bool
	spared bool // nothing that it tests has changed
}

// all runs every target and prints the table. It fails if a target failed or did not run.
func (r *run) all(ctx context.Context, first string, lanes []string) error {
	if err := os.MkdirAll(r.logs, 0o755); err != nil {
		return fmt.Errorf("make the folder of the outputs: %w", err)
	}
	r.began = r.now()
	front := r.targets(first)
	var beside [][]*target
	for _, lane := range lanes {
		beside = append(beside, r.targets(lane))
	}
	defer r.table()
	for _, t := range front {
		if r.target(ctx, t); t.err != nil {
			return fmt.Errorf("make %s: %w", t.name, t.err)
		}
	}
	var wait sync.WaitGroup
	for _, lane := range beside {
		wait.Go(func() {
			for _, t := range lane {
				if ctx.Err() == nil {
					r.target(ctx, t)
				}
			}
		})
	}
	wait.Wait()
	var failed []string
	for _, t := range r.ran {
		if t.err != nil || !t.begun && !t.spared {
			failed = append(failed, t.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed or not run: %s", strings.Join(failed, ", "))
	}
	return nil
}

// targets lists the targets of a text, in the order of the table.
func (r *run) targets(text string) []*target {
	var list []*target
	for _, name := range strings.Fields(text) {
		list = append(list, &target{name: name})
	}
	r.ran = append(r.ran, list...)
	return list
}

// target makes one target, and prints its output when it ends.
func (r *run) target(ctx context.Context, t *target) {
	name, _, _ := strings.Cut(t.name, ":")
	if t.spared = r.changes.spare(ctx, name); t.spared {
		return
	}
	t.begun = true
	r.printf("=== make %s begins after %v\n", t.name, r.now().Sub(r.began).Round(time.Second))
	path := filepath.Join(r.logs, strings.NewReplacer(":", "-", "=", "-", "/", "-").Replace(t.name)+".log")
	log, err := os.Create(path)
	if err != nil {
		t.err = err
		return
	}
	defer func() { _ = log.Close() }()
	args := strings.Split(t.name, ":")
	if r.file != "" {
		args = append([]string{"-f", r.file}, args...)
	}
	cmd := exec.CommandContext(ctx, r.make, args...)
	cmd.Stdout, cmd.Stderr = log, log
	// The programs of a test are in the group of their make: they end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	began := r.now()
	t.err = cmd.Run()
	t.took = r.now().Sub(began)
	if cmd.ProcessState != nil {
		t.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if cause := context.Cause(ctx); t.err != nil && cause != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		t.err = cause
	}
	if err := r.show(t, path); err != nil && t.err == nil {
		t.err = err
	}
	if t.err == nil && r.strict {
		t.err = t.lacks()
	}
}

// mayLack returns the beginnings of the reasons for which a part need not run.
func mayLack() []string {
	return []string{
		"no release has a tag yet", // before the first release nothing can be upgraded
	}
}

// lacks returns an error if a part of the target did not run, and had to.
func (t *target) lacks() error {
	for _, why := range t.notRun {
		if !slices.ContainsFunc(mayLack(), func(reason string) bool { return strings.HasPrefix(why, reason) }) {
			return fmt.Errorf("a part did not run: %s", why)
		}
	}
	return nil
}

// show prints the output of a target that has ended, and keeps what says that it did not run.
func (r *run) show(t *target, path string) error {
	log, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the output: %w", err)
	}
	defer func() { _ = log.Close() }()
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, "=== make %s: the output\n", t.name)
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		_, _ = io.WriteString(r.out, line)
		if _, why, found := strings.Cut(line, "NOT RUN"); found {
			t.notRun = append(t.notRun, strings.TrimSpace(strings.TrimLeft(why, ": ")))
		}
		t.fails.read(line)
		t.last = append(t.last, line)
		if len(t.last) > shownAgain {
			t.last = t.last[1:]
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output: %w", err)
		}
	}
}

// table prints what failed in each target that failed, and the end of its output, and one
// line for each target.
func (r *run) table() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.ran {
		if t.err != nil {
			_, _ = fmt.Fprintf(r.out, "=== make %s failed; its last lines:\n%swhat failed in it:\n%s",
				t.name, strings.Join(t.last, ""), strings.Join(t.fails.lines, ""))
		}
	}
	_, _ = fmt.Fprintf(r.out, "\n%-28s %9s %9s\n", "target", "took", "processor")
	for _, t := range r.ran {
		result := "ok"
		switch {
		case t.spared:
			result = "not changed, and nothing that it imports"
		case !t.begun:
			result = "DID NOT RUN: an earlier target failed, or the time was over"
		case t.err != nil:
			result = "FAILED: " + t.err.Error()
		}
		_, _ = fmt.Fprintf(
			r.out,
			"%-28s %9v %9v  %s\n",
			t.name,
			t.took.Round(time.Second),
			t.cpu.Round(time.Second),
			result,
		)
		for _, why := range slices.Compact(slices.Sorted(slices.Values(t.notRun))) {
			_, _ = fmt.Fprintf(r.out, "%-28s a part did not run: %s\n", "", why)
		}
	}
	_, _ = fmt.Fprintf(r.out, "%-28s %9v\n", "all", r.now().Sub(r.began).Round(time.Second))
}

func (r *run) printf(format string, values ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, format, values...)
}
