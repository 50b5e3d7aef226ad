// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// Image is an image of static programs.
type Image struct {
	Names      []string
	Programs   map[string]string // paths on this machine, by path in the image
	Entrypoint []string
	Arguments  []string
}

// StaticBusybox finds a busybox that needs no libraries: it is a whole image.
func StaticBusybox() (path string, err error) {
	path, err = stage.LookPath("busybox")
	if err != nil {
		return "", err
	}
	file, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("look whether %s is static: %w", path, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is not static", path)
		}
	}
	return path, nil
}

// Archive returns an archive of images in the form of "docker save".
func Archive(all []Image) ([]byte, error) {
	var files []file
	manifest := []map[string]any{}
	for i, image := range all {
		layer, err := image.layer()
		if err != nil {
			return nil, err
		}
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH,
			"os":           "linux",
			"config":       map[string]any{"Entrypoint": image.Entrypoint, "Cmd": image.Arguments, "User": "0:0"},
			"rootfs": map[string]any{
				"type":     "layers",
				"diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
			},
		})
		if err != nil {
			return nil, err
		}
		configName, layerName := fmt.Sprintf("config-%d.json", i), fmt.Sprintf("layer-%d.tar", i)
		files = append(files, file{configName, config, 0o644}, file{layerName, layer, 0o644})
		manifest = append(manifest, map[string]any{
			"Config":   configName,
			"RepoTags": image.Names,
			"Layers":   []string{layerName},
		})
	}
	list, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	return pack(append([]file{{"manifest.json", list, 0o644}}, files...)...)
}

func (i Image) layer() ([]byte, error) {
	var files []file
	for _, name := range slices.Sorted(maps.Keys(i.Programs)) {
		code, err := os.ReadFile(i.Programs[name])
		if err != nil {
			return nil, fmt.Errorf("make an image: %w", err)
		}
		files = append(files, file{name, code, 0o755})
	}
	return pack(files...)
}

// file is a file of an archive.
type file struct {
	name string
	data []byte
	mode int64
}

func pack(all ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range all {
		err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))})
		if err == nil {
			_, err = w.Write(f.data)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s into an archive: %w", f.name, err)
		}
	}
	return b.Bytes(), w.Close()
}
