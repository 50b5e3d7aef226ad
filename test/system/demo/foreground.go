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

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// foreground runs an agent with its files in .run until ctx ends, and prints
// what can be done with it.
func foreground(ctx context.Context, opt stage.Options, stdout, stderr io.Writer) error {
	a, err := prepareForeground(ctx, opt, stdout)
	if err != nil {
		return err
	}
	agent, err := stage.Start(a.Command(stderr), func(f func() error) error { return f() })
	if err != nil {
		return err
	}
	err = a.Await(ctx, agent)
	switch {
	case ctx.Err() != nil:
		err = nil
	case err == nil:
		fmt.Fprint(stdout, suggest(a))
		select {
		case <-ctx.Done():
		case <-agent.Done():
		}
	}
	return errors.Join(err, agent.Halt(10*time.Second))
}

// prepareForeground builds the programs into bin, unless they are there.
func prepareForeground(ctx context.Context, opt stage.Options, stdout io.Writer) (a stage.Agent, err error) {
	p := stage.Place{Root: opt.Root, Bin: opt.Bin, Dir: opt.Dir}
	if p.Root == "" {
		if p.Root, err = stage.Repository(ctx); err != nil {
			return a, err
		}
	}
	if p.Bin == "" {
		p.Bin = filepath.Join(p.Root, "bin")
		fmt.Fprintf(stdout, "Building the programs into %s ...\n", shown(p.Bin))
		if err := stage.Build(ctx, p.Root, p.Bin, stage.OurPrograms); err != nil {
			return a, err
		}
	}
	if p.Dir == "" {
		p.Dir = filepath.Join(p.Root, ".run")
	}
	a = stage.Agent{Place: p, Config: filepath.Join(p.Root, "conf", "contiv.conf"), Node: "demo-node"}
	if n := len(a.Socket()); n > stage.MaxSocketPath {
		return a, fmt.Errorf(
			"the agent's socket would be %s, which has %d bytes, and %d is the most: use a clone with a shorter path",
			a.Socket(),
			n,
			stage.MaxSocketPath,
		)
	}
	return a, nil
}

// suggest returns the commands to try next. Lines that begin with $ are commands.
func suggest(a stage.Agent) string {
	return strings.NewReplacer(
		"@BIN",
		shown(a.Bin),
		"@CONFIG",
		shown(a.Config),
		"@SOCKET",
		shown(a.Socket()),
		"@STATE",
		shown(a.State()),
	).Replace(
		`
An agent runs here; its log is on this terminal. Ctrl-C stops it, and what it has
allocated stays in @STATE for the next time. Try in another terminal:

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

`,
	)
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
