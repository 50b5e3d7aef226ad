// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/dist/release/provenance"
)

// sumsName is the name of the file of checksums, in the format of sha256sum.
const sumsName = "SHA256SUMS"

// digests returns the checksum of each file of the release so far, by name.
func (r room) digests() (all []provenance.File, err error) {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // in lexical order
		if !e.Type().IsRegular() {
			continue
		}
		sum, err := digest(filepath.Join(r.out, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, provenance.File{Name: e.Name(), SHA256: sum})
	}
	return all, nil
}

// digest returns the SHA-256 of a file.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sums writes the checksums of all files that are there.
func (r room) sums(context.Context) error {
	all, err := r.digests()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, f := range all {
		text.WriteString(f.SHA256 + "  " + f.Name + "\n")
	}
	return os.WriteFile(r.file(sumsName), []byte(text.String()), 0o644)
}

// provenance writes the statement about all files, the checksums among them. It is not
// among the checksums itself: it names the builder, so it differs between builders.
func (r room) provenance(ctx context.Context) error {
	files, err := r.digests()
	if err != nil {
		return err
	}
	goVersion, err := r.source.GoVersion(ctx)
	if err != nil {
		return err
	}
	var groups []string
	for _, g := range r.groups {
		groups = append(groups, g.Name)
	}
	text, err := provenance.Statement(provenance.Build{
		Source: r.source, Arches: r.arches, Groups: groups, Builder: r.builder, Go: goVersion,
	}, files)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("cadastre_%s.intoto.json", r.source.Version), text, 0o644)
}
