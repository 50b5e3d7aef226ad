// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"slices"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/deb"
)

// packages writes the Debian packages, which have programs of the main group only.
func (r room) packages(context.Context) error {
	if !slices.ContainsFunc(r.groups, func(g build.Group) bool { return g.Name == build.Main }) {
		return nil
	}
	for _, arch := range r.arches {
		for _, p := range deb.Packages() {
			name, data, err := p.Make(r.source, arch, r.of(arch))
			if err != nil {
				return err
			}
			if err := os.WriteFile(r.file("%s", name), data, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
