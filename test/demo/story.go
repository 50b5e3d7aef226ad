// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
)

// story prints numbered steps.
type story struct {
	w     io.Writer
	steps int
}

// step begins the next step.
func (s *story) step(format string, args ...any) {
	s.steps++
	fmt.Fprintf(s.w, "\n%2d. %s\n", s.steps, fmt.Sprintf(format, args...))
}

// say prints what belongs to the step, which may be many lines.
func (s *story) say(format string, args ...any) {
	text := strings.Trim(fmt.Sprintf(format, args...), "\n")
	for line := range strings.SplitSeq(text, "\n") {
		fmt.Fprintln(s.w, strings.TrimRight("    "+line, " "))
	}
}
