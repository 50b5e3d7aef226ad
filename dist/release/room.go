// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/images"
)

// room holds one release that is being made.
type room struct {
	options
	source   build.Source
	groups   []build.Group
	programs string // a folder with a folder an architecture; removed in the end
	stdout   io.Writer
}

// begin replaces the output folder by an empty one.
func (r *room) begin() error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	r.programs = filepath.Join(r.out, ".programs")
	return os.MkdirAll(r.programs, 0o755)
}

// file returns the path of a file of the release.
func (r room) file(format string, args ...any) string {
	return filepath.Join(r.out, fmt.Sprintf(format, args...))
}

// of returns the folder of an architecture's programs.
func (r room) of(arch string) string { return filepath.Join(r.programs, arch) }

// build builds the programs of all groups, and those of the main one that images of others
// have, too.
func (r room) build(ctx context.Context) error {
	groups := r.groups
	if !slices.ContainsFunc(groups, func(g build.Group) bool { return g.Name == build.Main }) {
		groups = append([]build.Group{{Name: build.Main, Packages: []string{"./cmd/cadastre"}}}, groups...)
	}
	for _, arch := range r.arches {
		for _, g := range groups {
			if err := r.source.Build(ctx, g, arch, r.of(arch)); err != nil {
				return err
			}
		}
	}
	return nil
}

// images writes the images of all groups.
func (r room) images(context.Context) error {
	in := images.Inputs{Programs: r.of, Certificates: r.certificates, Time: r.source.Time}
	for _, g := range r.groups {
		for _, i := range images.For(g) {
			reference := i.Reference(r.repository, r.source.Version)
			file := r.file("%s_%s.oci.tar", i.Name, r.source.Version)
			if err := in.Write(file, i, r.source, r.arches, reference); err != nil {
				return err
			}
			fmt.Fprintf(r.stdout, "%s is %s\n", filepath.Base(file), reference)
		}
	}
	return nil
}
