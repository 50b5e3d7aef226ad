// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// world is a make that runs shell commands of its own: "ok", "fails", "waits".
func world(t *testing.T) (*run, *bytes.Buffer) {
	t.Helper()
	g := NewWithT(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "make")
	g.Expect(os.WriteFile(script, []byte(`#!/bin/sh
case $1 in
fails) echo "    x_test.go:7: "; echo "expected 1"; yes "a log" | head -100; echo "--- FAIL: TestX (1.0s)"; exit 2;;
waits) sleep 600 & echo $! >"$(dirname "$0")/child"; wait;;
parts) echo "    x_test.go:1: NOT RUN: this machine has no kubectl"; echo "    x_test.go:1: NOT RUN: this machine has no kubectl";;
untagged) echo "upgrade: NOT RUN: no release has a tag yet (v1.2.3)";;
*) echo "made $*";;
esac
`), 0o755)).To(Succeed())
	out := &bytes.Buffer{}
	return &run{out: out, make: script, logs: filepath.Join(dir, "logs"), now: time.Now}, out
}

// TestTheTable: it says of every target whether it ran, which parts did not, and repeats
// the end of what failed.
func TestTheTable(t *testing.T) {
	g := NewWithT(t)
	r, out := world(t)
	err := r.all(t.Context(), "test", []string{"fails parts", "vpp:EFFORT=10"})
	g.Expect(err).To(MatchError("failed or not run: fails"))
	g.Expect(out.String()).To(ContainSubstring("made vpp EFFORT=10\n"))
	g.Expect(out.String()).To(MatchRegexp(`(?s)=== make fails failed; its last lines:\n(a log\n){23}--- FAIL: TestX \(1.0s\)\n` +
		`what failed in it:\n    x_test.go:7: \nexpected 1\n(a log\n){12}--- FAIL: TestX \(1.0s\)\n\n.*` +
		`test +\d+s +\d+s  ok\nfails +\d+s +\d+s  FAILED: exit status 2\nparts +\d+s +\d+s  ok\n` +
		` +a part did not run: this machine has no kubectl\nvpp:EFFORT=10 +\d+s +\d+s  ok\nall +\d+s\n$`))
}

// TestASparedSuite: the table says of a suite that it did not run since nothing has changed.
func TestASparedSuite(t *testing.T) {
	g := NewWithT(t)
	r, out := world(t)
	root, _, _ := branch(t)
	r.changes = since(t.Context(), root, "main")
	g.Expect(r.all(t.Context(), "", []string{"vpp:EFFORT=10 race"})).To(Succeed())
	g.Expect(out.String()).NotTo(ContainSubstring("made vpp"))
	g.Expect(out.String()).To(MatchRegexp(`vpp:EFFORT=10 +0s +0s  not changed, and nothing that it imports\nrace +\d+s +\d+s  ok`))
}

// TestAFirstTargetThatFails: nothing else runs, and the table says so.
func TestAFirstTargetThatFails(t *testing.T) {
	g := NewWithT(t)
	r, out := world(t)
	g.Expect(r.all(t.Context(), "fails", []string{"demo"})).To(MatchError("make fails: exit status 2"))
	g.Expect(out.String()).To(MatchRegexp(`demo +0s +0s  DID NOT RUN`))
	g.Expect(out.String()).NotTo(ContainSubstring("made demo"))
}

// TestTheLimit: what runs at the limit is ended with all of its processes, what has not
// begun does not begin, and the run fails.
func TestTheLimit(t *testing.T) {
	g := NewWithT(t)
	r, out := world(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	child := filepath.Join(filepath.Dir(r.make), "child")
	done := make(chan error, 1)
	go func() { done <- r.all(ctx, "", []string{"waits demo"}) }()
	g.Eventually(func() (string, error) { text, err := os.ReadFile(child); return string(text), err }).Should(HaveSuffix("\n"))
	cancel(errors.New("ended after 85m0s"))
	g.Expect(<-done).To(MatchError("failed or not run: waits, demo"))
	g.Expect(out.String()).To(MatchRegexp(`waits +\d+s +\d+s  FAILED: ended after 85m0s\ndemo +0s +0s  DID NOT RUN`))
	pid, err := os.ReadFile(child)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() bool {
		state, err := os.ReadFile("/proc/" + string(bytes.TrimSpace(pid)) + "/stat")
		return err != nil || bytes.Contains(state, []byte(") Z "))
	}).Should(BeTrue())
}

// TestAPartThatDoesNotRun: where CI asks for all parts, only the reasons on the list are let
// pass.
func TestAPartThatDoesNotRun(t *testing.T) {
	g := NewWithT(t)
	r, out := world(t)
	r.strict = true
	g.Expect(r.all(t.Context(), "", []string{"parts untagged"})).To(MatchError("failed or not run: parts"))
	g.Expect(out.String()).To(MatchRegexp(`parts +\d+s +\d+s  FAILED: a part did not run: this machine has no kubectl\n`))
	g.Expect(out.String()).To(MatchRegexp(`untagged +\d+s +\d+s  ok\n +a part did not run: no release has a tag yet`))
}
