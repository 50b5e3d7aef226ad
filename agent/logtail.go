// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"sync"
)

// Limits of a LogTail.
const (
	maxTail     = 256 << 10 // bytes of all lines
	maxTailLine = 4 << 10   // bytes of a line; the rest of it is cut off
)

// LogTail keeps the last lines of a log in memory, for the local API. It is an io.Writer
// beside the one of the log; each Write is one line or several. Any goroutine may use it.
// The zero value is empty.
type LogTail struct {
	mu    sync.Mutex
	lines []string
	bytes int
}

// Write appends lines; it never fails.
func (t *LogTail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		line = strings.TrimRight(line, "\n")
		line = strings.Clone(line[:min(len(line), maxTailLine)])
		t.lines, t.bytes = append(t.lines, line), t.bytes+len(line)+1
	}
	for t.bytes > maxTail {
		t.bytes -= len(t.lines[0]) + 1
		t.lines = t.lines[1:]
	}
	return len(p), nil
}

// Lines returns the lines, the oldest first.
func (t *LogTail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, t.lines...)
}
