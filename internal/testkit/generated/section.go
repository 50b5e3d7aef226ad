// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package generated

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
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

// Main runs a program that writes a section, until it ends or is interrupted. If it
// fails, Main prints the error after the program's name and ends the process with 1.
func Main(name string, run func(ctx context.Context, args []string) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Publish writes text to report.md in the folder out and, if page is not empty, between
// the markers of that page.
func Publish(out, page, text string) error {
	err := os.WriteFile(filepath.Join(out, "report.md"), []byte(text), 0o644)
	if err != nil || page == "" {
		return err
	}
	return Replace(page, text)
}
