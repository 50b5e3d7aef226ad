// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// notesName is the name of the file with what is new.
const notesName = "NOTES.md"

// notes writes the version's part of CHANGELOG.md. A version for users must have one; a
// version on the way to it has what is not released yet.
func (r room) notes(context.Context) error {
	path := filepath.Join(r.source.Root, "CHANGELOG.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	part, ok := section(string(text), r.source.Version)
	if !ok && r.source.Final() {
		return fmt.Errorf("%s has no heading \"## %s - YYYY-MM-DD\": give the unreleased changes this heading",
			path, r.source.Version)
	}
	if !ok {
		part, _ = section(string(text), "Unreleased")
	}
	return os.WriteFile(r.file(notesName), []byte(part), 0o644)
}

// section returns the text below the heading of a version, which may have a date, up to
// the next version.
func section(changelog, version string) (part string, ok bool) {
	for chunk := range strings.SplitSeq("\n"+changelog, "\n## ") {
		heading, text, _ := strings.Cut(chunk, "\n")
		name, _, _ := strings.Cut(heading, " - ")
		if strings.TrimSpace(name) == version {
			return strings.TrimSpace(text) + "\n", true
		}
	}
	return "", false
}
