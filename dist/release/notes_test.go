// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/dist/release/build"
)

func TestNotes(t *testing.T) {
	g := NewWithT(t)
	root := t.TempDir()
	changes := "# Changelog\n\n## Unreleased\n\n- d\n\n## 1.2.0 - 2026-12-01\n\n### Added\n- c\n\n## 1.1.0 - 2026-11-01\n- a\n"
	g.Expect(os.WriteFile(filepath.Join(root, "CHANGELOG.md"), []byte(changes), 0o600)).To(Succeed())
	notes := func(version string) (string, error) {
		r := room{options: options{out: root}, source: build.Source{Root: root, Version: version}}
		if err := r.notes(t.Context()); err != nil {
			return "", err
		}
		data, err := os.ReadFile(filepath.Join(root, notesName))
		return string(data), err
	}
	g.Expect(notes("1.2.0")).To(Equal("### Added\n- c\n"))
	g.Expect(notes("1.1.0")).To(Equal("- a\n"))
	g.Expect(notes("1.3.0-dev")).To(Equal("- d\n"))
	_, err := notes("1.3.0")
	g.Expect(err).To(MatchError(ContainSubstring(`no heading "## 1.3.0 - YYYY-MM-DD"`)))
}

// TestChangelog: a release finds its part of the real file.
func TestChangelog(t *testing.T) {
	g := NewWithT(t)
	part, ok := section(text(g, "CHANGELOG.md"), "Unreleased")
	g.Expect(ok).To(BeTrue())
	g.Expect(part).To(ContainSubstring("### Added"))
}

func TestCommandLine(t *testing.T) {
	g := NewWithT(t)
	for args, want := range map[string]string{
		"":                             "want one of images, all",
		"--out x image":                "want one of images, all",
		"--out x all images":           "want one of images, all",
		"images":                       "--out is empty",
		"--out x --arch riscv64 all":   `"riscv64" is not known`,
		"--out x --arch , all":         "--arch is empty",
		"--out x --architecture a all": "flag provided but not defined",
	} {
		var stderr strings.Builder
		g.Expect(run(t.Context(), strings.Fields(args), os.Getenv, io.Discard, &stderr)).To(Equal(2), args)
		g.Expect(stderr.String()).To(ContainSubstring(want), args)
	}
	g.Expect(run(t.Context(), []string{"--help"}, os.Getenv, io.Discard, io.Discard)).To(BeZero())
	var stderr strings.Builder
	g.Expect(run(t.Context(), []string{"--out", t.TempDir(), "--root", repository, "--groups", "man", "all"}, os.Getenv, io.Discard, &stderr)).To(Equal(1))
	g.Expect(stderr.String()).To(ContainSubstring("there are main, ec2, openstack, vpp"))
}
