// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command cni-installer puts files in place on a node, from an image that has
// neither a shell nor cp: the CNI plugin, and what configures it.
//
// Each argument is SOURCE=DESTINATION. A destination is replaced at once, so
// that a runtime never starts half a program, gets its source's mode, and is
// left alone where it is the same already. The first failure ends it with 1; the
// destinations before it are in place then.
//
// Example:
//
//	cni-installer /cadastre-cni=/host/opt/cni/bin/cadastre-cni
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cadastre/cadastre/internal/version"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the whole program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "--version" {
		fmt.Fprintln(stdout, version.Line("cni-installer"))
		return 0
	}
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: cni-installer SOURCE=DESTINATION...")
		return 2
	}
	for _, arg := range args {
		source, destination, ok := strings.Cut(arg, "=")
		if !ok || source == "" || destination == "" {
			fmt.Fprintf(stderr, "cni-installer: %q is not SOURCE=DESTINATION\n", arg)
			return 2
		}
		fresh, err := install(source, destination)
		switch {
		case err != nil:
			fmt.Fprintf(stderr, "cni-installer: install %s: %v\n", destination, err)
			return 1
		case fresh:
			fmt.Fprintf(stdout, "%s installed\n", destination)
		default:
			fmt.Fprintf(stdout, "%s is the same already\n", destination)
		}
	}
	return 0
}

// install copies source beside destination and then renames it.
func install(source, destination string) (fresh bool, err error) {
	info, err := os.Stat(source)
	if err != nil {
		return false, err
	}
	data, err := os.ReadFile(source)
	if err != nil {
		return false, err
	}
	mode := info.Mode().Perm()
	if was, err := os.Stat(destination); err == nil && was.Mode().Perm() == mode {
		if have, err := os.ReadFile(destination); err == nil && bytes.Equal(have, data) {
			return false, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(destination), 0o755); err != nil {
		return false, err
	}
	// Runtimes take every file of a directory that ends in .conf or .conflist.
	tmp, err := os.CreateTemp(filepath.Dir(destination), "."+filepath.Base(destination)+".*.tmp")
	if err != nil {
		return false, err
	}
	_, err = tmp.Write(data)
	if err == nil {
		err = errors.Join(tmp.Chmod(mode), tmp.Sync())
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), destination)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(tmp.Name()))
	}
	return true, nil
}
