// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/internal/testkit/stage/stagetest"
)

func TestMain(m *testing.M) { stagetest.Main(m, main) }

func TestDemo(t *testing.T) {
	effort.Need(t, "an end-to-end test, which make demo runs once")
	b := stagetest.BuildAll(t)
	for _, w := range stagetest.Ways() {
		t.Run(string(w), func(t *testing.T) { testWay(t, b, w) })
		t.Run("interrupted/"+string(w), func(t *testing.T) { testInterrupted(t, b, w) })
		t.Run("failing/"+string(w), func(t *testing.T) { testFailing(t, b, w) })
	}
	t.Run("staying", func(t *testing.T) { testStaying(t, b) })
	t.Run("fenced", func(t *testing.T) { testFenced(t, b) })
	t.Run("building", testBuilding)
	t.Run("foreground", func(t *testing.T) { testForeground(t, b) })
}

func testWay(t *testing.T, b stagetest.Built, w stage.Way) {
	stagetest.NeedWay(t, w)
	stagetest.Scratch(t)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), b.Args("--namespaces="+string(w)), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
	}
	verifyOutput(t, stdout.String(), w)
}

// verifyOutput looks for what the README promises.
func verifyOutput(t *testing.T, told string, w stage.Way) {
	t.Helper()
	prefix := "/32" // the agent makes the interface, which routes everything to the gateway
	if w == stage.WayNone {
		prefix = "/24"
	}
	want := []string{
		"claimed node ID 1.", "pod addresses  10.1.1.2 - 10.1.1.253",
		"demo/pod-1 was given 10.1.1.2" + prefix, "demo/pod-2 was given 10.1.1.3" + prefix, "same 6 leases",
		"demo/pod-3 was given 10.1.1.4" + prefix, "demo/pod-3 still has 10.1.1.4" + prefix, "clean: 7 leases in the ledger",
		"only the node's own 4.", "11. Open the map", "\n13. Stop the agent", "nothing is left of it",
	}
	if !strings.Contains(told, "/page/?key=") && !strings.Contains(told, "agent.sock page") { // the way in a user namespace
		t.Errorf("the map has no address: %s", told)
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
		if strings.Contains(told, text) != (w != stage.WayNone) {
			t.Errorf("%q is missing, or there with no namespace", text)
		}
	}
	if w == stage.WayRoot {
		verifyReadme(t, told)
	}
	if t.Failed() {
		t.Log(told)
	}
}

// testStaying opens the map at the printed address while the demo stays, and then presses
// Ctrl-C, as it were.
func testStaying(t *testing.T, b stagetest.Built) {
	stagetest.NeedWay(t, stage.WayNone)
	stagetest.Scratch(t)
	t.Setenv(stayVariable, "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stays, once := make(chan struct{}), sync.Once{}
	stdout := stagetest.Watch("It is open until Ctrl-C.", func() { once.Do(func() { close(stays) }) })
	stderr, code := stagetest.Watch("", nil), make(chan int, 1)
	go func() { code <- run(ctx, b.Args("--namespaces="+string(stage.WayNone)), stdout, stderr) }()
	select {
	case <-stays:
	case c := <-code:
		t.Fatalf("the demo ended with exit code %d: %s%s", c, stdout, stderr)
	}
	address := regexp.MustCompile(`http://\S+/page/\?key=\S+`).FindString(stdout.String())
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Jar: jar}).Get(address)
	if err != nil {
		t.Fatalf("open the map at %q: %v", address, err)
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil || !strings.Contains(string(text), "<title>Cadastre</title>") {
		t.Errorf("the map at %q is %q: %v", address, text, err)
	}
	cancel()
	if c := <-code; c != 1 || !strings.Contains(strings.ToLower(stdout.String()+stderr.String()), "interrupted") {
		t.Errorf("exit code %d: %s%s", c, stdout, stderr)
	}
	if _, err := (&http.Client{Jar: jar}).Get(address); err == nil {
		t.Error("the map is still open")
	}
}

// verifyReadme looks for the lines that README.md shows, in their order. "..." stands for
// lines that it leaves out; ages, counts of exchanges, ports and keys differ in each run.
func verifyReadme(t *testing.T, told string) {
	t.Helper()
	page, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(page), "\n    $ make demo\n")
	shown, _, _ = strings.Cut(shown, "\n\n")
	if !found || strings.Count(shown, "\n") < 10 {
		t.Fatal("README.md does not show what make demo prints")
	}
	volatile := regexp.MustCompile(`(?m)\d+ exchanges|\d+s$|:\d+/page/\?key=\w+`)
	rest := volatile.ReplaceAllString(told, "*")
	for line := range strings.Lines(shown) {
		line = volatile.ReplaceAllString(strings.TrimSpace(line), "*")
		if line == "..." {
			continue
		}
		var ok bool
		if _, rest, ok = strings.Cut(rest, line); !ok {
			t.Errorf("README.md shows %q, which make demo does not print there", line)
			return
		}
	}
}

// testInterrupted presses Ctrl-C, as it were, in every step.
func testInterrupted(t *testing.T, b stagetest.Built, w stage.Way) {
	stagetest.NeedWay(t, w)
	steps := []int{1, 3, 5, 8, 11}
	if w == stage.WayNone {
		steps = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11} // it is fast
	}
	for _, step := range steps {
		t.Run(fmt.Sprint(step), func(t *testing.T) {
			stagetest.Scratch(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stdout := stagetest.Watch(fmt.Sprintf("\n%2d. ", step), cancel)
			stderr := stagetest.Watch("", nil)
			code := run(ctx, b.Args("--namespaces="+string(w)), stdout, stderr)
			said := stdout.String() + stderr.String()
			if code != 1 || !strings.Contains(strings.ToLower(said), "interrupted") || strings.Contains(said, "FAILED") {
				t.Fatalf("exit code %d: %s", code, said)
			}
		})
	}
}

// testFailing has no cadastre-cni.
func testFailing(t *testing.T, b stagetest.Built, w stage.Way) {
	stagetest.NeedWay(t, w)
	b = b.Only(t, "cadastre", "cadastre-agent")
	stagetest.Scratch(t)
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), b.Args("--namespaces="+string(w)), &stdout, &stderr)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, text := range []string{"FAILED in step 5: ADD pod-1: ", "failed to find plugin ", "log ends with:", "the agent starts"} {
		if !strings.Contains(stdout.String(), text) {
			t.Errorf("%q is missing in %s%s", text, &stdout, &stderr)
		}
	}
}

// testFenced lets the program find out by itself that no namespace can be made.
func testFenced(t *testing.T, b stagetest.Built) {
	stagetest.Scratch(t)
	out, err := stagetest.Fenced(t, b.Args()...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	verifyOutput(t, string(out), stage.WayNone)
	first, _, _ := strings.Cut(string(out), "\n")
	for _, text := range []string{"without network namespaces", "operation not permitted", "no more user namespaces"} {
		if !strings.Contains(first, text) {
			t.Errorf("%q is missing in the first line: %s", text, first)
		}
	}
	for _, w := range []stage.Way{stage.WayRoot, stage.WayUser} {
		out, err := stagetest.Fenced(t, b.Args("--namespaces="+string(w))...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "demo: --namespaces="+string(w)+": ") {
			t.Errorf("--namespaces=%s, which does not work here: %v: %s", w, err, out)
		}
	}
}

// testBuilding does the same as make demo.
func testBuilding(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN: -short")
	}
	stagetest.Scratch(t)
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--namespaces=none"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, &stdout, &stderr)
	}
	verifyOutput(t, stdout.String(), stage.WayNone)
}

// testForeground does what demo run suggests, word for word, but for cadastre check: the agent
// reads all network namespaces of the machine, and those of other tests have its addresses.
func testForeground(t *testing.T, b stagetest.Built) {
	dir := filepath.Join(t.TempDir(), "run")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := make(chan struct{})
	stdout := stagetest.Watch("CNI_COMMAND=DEL", sync.OnceFunc(func() { close(ready) }))
	stderr := stagetest.Watch("", nil)
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, b.Args("--dir", dir, "run"), stdout, stderr) }()
	select {
	case <-ready:
	case code := <-ended:
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	var script strings.Builder
	for line := range strings.SplitSeq(stdout.String(), "\n") {
		if command, ok := strings.CutPrefix(line, "  $ "); ok && !strings.HasPrefix(command, "curl ") {
			if strings.HasSuffix(command, "/cadastre check") {
				command += " --ledger"
			}
			script.WriteString(command + "\n")
		}
	}
	cmd := exec.CommandContext(ctx, "sh", "-e", "-u", "-c", script.String())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"address": "10.1.1.`) || !strings.Contains(string(out), "by-hand") {
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
