// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cadastre/cadastre/dist/release/archive"
	"github.com/cadastre/cadastre/dist/release/build"
)

// home is the address of the project.
const home = "https://github.com/cadastre/cadastre"

// labels returns what an image says about itself.
func (i Image) labels(s build.Source) map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":    i.Title,
		"org.opencontainers.image.version":  s.Version,
		"org.opencontainers.image.licenses": "Apache-2.0",
		"org.opencontainers.image.source":   home,
	}
	if s.Commit != "" {
		all["org.opencontainers.image.revision"] = s.Commit
	}
	return all
}

// make returns the image of an architecture.
func (in Inputs) make(i Image, s build.Source, arch string) (v1.Image, error) {
	layer, err := in.layer(i, arch)
	if err != nil {
		return nil, err
	}
	at := v1.Time{Time: in.Time}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err = mutate.ConfigFile(base, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Created:      at,
		RootFS:       v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{}},
		Config: v1.Config{
			User:        i.User,
			Entrypoint:  i.Entrypoint,
			Cmd:         i.Arguments,
			Healthcheck: i.Healthcheck,
			Labels:      i.labels(s),
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(base, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: at, CreatedBy: "make images", Comment: i.Title},
	})
}

// Write makes the image for each architecture and writes them into a file: an OCI layout in
// a tar archive, with one index that has a manifest an architecture. Runtimes that import
// it give it the name of the reference. An image of one architecture can be loaded into
// Docker, too.
func (in Inputs) Write(file string, i Image, s build.Source, arches []string, reference string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return fmt.Errorf("write the image %s: %w", i.Name, err)
	}
	defer os.RemoveAll(dir)
	var last v1.Image
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range arches {
		if last, err = in.make(i, s, arch); err != nil {
			return fmt.Errorf("make the image %s for %s: %w", i.Name, arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        last,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	if err := writeLayout(dir, index, s.Version, reference); err != nil {
		return fmt.Errorf("write the image %s: %w", i.Name, err)
	}
	entries, err := archive.Tree(dir, "", func(string) bool { return true })
	if err == nil && len(arches) == 1 {
		var manifest []byte
		if manifest, err = dockerManifest(last, reference); err == nil {
			entries = append(entries, archive.Entry{Name: "manifest.json", Mode: 0o644, Data: manifest})
		}
	}
	if err == nil {
		err = archive.WriteFile(file, entries, in.Time)
	}
	if err != nil {
		return fmt.Errorf("write the image %s: %w", i.Name, err)
	}
	return nil
}

func writeLayout(dir string, index v1.ImageIndex, version, reference string) error {
	path, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          reference,
		"org.opencontainers.image.ref.name": version,
	}))
}

// dockerManifest returns manifest.json of "docker save" for the blobs of a layout: engines
// with a store of their own read nothing else.
func dockerManifest(image v1.Image, reference string) ([]byte, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	blob := func(d v1.Descriptor) string { return path.Join("blobs", d.Digest.Algorithm, d.Digest.Hex) }
	one := tarball.Descriptor{Config: blob(manifest.Config), RepoTags: []string{reference}}
	for _, l := range manifest.Layers {
		one.Layers = append(one.Layers, blob(l))
	}
	return json.Marshal(tarball.Manifest{one})
}
