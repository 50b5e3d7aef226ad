// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// modules returns the folders of modules that a suite tests, and what else it reads. A suite
// that is not here runs always.
func modules() map[string][]string {
	return map[string][]string{
		"ligato":        {"ligato"},
		"vpp":           {"vpp"},
		"providers":     {"providers/ec2", "providers/openstack"},
		"e2e-ec2":       {"providers/ec2", "test/e2e/kube", "test/e2e/kubernetes"},
		"e2e-openstack": {"providers/openstack", "test/e2e/kube", "test/e2e/kubernetes"},
		"e2e-chart":     {"charts/test", "charts", "k8s", "conf", "test/e2e/kube", "test/e2e/kubernetes"},
	}
}

// changes knows which files differ from those of the commit where this branch has left the
// main one.
type changes struct {
	root string
	// files are relative to root; nil: there is no such commit, so everything counts as changed.
	files []string
}

// since compares root with the merge base of its commit and another one, such as origin/main.
// Without a merge base, or if it is this commit, everything counts as changed.
func since(ctx context.Context, root, other string) changes {
	c := changes{root: root}
	base, err := c.git(ctx, "merge-base", "HEAD", other)
	if err != nil {
		return c
	}
	if head, err := c.git(ctx, "rev-parse", "HEAD"); err != nil || head == base {
		return c
	}
	files, err := c.git(ctx, "diff", "--name-only", "--no-renames", "-z", base) // both names of a moved file
	if err != nil {
		return c
	}
	more, err := c.git(ctx, "ls-files", "--others", "--exclude-standard", "-z")
	if err != nil {
		return c
	}
	c.files = strings.Split(files+more, "\x00")
	return c
}

func (c changes) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = c.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// spare reports whether a suite tests only modules that are as they were. No file of theirs
// has changed then, none of a package that they import, and nothing that all modules share.
func (c changes) spare(ctx context.Context, suite string) bool {
	folders, ok := modules()[suite]
	if !ok || c.files == nil {
		return false
	}
	read := []string{"go.mod", "go.sum", "Makefile", ".golangci.yml", "test/ci"}
	for _, folder := range folders {
		read = append(read, folder)
		imported, err := c.imported(ctx, folder)
		if err != nil {
			return false
		}
		read = append(read, imported...)
	}
	return !slices.ContainsFunc(c.files, func(file string) bool {
		return file != "" && slices.ContainsFunc(read, func(path string) bool {
			return file == path || filepath.Dir(file) == path ||
				slices.Contains(folders, path) && strings.HasPrefix(file, path+"/")
		})
	})
}

// imported returns the folders of the packages below root that those of a folder import, also
// in tests, and the files that they embed.
func (c changes) imported(ctx context.Context, folder string) (all []string, err error) {
	const paths = `{{if not .Standard}}{{$d := .Dir}}{{$d}}
{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{range .TestEmbedFiles}}{{$d}}/{{.}}
{{end}}{{range .XTestEmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}`
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "-f", paths, "./...")
	cmd.Dir = filepath.Join(c.root, folder)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", folder, err)
	}
	for path := range strings.SplitSeq(string(out), "\n") {
		inside, err := filepath.Rel(c.root, path)
		if path != "" && err == nil && !strings.HasPrefix(inside, "..") {
			all = append(all, inside)
		}
	}
	return all, nil
}
