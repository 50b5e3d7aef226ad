// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// foreground runs an agent with its files in .run until ctx ends, and prints
// what can be done with it.
func foreground(ctx context.Context, opt options, stdout, stderr io.Writer) error {
	p, err := settleForeground(ctx, opt, stdout)
	if err != nil {
		return err
	}
	agent, err := start(agentCommand(p, stderr), func(f func() error) error { return f() })
	if err != nil {
		return err
	}
	err = waitReady(ctx, agent, p.socket())
	switch {
	case ctx.Err() != nil:
		err = nil
	case err == nil:
		fmt.Fprint(stdout, p.suggest())
		select {
		case <-ctx.Done():
		case <-agent.done:
		}
	}
	return errors.Join(err, agent.halt(10*time.Second))
}

// settleForeground builds the programs into bin, unless they are there.
func settleForeground(ctx context.Context, opt options, stdout io.Writer) (p place, err error) {
	p = place{root: opt.root, bin: opt.bin, dir: opt.dir}
	if p.root == "" {
		if p.root, err = repository(ctx); err != nil {
			return p, err
		}
	}
	if p.bin == "" {
		p.bin = filepath.Join(p.root, "bin")
		fmt.Fprintf(stdout, "Building the programs into %s ...\n", shown(p.bin))
		if err := build(ctx, p.root, p.bin, ourPrograms); err != nil {
			return p, err
		}
	}
	if p.dir == "" {
		p.dir = filepath.Join(p.root, ".run")
	}
	if n := len(p.socket()); n > maxSocketPath {
		return p, fmt.Errorf("the agent's socket would be %s, which has %d bytes, and %d is the most: use a clone with a shorter path", p.socket(), n, maxSocketPath)
	}
	return p, nil
}

// suggest is what to try next. Lines that begin with $ are commands.
func (p place) suggest() string {
	return strings.NewReplacer("@BIN", shown(p.bin), "@CONFIG", shown(p.config()), "@SOCKET", shown(p.socket()), "@STATE", shown(p.state())).Replace(`
An agent runs here; its log is on this terminal. Ctrl-C stops it, and what it has
lent stays in @STATE for the next time. Try in another terminal:

  $ export CADASTRE_SOCKET=@SOCKET
  $ @BIN/cadastre status
  $ @BIN/cadastre leases -o wide
  $ @BIN/cadastre events
  $ @BIN/cadastre check
  $ @BIN/cadastre plan --config @CONFIG --node-id 1-3
  $ curl --unix-socket @SOCKET http://localhost/v1/leases

Ask for an address by hand, as a container runtime does, look at it, and give it back:

  $ export CNI_CONTAINERID=by-hand CNI_NETNS=/proc/self/ns/net CNI_IFNAME=eth0 CNI_PATH=@BIN
  $ export CONF='{"cniVersion": "1.1.0", "name": "try", "ipam": {"type": "cadastre-cni"}}'
  $ echo "$CONF" | CNI_COMMAND=ADD @BIN/cadastre-cni
  $ @BIN/cadastre leases
  $ echo "$CONF" | CNI_COMMAND=DEL @BIN/cadastre-cni

`)
}

// shown is a path as a person would write it here.
func shown(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(here, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}
