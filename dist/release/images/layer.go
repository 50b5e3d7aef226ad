// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cadastre/cadastre/dist/release/archive"
)

// Inputs holds the files of the machine that images are made of.
type Inputs struct {
	Programs     func(arch string) string // the folder of an architecture's programs
	Certificates string                   // the file of the authorities of TLS
	Time         time.Time                // of all that is in the images
}

// layer returns the only layer of an image.
func (in Inputs) layer(i Image, arch string) (v1.Layer, error) {
	entries, err := in.entries(i, arch)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := archive.Tar(&text, entries, in.Time); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// entries lists the files of an image in the order of their names, with their folders.
func (in Inputs) entries(i Image, arch string) (all []archive.Entry, err error) {
	for _, name := range slices.Sorted(maps.Keys(i.Programs)) {
		program := filepath.Join(in.Programs(arch), i.Programs[name])
		all = append(all, archive.File(strings.TrimPrefix(name, "/"), 0o755, program))
	}
	if !i.Certificates {
		return all, nil
	}
	if _, err := os.Stat(in.Certificates); err != nil {
		return nil, fmt.Errorf("the authorities of TLS for images of clouds: %w: install Debian's ca-certificates", err)
	}
	name := strings.TrimPrefix(CertificatesPath, "/")
	for at, c := range name {
		if c == '/' {
			all = append(all, archive.Folder(name[:at]))
		}
	}
	return append(all, archive.File(name, 0o644, in.Certificates)), nil
}
