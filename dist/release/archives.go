// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/dist/release/archive"
	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/internal/version"
)

// plugin is Docker's managed plugin, which runs from a folder of its own.
const plugin = "cadastre-docker-plugin"

// stem returns the beginning of the names of a group's files for an architecture.
func (r room) stem(g build.Group, arch string) string {
	name := "cadastre"
	if g.Name != build.Main {
		name += "-" + g.Name
	}
	return name + "_" + r.source.Version + "_linux_" + arch
}

// archives writes an archive of programs for each group and architecture, one of the
// manifests, and the Helm charts as "helm install" takes them.
func (r room) archives(ctx context.Context) error {
	for _, arch := range r.arches {
		for _, g := range r.groups {
			stem := r.stem(g, arch)
			entries, err := r.contents(g, arch, stem)
			if err != nil {
				return err
			}
			if err := archive.WriteFile(r.file("%s.tar.gz", stem), entries, r.source.Time); err != nil {
				return err
			}
		}
	}
	stem := "cadastre_" + r.source.Version + "_kubernetes"
	entries, err := r.manifests(stem)
	if err != nil {
		return err
	}
	if err := archive.WriteFile(r.file("%s.tar.gz", stem), entries, r.source.Time); err != nil {
		return err
	}
	return r.charts(ctx)
}

// charts writes the Helm charts.
func (r room) charts(ctx context.Context) error {
	packed := filepath.Join(r.programs, "charts")
	pack := filepath.Join(r.source.Root, "charts", "pack.sh")
	if out, err := exec.CommandContext(ctx, "sh", pack, packed).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the charts: %w: %s", err, out)
	}
	for _, name := range []string{"cadastre", "cadastre-crds"} {
		entries, err := archive.Tree(filepath.Join(packed, name), name, func(string) bool { return true })
		if err == nil {
			err = replace(entries, "Chart.yaml", "ersion: "+version.Next, "ersion: "+r.source.Version)
		}
		if err == nil {
			err = archive.WriteFile(r.file("%s-%s.tgz", name, r.source.Version), entries, r.source.Time)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// manifests lists the files of k8s/. The tags of images become those of the release.
func (r room) manifests(stem string) ([]archive.Entry, error) {
	entries, err := r.tree("k8s", stem)
	if err != nil {
		return nil, err
	}
	err = replace(entries, "kustomization.yaml", "newTag: "+version.Next, "newTag: "+r.source.Version)
	return entries, err
}

// replace changes a text in all files of a name.
func replace(entries []archive.Entry, name, from, to string) error {
	for i, e := range entries {
		if path.Base(e.Name) != name {
			continue
		}
		text, err := os.ReadFile(e.Path)
		if err != nil {
			return err
		}
		changed := strings.ReplaceAll(string(text), from, to)
		entries[i] = archive.Entry{Name: e.Name, Mode: e.Mode, Data: []byte(changed)}
	}
	return nil
}

// contents lists the entries of a group's archive, below the folder stem.
func (r room) contents(g build.Group, arch, stem string) ([]archive.Entry, error) {
	all := r.texts(stem)
	for _, program := range g.Programs() {
		name := path.Join(stem, "bin", program)
		if program == plugin {
			name = path.Join(stem, "docker-plugin", "rootfs", program)
		}
		all = append(all, archive.File(name, 0o755, filepath.Join(r.of(arch), program)))
	}
	if g.Name != build.Main {
		return all, nil
	}
	all = append(all, archive.Entry{Name: path.Join(stem, "bin", "kubectl-cadastre"), Mode: 0o777, Link: "cadastre"})
	all = append(all, r.pluginEntries(path.Join(stem, "docker-plugin"))...)
	for from, to := range map[string]string{"conf": "conf", "dist/systemd": "systemd"} {
		entries, err := r.tree(from, path.Join(stem, to))
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	slices.SortFunc(all, func(a, b archive.Entry) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// texts lists what every archive has.
func (r room) texts(stem string) (all []archive.Entry) {
	for _, name := range []string{"CHANGELOG.md", "LICENSE", "README.md"} {
		all = append(all, archive.File(path.Join(stem, name), 0o644, filepath.Join(r.source.Root, name)))
	}
	return all
}

// pluginEntries lists what "docker plugin create" reads beside the program: the
// configuration, and the targets of the plugin's mounts, which an engine does not make.
func (r room) pluginEntries(stem string) []archive.Entry {
	config := filepath.Join(r.source.Root, "docker", "plugin", "config.json")
	return []archive.Entry{
		archive.File(path.Join(stem, "config.json"), 0o644, config),
		archive.Folder(path.Join(stem, "rootfs", "data")),
		archive.Folder(path.Join(stem, "rootfs", "run", "host")),
		{Name: path.Join(stem, "rootfs", "run", "docker.sock"), Mode: 0o644},
	}
}

// tree lists the files of a folder of the source, without tests.
func (r room) tree(from, to string) ([]archive.Entry, error) {
	dir := filepath.Join(r.source.Root, filepath.FromSlash(from))
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return archive.Tree(dir, to, func(name string) bool {
		return !strings.HasSuffix(name, ".go") && !strings.Contains(name, "testdata/")
	})
}
