// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
)

// suite is one run of "go test".
type suite struct {
	name string
	args []string // beside those that each run has
}

// suites returns the runs in their order.
func suites() []suite {
	return []suite{
		{"chaos", []string{"./test/chaos"}},
		{"simulation", []string{"-run", "Simulation", "./agent"}},
		{"claims", []string{"./plugins/nodesync/claims"}},
		{"nodes", []string{"-run", "TestAtRandom|Clone|Snapshot|TestACrash", "./plugins/nodesync"}},
		{"operator", []string{"-run", "Autoscaler|NodeObject", "./operator"}},
	}
}

// alone returns the suites of the attacks that can be run without the others.
func alone() map[attack.Kind]suite {
	return map[attack.Kind]suite{
		attack.Evidence: {"evidence", []string{"-run", "TestWorlds", "./test/chaos"}},
	}
}

// command returns the arguments of go, as the page shows them.
func (s suite) command() []string {
	return append([]string{"test", "-json", "-count=1", "-timeout=5h"}, s.args...)
}

// circumstances lists what the results depend on.
type circumstances struct {
	Began, Ended time.Time
	Go           string
	Processors   int
	Kernel       string
	Commit       string
	Settings     []string // of the environment
}

// runAll runs each suite. A test that fails stops nothing: its report says so.
func runAll(ctx context.Context, out string, all []suite) error {
	c := circumstances{
		Began:      time.Now(),
		Go:         runtime.Version(),
		Processors: runtime.NumCPU(),
		Settings:   settings(os.Environ()),
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	c.Kernel = strings.TrimSpace(string(kernel))
	// a copy without history has none
	commit, _ := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	c.Commit = strings.TrimSpace(string(commit))
	for _, s := range all {
		if err := s.run(ctx, out); err != nil {
			return err
		}
	}
	c.Ended = time.Now()
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(runFile(out), data, 0o644)
}

// run runs one suite. A test that fails is not an error: the output has it.
func (s suite) run(ctx context.Context, out string) error {
	if err := os.Remove(s.tries(out)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.Create(s.output(out))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the report reads what the file lacks
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", s.command()...)
	cmd.Env = append(os.Environ(), attack.FileEnv+"="+s.tries(out), "SIM_ALL=1")
	cmd.Stdout, cmd.Stderr = f, os.Stderr
	// The test program is a child of go, which does not pass the signal on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 20 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("run suite %s: interrupted", s.name)
	case err != nil && !errors.As(err, &exit):
		return fmt.Errorf("run suite %s: %w", s.name, err)
	}
	fmt.Fprintf(
		os.Stderr,
		"%s %s took %s: exit code %d\n",
		time.Now().Format("15:04:05"),
		s.name,
		time.Since(began).Round(time.Second),
		cmd.ProcessState.ExitCode(),
	)
	return nil
}

func (s suite) output(out string) string { return filepath.Join(out, s.name+".json") }
func (s suite) tries(out string) string  { return filepath.Join(out, s.name+".tries") }
func runFile(out string) string          { return filepath.Join(out, "run.json") }

// settings returns the variables that choose the number of repetitions, sorted.
func settings(environ []string) (chosen []string) {
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if value != "" && (name == effort.Env || name == "CHAOS_FOUND") {
			chosen = append(chosen, v)
		}
	}
	slices.Sort(chosen)
	return chosen
}
