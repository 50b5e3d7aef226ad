// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package stagetest is for tests of programs that are a stage.Harness. It makes the test
// binary that program, for the processes that the program starts again. It checks that
// no file or process is left behind. Tests call its functions from their own goroutine;
// a finding fails the test.
//
// Example, in package main of the program:
//
//	func TestMain(m *testing.M) { stagetest.Main(m, main) }
//
//	func TestWhole(t *testing.T) {
//		b := stagetest.BuildAll(t)
//		stagetest.NeedWay(t, stage.WayUser)
//		stagetest.Scratch(t)
//		code := run(t.Context(), b.Args("--namespaces=user"), stdout, stderr)
//		...
//	}
package stagetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// asProgram makes the test binary the program itself; fenced lets it first give
// away the right to make any namespace.
const (
	asProgram = "CADASTRE_STAGE_TEST_AS_PROGRAM"
	fenced    = "CADASTRE_STAGE_TEST_FENCED"
)

// Main runs the tests, or program if the tests have started themselves again.
func Main(m *testing.M, program func()) {
	switch {
	case os.Getenv(fenced) != "":
		fmt.Fprintln(os.Stderr, "fence:", fence()) // it returns errors only
		os.Exit(2)
	case os.Getenv(asProgram) != "":
		program()
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// fence runs the program again as a root who may make no namespace. It has to
// be in a user namespace of its own already.
func fence() error {
	runtime.LockOSThread()
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
		return err
	}
	if err := os.Unsetenv(fenced); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// Fenced returns a command that runs the program without the right to make a namespace.
// It skips the test if that cannot be arranged.
func Fenced(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if err := stage.TryUser(t.Context()); err != nil {
		t.Skipf("NOT RUN: the test itself needs a user namespace: %v", err)
	}
	cmd, err := stage.Again(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), fenced+"=1")
	netlab.Enter(cmd)
	return cmd
}

// Built holds the path of the repository and of a directory with the programs.
type Built struct{ root, bin string }

// Args returns a command line that uses them.
func (b Built) Args(more ...string) []string {
	return append([]string{"--root", b.root, "--bin", b.bin}, more...)
}

// BuildAll builds all programs.
func BuildAll(t *testing.T) Built {
	t.Helper()
	root, err := stage.Repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := Built{root: root, bin: t.TempDir()}
	if err := stage.Build(t.Context(), root, b.bin, stage.OurPrograms); err != nil {
		t.Fatal(err)
	}
	return b
}

// Only returns the programs of b with these names.
func (b Built) Only(t *testing.T, names ...string) Built {
	t.Helper()
	bin := t.TempDir()
	for _, name := range names {
		if err := os.Symlink(filepath.Join(b.bin, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return Built{b.root, bin}
}

// Scratch makes the program write into an empty directory and fails if it leaves
// a file or a process behind.
func Scratch(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			t.Errorf("left behind in %s: %v, %v", dir, entries, err)
		}
		if running, err := stage.Running(dir); err != nil || len(running) > 0 {
			t.Errorf("still running: %q, %v", running, err)
		}
	})
}

// NeedWay skips the test if a way does not work.
func NeedWay(t *testing.T, w stage.Way) {
	t.Helper()
	if w != stage.WayNone && testing.Short() {
		t.Skip("NOT RUN: -short")
	}
	if _, _, err := stage.Find(t.Context(), w); err != nil {
		t.Skipf("NOT RUN: --namespaces=%s: %v", w, err)
	}
}

// Ways returns the ways that a user can choose.
func Ways() []stage.Way { return []stage.Way{stage.WayRoot, stage.WayUser, stage.WayNone} }

// Watcher is an output that calls found when text has been written.
type Watcher struct {
	text  string
	found func()

	mu  sync.Mutex
	all strings.Builder
}

// Watch makes a Watcher.
func Watch(text string, found func()) *Watcher { return &Watcher{text: text, found: found} }

// Write writes.
func (w *Watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if w.text != "" && strings.Contains(w.all.String(), w.text) {
		w.found()
	}
	return len(p), nil
}

// String returns the text that was written so far.
func (w *Watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}
