// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package generated compares committed files with what the code makes of them: pages of
// docs, tables, texts. With the environment variable of "make generate" the tests write the
// files instead. Replace and Publish are for programs that write a part of a page: the rest,
// before and after the markers, is written by people. Functions keep no state.
package generated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Env is set by "make generate": the tests write the files that they compare otherwise.
const Env = "CADASTRE_GENERATE"

// File compares a file with what the code makes, or writes it. A difference fails the test,
// which goes on.
func File(t testing.TB, path, want string) {
	t.Helper()
	if os.Getenv(Env) != "" {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(want), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) == want {
		return
	}
	line, before, now := difference(string(have), want)
	t.Errorf("%s:%d is %q, the code makes %q: make generate writes it", path, line, before, now)
}

// Part compares the part of a file between two texts, or writes it.
func Part(t testing.TB, path, begin, end, want string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		t.Fatalf("%s has no part between %q and %q", path, begin, end)
	}
	File(t, path, before+begin+want+end+after)
}

// difference returns the first line in which two texts differ.
func difference(have, want string) (line int, before, now string) {
	x, y := strings.Split(have, "\n"), strings.Split(want, "\n")
	for line < len(x) && line < len(y) && x[line] == y[line] {
		line++
	}
	at := func(lines []string) string {
		if line < len(lines) {
			return lines[line]
		}
		return "the end"
	}
	return line + 1, at(x), at(y)
}
