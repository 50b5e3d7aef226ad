// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package section replaces the part of a page that a program writes. The rest of
// the page, before and after the markers, is written by people.
package section

import (
	"bytes"
	"fmt"
	"os"
)

// The markers around the part that is replaced.
const (
	Begin = "<!-- results -->"
	End   = "<!-- /results -->"
)

// Replace puts text between the markers of the file.
func Replace(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(old, []byte(Begin))
	_, after, ok2 := bytes.Cut(rest, []byte(End))
	if !ok || !ok2 {
		return fmt.Errorf("%s: it has no section between %s and %s", path, Begin, End)
	}
	page := fmt.Sprintf("%s%s\n%s%s%s", before, Begin, text, End, after)
	return os.WriteFile(path, []byte(page), 0o644)
}
