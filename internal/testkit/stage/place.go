// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Place holds the folders of a run.
type Place struct {
	Root string // the repository
	Bin  string // the programs
	Dir  string // everything that is written
}

// Program is the path of a program.
func (p Place) Program(name string) string { return filepath.Join(p.Bin, name) }

// newDir makes a directory whose name leaves room for a socket in it.
func newDir(name, socket string) (string, error) {
	base := os.TempDir()
	if len(filepath.Join(base, name+"-1234567890", socket)) > MaxSocketPath {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, name+"-")
	if err != nil {
		return "", fmt.Errorf("make a directory for the demo: %w", err)
	}
	return dir, nil
}

// Running are the command lines of all processes that name dir.
func Running(dir string) (all []string, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(dir)) { // it may have ended meanwhile
			all = append(all, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return all, nil
}

// remove removes the directory and makes sure of it, and that nothing runs in it.
func remove(dir string) error {
	running, err := Running(dir)
	if err == nil && len(running) > 0 {
		err = fmt.Errorf("still running: %q", running)
	}
	err = errors.Join(err, os.RemoveAll(dir))
	if err == nil {
		if _, err = os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	return fmt.Errorf("%s is not removed: %w", dir, err)
}
