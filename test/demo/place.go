// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// place is where an agent's files are.
type place struct {
	root string // the repository
	bin  string // the programs
	dir  string // everything that is written
}

func (p place) program(name string) string { return filepath.Join(p.bin, name) }
func (p place) config() string             { return filepath.Join(p.root, "conf", "contiv.conf") }
func (p place) state() string              { return filepath.Join(p.dir, "state") }
func (p place) run() string                { return filepath.Join(p.dir, "run") }
func (p place) socket() string             { return filepath.Join(p.run(), "agent.sock") }
func (p place) log() string                { return filepath.Join(p.dir, "agent.log") }

// maxSocketPath is what fits in a socket's address, with its final 0.
const maxSocketPath = 107

// newDir makes a directory whose name leaves room for the agent's socket.
func newDir() (string, error) {
	base := os.TempDir()
	if len(place{dir: base}.socket())+len("/cadastre-demo-1234567890") > maxSocketPath {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "cadastre-demo-")
	if err != nil {
		return "", fmt.Errorf("make a directory for the demo: %w", err)
	}
	return dir, nil
}
