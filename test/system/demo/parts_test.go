// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

func TestCommandLine(t *testing.T) {
	for _, args := range []string{"jump", "run fast", "--namespaces=all", "--no-such-flag", "inside", "--dir=d --bin=b inside"} {
		var stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), io.Discard, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%s: exit code %d, %s", args, code, &stderr)
		}
	}
	if code := run(t.Context(), []string{"--help"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("--help: exit code %d", code)
	}
}

func TestForegroundNeedsRoomForTheSocket(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	opt := stage.Options{Root: "/r", Bin: "/b", Dir: long}
	if err := foreground(t.Context(), opt, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("a socket that does not fit: %v", err)
	}
}
