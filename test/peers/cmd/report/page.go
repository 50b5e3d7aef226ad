// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

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
