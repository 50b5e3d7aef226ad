// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/rhysd/actionlint"
	"sigs.k8s.io/yaml"
)

// workflow holds the parts of a workflow that this project's rules are about.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Permissions map[string]string
		If          string
		Strategy    struct{ Matrix map[string][]string }
		Steps       []struct {
			Uses, Run string
			With      map[string]any
			Env       map[string]string
		}
	}
}

// workflows decodes the workflows of the repository.
func workflows(g Gomega) map[string]workflow {
	all := map[string]workflow{}
	paths, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range paths {
		text, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		var w workflow
		g.Expect(yaml.Unmarshal(text, &w)).To(Succeed())
		all[filepath.Base(path)] = w
	}
	return all
}

// text returns the content of a file of the repository.
func text(g Gomega, name string) string {
	data, err := os.ReadFile(filepath.Join(repository, name))
	g.Expect(err).NotTo(HaveOccurred())
	return string(data)
}

// targets returns the targets of the Makefile.
func targets(g Gomega) (names []string) {
	makefiles := text(g, "Makefile") + text(g, "test/ci/suites.mk")
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):(?:[^=]|$)`).FindAllStringSubmatch(makefiles, -1) {
		names = append(names, m[1])
	}
	return names
}

// TestWorkflows: GitHub accepts them, each "make" names a target of the Makefile, actions
// are pinned to commits, Go is the one of the Dockerfile, and only a tag may write.
func TestWorkflows(t *testing.T) {
	g := NewWithT(t)
	all := workflows(g)
	g.Expect(slices.Sorted(maps.Keys(all))).To(Equal([]string{"ci.yml", "nightly.yml"}))
	goVersion := regexp.MustCompile(`FROM golang:([0-9.]+)-`).FindStringSubmatch(text(g, "docker/Dockerfile"))[1]
	known := targets(g)
	called := map[string][]string{}
	for file, w := range all {
		g.Expect(w.Permissions).To(Equal(map[string]string{"contents": "read"}), file)
		for name, job := range w.Jobs {
			for _, step := range job.Steps {
				if step.Uses != "" {
					g.Expect(step.Uses).To(MatchRegexp(`^actions/[a-z-]+@[0-9a-f]{40}$`), "%s: %s", file, name)
				}
				if version, ok := step.With["go-version"]; ok {
					g.Expect(version).To(Equal(goVersion), "%s: %s", file, name)
				}
				called[file] = append(called[file], calls(step.Run, job.Strategy.Matrix)...)
			}
			if slices.Contains(slices.Collect(maps.Values(job.Permissions)), "write") {
				g.Expect(job.If).To(Equal("startsWith(github.ref, 'refs/tags/v')"), "%s: %s", file, name)
			}
		}
		for _, target := range called[file] {
			g.Expect(known).To(ContainElement(target), file)
		}
	}
	g.Expect(called["ci.yml"]).To(ContainElements("test", "check", "system", "e2e-node", "e2e-release", "release"))
	g.Expect(called["nightly.yml"]).To(ContainElements("chaos", "release-twice"))
}

// calls returns the targets that a step makes, one for each value of the matrix, without the
// variables of make beside them.
func calls(run string, matrix map[string][]string) (names []string) {
	for _, m := range regexp.MustCompile(`\bmake (?:ci SUITE=")?(\$\{\{ matrix\.(\w+) \}\}|[a-z0-9-]+)`).FindAllStringSubmatch(run, -1) {
		if m[2] == "" {
			names = append(names, m[1])
		}
		for _, value := range matrix[m[2]] {
			name, _, _ := strings.Cut(value, ":")
			names = append(names, name)
		}
	}
	return names
}

// TestWorkflowsAreComplete: the workflow ci runs what make ci runs, and nightly what make
// nightly runs.
func TestWorkflowsAreComplete(t *testing.T) {
	g := NewWithT(t)
	called := map[string][]string{}
	for file, w := range workflows(g) {
		for _, job := range w.Jobs {
			for _, step := range job.Steps {
				called[file] = append(called[file], calls(step.Run, job.Strategy.Matrix)...)
			}
		}
	}
	makefile := text(g, "Makefile")
	g.Expect(called["ci.yml"]).To(ContainElement("test"))
	lanes := map[string]string{"CI_COMPUTES": "ci.yml", "CI_INSTALLS": "ci.yml", "NIGHTLY": "nightly.yml"}
	for lane, file := range lanes { // before them, make ci makes test and the control plane
		m := regexp.MustCompile(`\n` + lane + ` := (.+)`).FindStringSubmatch(makefile)
		g.Expect(m).NotTo(BeNil())
		for name := range strings.FieldsSeq(m[1]) {
			name, _, _ = strings.Cut(name, ":")
			g.Expect(called[file]).To(ContainElement(name), lane)
		}
	}
}

// TestActionlint: actionlint finds nothing in the workflows.
func TestActionlint(t *testing.T) {
	g := NewWithT(t)
	l, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	paths, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	g.Expect(err).NotTo(HaveOccurred())
	found, err := l.LintFiles(paths, nil)
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range found {
		t.Error(f)
	}
}
