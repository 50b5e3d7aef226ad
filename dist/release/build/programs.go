// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Group holds the programs of one module. They are shipped together.
type Group struct {
	Name     string   // Main, or what the module adds, such as ec2
	module   string   // its folder, from the root; "": the root
	Packages []string // of the programs, from the module
}

// Main is the name of the group of the main module.
const Main = "main"

// Cloud reports whether the programs talk to a cloud, over TLS.
func (g Group) Cloud() bool { return strings.HasPrefix(g.module, "providers"+string(os.PathSeparator)) }

// Programs returns the names of the programs.
func (g Group) Programs() (names []string) {
	for _, p := range g.Packages {
		names = append(names, filepath.Base(p))
	}
	return names
}

// Groups lists the groups of the tree: the main one first, then those of clouds, then VPP.
func Groups(root string) ([]Group, error) {
	all := []Group{{Name: Main}}
	clouds, err := filepath.Glob(filepath.Join(root, "providers", "*", "cmd"))
	if err != nil {
		return nil, err
	}
	for _, dir := range clouds {
		name := filepath.Base(filepath.Dir(dir))
		all = append(all, Group{Name: name, module: filepath.Join("providers", name)})
	}
	all = append(all, Group{Name: "vpp", module: "vpp"})
	for i, g := range all {
		dirs, err := filepath.Glob(filepath.Join(root, g.module, "cmd", "*"))
		if err != nil {
			return nil, err
		}
		if len(dirs) == 0 {
			return nil, fmt.Errorf(
				"%s has no programs: it is not the source of Cadastre",
				filepath.Join(root, g.module),
			)
		}
		for _, dir := range dirs {
			all[i].Packages = append(all[i].Packages, "./cmd/"+filepath.Base(dir))
		}
	}
	all[0].Packages = append(all[0].Packages, "./docker/cni-installer")
	return all, nil
}

// Select returns the groups of these names, and all groups without names.
func Select(all []Group, names []string) ([]Group, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	var selected []Group
	for _, g := range all {
		known = append(known, g.Name)
		if slices.Contains(names, g.Name) {
			selected = append(selected, g)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("the group %q is not known: there are %s", name, strings.Join(known, ", "))
		}
	}
	return selected, nil
}

// Build puts the programs of a group for Linux on arch into the folder out.
func (s *Source) Build(ctx context.Context, g Group, arch, out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return fmt.Errorf("build the programs of %s: %w", g.Name, err)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("build the programs of %s: %w", g.Name, err)
	}
	args := []string{
		"build",
		"-trimpath",
		"-buildvcs=false",
		"-ldflags",
		s.linkerFlags(),
		"-o",
		out + string(os.PathSeparator),
	}
	_, err = output(ctx, filepath.Join(s.Root, g.module), environment(arch), "go", append(args, g.Packages...)...)
	if err != nil {
		return fmt.Errorf("build the programs of %s for %s: %w", g.Name, arch, err)
	}
	return nil
}

// environment overrides the settings of the user that change what go builds.
func environment(arch string) []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GODEBUG=",
	}
}

// linkerFlags leave out symbols and write the version, by which package version describes
// the program. Without -buildid= two builds still have the same ID, by which Go finds
// programs that are the same.
func (s *Source) linkerFlags() string {
	commit := s.Commit
	if s.Modified {
		commit += "+changes"
	}
	const variable = " -X github.com/cadastre/cadastre/internal/version."
	return "-s -w" + variable + "release=" + s.Version + variable + "commit=" + commit
}

// GoVersion returns the version of Go that builds the programs, such as go1.26.8.
func (s *Source) GoVersion(ctx context.Context) (string, error) {
	return output(ctx, s.Root, nil, "go", "env", "GOVERSION")
}
