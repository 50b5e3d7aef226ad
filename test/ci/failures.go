// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"
)

// The longest excerpt of failures: of one target, of one failure, and of one line.
const (
	mostFailureLines = 90
	linesOfAFailure  = 14
	mostOfALine      = 300
)

// failures collects the lines of an output that say which tests failed, and why. A test
// prints long logs after that, so the end of an output does not say it.
type failures struct {
	lines []string
	left  int // lines that belong to the failure that has begun
}

// isFailure reports whether a failed expectation, a panic or a race begins with a line.
func isFailure(line string) bool {
	return isExpectation(line) || strings.HasPrefix(line, "panic: ") ||
		strings.HasPrefix(line, "fatal error: ") || strings.HasPrefix(line, "WARNING: DATA RACE")
}

// isExpectation matches the first line of an expectation that failed: a place, and nothing.
func isExpectation(line string) bool {
	file, rest, _ := strings.Cut(strings.TrimSpace(line), ".go:")
	number, isLast := strings.CutSuffix(rest, ":")
	_, err := strconv.Atoi(number)
	return isLast && err == nil && !strings.Contains(file, " ")
}

// read reads the next line of an output.
func (f *failures) read(line string) {
	switch {
	case isFailure(line):
		f.left = linesOfAFailure
	case strings.Contains(line, "--- FAIL"):
		f.left = max(f.left, 2) // an error by itself stands in the next line
	}
	if f.left == 0 || len(f.lines) >= mostFailureLines {
		return
	}
	f.left--
	if len(line) > mostOfALine {
		line = line[:mostOfALine] + "...\n"
	}
	f.lines = append(f.lines, line)
}
