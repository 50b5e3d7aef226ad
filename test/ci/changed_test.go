// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// branch is a repository with a module vpp that imports a package of the main one, and a
// branch that has left main.
func branch(t *testing.T) (root string, write func(file, text string), git func(args ...string)) {
	t.Helper()
	g := NewWithT(t)
	root = t.TempDir()
	write = func(file, text string) {
		path := filepath.Join(root, file)
		g.Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(path, []byte(text), 0o600)).To(Succeed())
	}
	git = func(args ...string) {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
	}
	git("init", "-q", "-b", "main")
	write("go.mod", "module example.org/m\n\ngo 1.26\n")
	write("kvdb/kvdb.go", "package kvdb\n")
	write("kvdb/bolt/bolt.go", "package bolt\n")
	write("ledger/page/index.html", "a page\n")
	write("ledger/ledger.go", `package ledger

import (
	"embed"

	_ "example.org/m/kvdb"
)

//go:embed page
var _ embed.FS
`)
	write("vpp/go.mod", "module example.org/m/vpp\n\ngo 1.26\n\nrequire example.org/m v0.0.0\n\nreplace example.org/m => ../\n")
	write("vpp/testdata/golden", "a text\n")
	write("vpp/vpp.go", "package vpp\n\nimport _ \"example.org/m/ledger\"\n")
	git("add", "-A")
	git("commit", "-qm", "one")
	git("checkout", "-qb", "change")
	write("docs/a.md", "a page\n")
	git("add", "-A")
	git("commit", "-qm", "two")
	return root, write, git
}

// A module runs if it, or what it imports over any number of steps, has changed, also in
// files that are not committed.
func TestAModuleThatHasNotChangedIsSpared(t *testing.T) {
	for _, c := range []struct {
		changed string
		spared  bool
	}{
		{"docs/b.md", true},
		{"kvdb/bolt/bolt.go", true},
		{"kvdb/kvdb.go", false},
		{"ledger/new_file.go", false},
		{"vpp/vpp.go", false},
		{"vpp/testdata/deep/file", false},
		{"vpp/testdata/a name with blanks and ä", false},
		{"ledger/page/index.html", false},
		{"go.sum", false},
		{"Makefile", false},
		{"test/ci/suites.mk", false},
	} {
		t.Run(c.changed, func(t *testing.T) {
			g := NewWithT(t)
			root, write, _ := branch(t)
			text, _ := os.ReadFile(filepath.Join(root, c.changed))
			if filepath.Ext(c.changed) == ".go" && text == nil {
				text = []byte("package ledger\n")
			}
			write(c.changed, string(text)+"\n")
			is := since(t.Context(), root, "main")
			g.Expect(is.spare(t.Context(), "vpp")).To(Equal(c.spared))
			g.Expect(is.spare(t.Context(), "race")).To(BeFalse(), "it is of the main module")
		})
	}
}

// A file that has moved out of a module is missing there.
func TestAModuleThatHasLostAFileRuns(t *testing.T) {
	g := NewWithT(t)
	root, _, git := branch(t)
	git("mv", "vpp/testdata/golden", "docs/golden")
	g.Expect(since(t.Context(), root, "main").spare(t.Context(), "vpp")).To(BeFalse())
}

// Without a commit to compare with, everything runs.
func TestWithoutAMergeBaseEverythingRuns(t *testing.T) {
	root, _, git := branch(t)
	for name, other := range map[string]string{"no such branch": "origin/main", "this commit": "HEAD"} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(since(t.Context(), root, other).spare(t.Context(), "vpp")).To(BeFalse())
		})
	}
	t.Run("unrelated", func(t *testing.T) {
		git("checkout", "-q", "--orphan", "other")
		git("commit", "-qm", "three")
		NewWithT(t).Expect(since(t.Context(), root, "main").spare(t.Context(), "vpp")).To(BeFalse())
	})
}
