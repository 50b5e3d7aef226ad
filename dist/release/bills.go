// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/images"
	"github.com/cadastre/cadastre/dist/release/sbom"
)

// bills writes the list of the parts of each group's programs.
func (r room) bills(ctx context.Context) error {
	for _, arch := range r.arches {
		for _, g := range r.groups {
			d := sbom.Document{Name: r.stem(g, arch), Version: r.source.Version, Time: r.source.Time}
			for _, program := range g.Programs() {
				d.Programs = append(d.Programs, filepath.Join(r.of(arch), program))
			}
			d.Debian = r.debian(ctx, g)
			text, err := d.Marshal()
			if err != nil {
				return err
			}
			if err := os.WriteFile(r.file("%s.spdx.json", d.Name), text, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// debian returns the package of the certificates in a cloud's images. Without dpkg, or with a
// file of another origin, its version is not known.
func (r room) debian(ctx context.Context, g build.Group) []sbom.Debian {
	if !g.Cloud() {
		return nil
	}
	const name = "ca-certificates"
	p := sbom.Debian{Name: name, Version: "unknown"}
	if r.certificates == images.CertificatesPath {
		if out, err := exec.CommandContext(
			ctx,
			"dpkg-query",
			"--show",
			"--showformat=${Version}",
			name,
		).Output(); err == nil {
			p.Version = strings.TrimSpace(string(out))
		}
	}
	return []sbom.Debian{p}
}
