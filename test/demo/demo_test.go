// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
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

	"github.com/cadastre/cadastre/test/netlab"
)

// asProgram makes the test binary the demo itself, for what the demo starts
// again; fenced lets it first give away the right to make any namespace.
const (
	asProgram = "CADASTRE_DEMO_TEST_AS_PROGRAM"
	fenced    = "CADASTRE_DEMO_TEST_FENCED"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(fenced) != "":
		fmt.Fprintln(os.Stderr, "fence:", fence()) // it returns errors only
		os.Exit(2)
	case os.Getenv(asProgram) != "":
		main()
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

// built are the repository and a directory with the programs.
type built struct{ root, bin string }

func (b built) args(more ...string) []string {
	return append([]string{"--root", b.root, "--bin", b.bin}, more...)
}

func buildAll(t *testing.T) built {
	t.Helper()
	root, err := repository(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := built{root: root, bin: t.TempDir()}
	if err := build(t.Context(), root, b.bin, ourPrograms, mainPlugin); err != nil {
		t.Fatal(err)
	}
	return b
}

// scratch makes the demo write into an empty directory and fails if it leaves
// a file or a process behind.
func scratch(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			t.Errorf("left behind in %s: %v, %v", dir, entries, err)
		}
		commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Error(err)
		}
		for _, c := range commands {
			if line, err := os.ReadFile(c); err == nil && bytes.Contains(line, []byte(dir)) {
				t.Errorf("still running: %q", line)
			}
		}
	})
}

// needWay skips where a way does not work.
func needWay(t *testing.T, w way) {
	t.Helper()
	if w != wayNone && testing.Short() {
		t.Skip("NOT RUN: -short")
	}
	if _, _, err := find(t.Context(), w); err != nil {
		t.Skipf("NOT RUN: --namespaces=%s: %v", w, err)
	}
}

// ways are those that can be asked for.
func ways() []way { return []way{wayRoot, wayUser, wayNone} }

func TestDemo(t *testing.T) {
	b := buildAll(t)
	for _, w := range ways() {
		t.Run(string(w), func(t *testing.T) { testWay(t, b, w) })
		t.Run("interrupted/"+string(w), func(t *testing.T) { testInterrupted(t, b, w) })
		t.Run("failing/"+string(w), func(t *testing.T) { testFailing(t, b, w) })
	}
	t.Run("fenced", func(t *testing.T) { testFenced(t, b) })
	t.Run("building", testBuilding)
	t.Run("foreground", func(t *testing.T) { testForeground(t, b) })
}

func testWay(t *testing.T, b built, w way) {
	needWay(t, w)
	scratch(t)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), b.args("--namespaces="+string(w)), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
	}
	verifyTold(t, stdout.String(), w)
}

// verifyTold looks for what the README promises.
func verifyTold(t *testing.T, told string, w way) {
	t.Helper()
	want := []string{
		"claimed node ID 1.", "pod addresses  10.1.1.2 - 10.1.1.253", "demo/pod-1 was given 10.1.1.2/24", "demo/pod-2 was given 10.1.1.3/24",
		"same 6 leases", "demo/pod-3 was given 10.1.1.4/24", "demo/pod-3 still has 10.1.1.4/24", "clean: 7 leases checked",
		"only the node's own 4.", "\n12. Stop the agent", "nothing is left of it",
	}
	packets := []string{
		`udp  pod-2       received "hello, pod-2" from 10.1.1.2:`, `tcp  pod-1       received "hello, pod-1" from 10.1.1.3:`,
		`udp  the gateway received "hello, the gateway" from 10.1.1.2:`, `udp  pod-1       received "hello, pod-1" from 10.1.1.4:`,
	}
	for _, text := range want {
		if !strings.Contains(told, text) {
			t.Errorf("%q is missing", text)
		}
	}
	for _, text := range packets {
		if strings.Contains(told, text) != (w != wayNone) {
			t.Errorf("%q is missing, or there with no namespace", text)
		}
	}
	if t.Failed() {
		t.Log(told)
	}
}

// watcher calls found when text has been written.
type watcher struct {
	mu    sync.Mutex
	all   strings.Builder
	text  string
	found func()
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if strings.Contains(w.all.String(), w.text) {
		w.found()
	}
	return len(p), nil
}

func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// testInterrupted presses Ctrl-C, as it were, in every step.
func testInterrupted(t *testing.T, b built, w way) {
	needWay(t, w)
	steps := []int{1, 3, 5, 8, 11}
	if w == wayNone {
		steps = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11} // it is fast
	}
	for _, step := range steps {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			scratch(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stdout := &watcher{text: fmt.Sprintf("\n%2d. ", step), found: cancel}
			stderr := &watcher{text: "nothing", found: func() {}}
			code := run(ctx, b.args("--namespaces="+string(w)), stdout, stderr)
			said := stdout.String() + stderr.String()
			if code != 1 || !strings.Contains(strings.ToLower(said), "interrupted") || strings.Contains(said, "FAILED") {
				t.Fatalf("exit code %d: %s", code, said)
			}
		})
	}
}

// testFailing has no cadastre-cni.
func testFailing(t *testing.T, b built, w way) {
	needWay(t, w)
	bin := t.TempDir()
	for _, name := range []string{"cadastre", "cadastre-agent", "bridge"} {
		if err := os.Symlink(filepath.Join(b.bin, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	scratch(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), built{b.root, bin}.args("--namespaces="+string(w)), &stdout, &stderr)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, text := range []string{"FAILED in step 5: ADD pod-1: ", `failed to find plugin "cadastre-cni"`, "log ends with:", "the agent starts"} {
		if !strings.Contains(stdout.String(), text) {
			t.Errorf("%q is missing in %s%s", text, &stdout, &stderr)
		}
	}
}

// testFenced lets the program find out by itself that no namespace can be made.
func testFenced(t *testing.T, b built) {
	if err := tryUser(t.Context()); err != nil {
		t.Skipf("NOT RUN: the test itself needs a user namespace: %v", err)
	}
	scratch(t)
	cmd, err := again(t.Context(), b.args()...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), fenced+"=1")
	netlab.Enter(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	verifyTold(t, string(out), wayNone)
	first, _, _ := strings.Cut(string(out), "\n")
	for _, text := range []string{"without network namespaces", "operation not permitted", "no more user namespaces"} {
		if !strings.Contains(first, text) {
			t.Errorf("%q is missing in the first line: %s", text, first)
		}
	}
	for _, w := range []way{wayRoot, wayUser} {
		cmd, err := again(t.Context(), b.args("--namespaces="+string(w))...)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(os.Environ(), fenced+"=1")
		netlab.Enter(cmd)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "demo: --namespaces="+string(w)+": ") {
			t.Errorf("--namespaces=%s, which does not work here: %v: %s", w, err, out)
		}
	}
}

// testBuilding is what make demo does.
func testBuilding(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: -short")
	}
	scratch(t)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--namespaces=none"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
	}
	verifyTold(t, stdout.String(), wayNone)
}

// testForeground does what demo run suggests, word for word.
func testForeground(t *testing.T, b built) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := make(chan struct{})
	stdout := &watcher{text: "CNI_COMMAND=DEL", found: sync.OnceFunc(func() { close(ready) })}
	stderr := &watcher{text: "nothing", found: func() {}}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, b.args("--dir", dir, "run"), stdout, stderr) }()
	select {
	case <-ready:
	case code := <-ended:
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	var script strings.Builder
	for line := range strings.SplitSeq(stdout.String(), "\n") {
		if command, ok := strings.CutPrefix(line, "  $ "); ok && !strings.HasPrefix(command, "curl ") {
			script.WriteString(command + "\n")
		}
	}
	cmd := exec.CommandContext(ctx, "sh", "-e", "-u", "-c", script.String())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"address": "10.1.1.2/24"`) || !strings.Contains(string(out), "by-hand") {
		t.Errorf("%s: %v: %s", &script, err, out)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "state", "cadastre.db")); err != nil {
		t.Error(err)
	}
}
