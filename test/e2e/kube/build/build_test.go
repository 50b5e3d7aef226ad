// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestWhatIsUpToDateIsLeftAlone: nothing is built, as there is no time for it;
// all programs have stamps, and then one has not.
func TestWhatIsUpToDateIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	module, out := filepath.Join("..", "..", "kubernetes"), t.TempDir()
	made, err := origin(t.Context(), module)
	g.Expect(err).NotTo(HaveOccurred())
	stamp := func(p program) string { return made + " " + p.pkg + " " + p.linkerFlags("v1.36.4") + "\n" }
	for _, p := range programs() {
		g.Expect(os.WriteFile(filepath.Join(out, p.name), []byte("made"), 0o700)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(out, p.name+".stamp"), []byte(stamp(p)), 0o600)).To(Succeed())
	}
	var stdout bytes.Buffer
	g.Expect(build(t.Context(), module, out, &stdout)).To(Succeed())
	g.Expect(strings.Count(stdout.String(), "is up to date")).To(Equal(len(programs())), stdout.String())

	some := programs()[0]
	program, file := filepath.Join(out, some.name), filepath.Join(out, some.name+".stamp")
	g.Expect(upToDate(program, file, stamp(some))).To(BeTrue())
	g.Expect(upToDate(program, file, strings.Replace(stamp(some), made, "other", 1))).To(BeFalse(), "of other modules, or by another compiler")
	g.Expect(os.Remove(program)).To(Succeed())
	g.Expect(upToDate(program, file, stamp(some))).To(BeFalse(), "it is gone")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.Expect(build(ctx, module, out, io.Discard)).To(MatchError(context.Canceled))
}

func TestLinkerFlags(t *testing.T) {
	g := NewWithT(t)
	const v = "k8s.io/component-base/version"
	g.Expect(program{version: v}.linkerFlags("v1.36.4")).
		To(Equal("-s -w -X " + v + ".gitVersion=v1.36.4 -X " + v + ".gitMajor=1 -X " + v + ".gitMinor=36"))
	g.Expect(program{}.linkerFlags("v1.36.4")).To(Equal("-s -w"))
}

func TestVersion(t *testing.T) {
	g := NewWithT(t)
	g.Expect(versionOf(filepath.Join("..", "..", "kubernetes"), "k8s.io/kubernetes")).To(MatchRegexp(`^v1\.[0-9]+\.[0-9]+$`))
	_, err := versionOf(filepath.Join("..", "..", "kubernetes"), "example.org/none")
	g.Expect(err).To(MatchError(ContainSubstring("requires no version of example.org/none")))
}

func TestCommandLine(t *testing.T) {
	g := NewWithT(t)
	var stderr bytes.Buffer
	g.Expect(run(t.Context(), []string{"--help"}, io.Discard, &stderr)).To(BeZero())
	g.Expect(run(t.Context(), []string{"--no-such-flag"}, io.Discard, &stderr)).To(Equal(2))
	stderr.Reset()
	g.Expect(run(t.Context(), []string{"-module", t.TempDir(), "-o", t.TempDir()}, io.Discard, &stderr)).To(Equal(1))
	g.Expect(stderr.String()).To(ContainSubstring("start this at the root of the repository"))
}
