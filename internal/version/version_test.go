// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	. "github.com/onsi/gomega"
)

// TestDescribe: a commit of the linker comes before the one that Go has recorded.
func TestDescribe(t *testing.T) {
	g := NewWithT(t)
	build := &debug.BuildInfo{GoVersion: "go1", Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}, {Key: "GOARCH", Value: "arm64"},
	}}
	g.Expect(describe("1", "", build).String()).To(Equal("1, 0123456789ab with changes, go1"))
	g.Expect(describe("1", "fedcba98765432", build)).To(Equal(Info{Version: "1", Commit: "fedcba98765432", Go: "go1"}))
	g.Expect(describe("1", "fedcba98765432+changes", build).String()).To(Equal("1, fedcba987654 with changes, go1"))
	g.Expect(describe("1", "short", &debug.BuildInfo{}).String()).To(Equal("1, short"))
	g.Expect(Line("x")).To(HavePrefix("x " + Next + ", "))
}

// TestVersionOfEveryProgram: each program prints version, commit and Go on one line of its
// standard output, with --version alone.
func TestVersionOfEveryProgram(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	const flags = "-X github.com/cadastre/cadastre/internal/version.release=9.8.7 " +
		"-X github.com/cadastre/cadastre/internal/version.commit=00112233445566778899aabbccddeeff00112233"
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", flags, "-o", dir+"/", "./cmd/...", "./docker/cni-installer")
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	programs, err := filepath.Glob(dir + "/*")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(programs)).To(BeNumerically(">=", 6))
	for _, p := range programs {
		cmd := exec.CommandContext(t.Context(), p, "--version")
		out, err := cmd.Output()
		g.Expect(err).NotTo(HaveOccurred(), p)
		g.Expect(string(out)).To(Equal(filepath.Base(p) + " 9.8.7, 001122334455, " + runtime.Version() + "\n"))
	}
}
