// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package generated_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + generated.Begin + "\nold\n" + generated.End + "\nafter\n")
	for range 2 {
		if err := generated.Replace(file, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := "before\n" + generated.Begin + "\nnew\n" + generated.End + "\nafter\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	write("no markers")
	if err := generated.Replace(file, "new"); err == nil {
		t.Error("a page without markers was accepted")
	}
}
