// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

const beginMark, endMark = "<!-- results -->", "<!-- /results -->"

// render is the whole section.
func render(r *results, machine string) string {
	var w strings.Builder
	w.WriteString("<!-- written by test/peers/cmd/report: do not edit -->\n\n" + machine + "\n")
	if len(r.missing) > 0 {
		fmt.Fprintf(&w, "\n**Not in this run:** %s.\n", strings.Join(r.missing, "; "))
	}
	writeAims(&w, r)
	for _, t := range tables() {
		t.write(&w, r)
	}
	return w.String()
}

// replaceSection puts text between the markers of a file.
func replaceSection(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(old, []byte(beginMark))
	_, after, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return fmt.Errorf("%s: it has no section between %s and %s", path, beginMark, endMark)
	}
	page := fmt.Sprintf("%s%s\n%s%s%s", before, beginMark, text, endMark, after)
	return os.WriteFile(path, []byte(page), 0o644)
}
