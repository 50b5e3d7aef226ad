// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/cadastre/cadastre/dist/release/build"
)

// krewName is the name of the manifest of "kubectl krew install --manifest".
const krewName = "krew.yaml"

// krew writes the manifest of kubectl's plugin, which names the archives of both
// architectures. A release without one of them has no such manifest.
func (r room) krew(ctx context.Context) error {
	main := slices.ContainsFunc(r.groups, func(g build.Group) bool { return g.Name == build.Main })
	if !main || len(r.arches) < 2 {
		return nil
	}
	script := filepath.Join(r.source.Root, "dist", "krew", "render.sh")
	cmd := exec.CommandContext(ctx, "sh", script, r.source.Version, r.file(sumsName))
	var problem bytes.Buffer
	cmd.Stderr = &problem
	text, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("manifest of krew: %w: %s", err, &problem)
	}
	return os.WriteFile(r.file(krewName), text, 0o644)
}
