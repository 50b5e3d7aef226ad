// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// lab runs the tests of folders over one changed file at a time.
type lab struct {
	dir      string
	packages []string
	limit    time.Duration // of the tests: several times as long as they take
}

// newLab runs the tests once without a change.
func newLab(ctx context.Context, folders []string) (*lab, error) {
	dir, err := os.MkdirTemp("", "mutations-")
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir}
	for _, folder := range folders {
		l.packages = append(l.packages, "./"+folder)
	}
	began := time.Now()
	if err := goTool(ctx, append([]string{"test", "-vet=off", "-count=1"}, l.packages...)...); err != nil {
		l.close()
		return nil, fmt.Errorf("without a change: %w", err)
	}
	l.limit = 4*time.Since(began) + 20*time.Second
	return l, nil
}

func (l *lab) close() { _ = os.RemoveAll(l.dir) }

// verdict holds the result of the tests over a change.
type verdict struct {
	compiles bool
	killer   string // the first test that fails, "" for none
}

// test runs the tests over a change.
func (l *lab) test(ctx context.Context, m mutation) (verdict, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return verdict{}, err
	}
	changed := filepath.Join(l.dir, "changed.go")
	if err := os.WriteFile(changed, m.apply(source), 0o600); err != nil {
		return verdict{}, err
	}
	path, err := filepath.Abs(m.file)
	if err != nil {
		return verdict{}, err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return verdict{}, err
	}
	overlay := filepath.Join(l.dir, "overlay.json")
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return verdict{}, err
	}
	if err := goTool(ctx, "build", "-overlay", overlay, "./"+filepath.Dir(m.file)); err != nil {
		return verdict{}, ctx.Err() // it does not compile
	}
	args := append(
		[]string{"test", "-overlay", overlay, "-vet=off", "-failfast", "-json", "-timeout", l.limit.String()},
		l.packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return verdict{}, context.Cause(ctx)
	}
	if err == nil {
		return verdict{compiles: true}, nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return verdict{}, fmt.Errorf("go test: %w", err)
	}
	return verdict{compiles: true, killer: firstFailure(out)}, nil
}

// firstFailure returns the test that failed first, or what else ended the tests.
func firstFailure(out []byte) string {
	ended := "the tests of a package do not end"
	for line := range bytes.Lines(out) {
		var event struct{ Action, Package, Test string }
		if json.Unmarshal(line, &event) != nil || event.Action != "fail" {
			continue
		}
		if event.Test != "" {
			return filepath.Base(event.Package) + "." + event.Test
		}
		ended = "a crash or hang of " + filepath.Base(event.Package)
	}
	return ended
}

func goTool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, out)
	}
	return nil
}
