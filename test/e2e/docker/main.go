// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command docker is the end-to-end test of the Docker driver, with a real
// engine, a real agent and real containers. After each step it compares the
// addresses inside the containers with what the engine says and with the
// ledger's leases. Nothing may have leaked, and no address may be held twice.
//
// It needs root and Debian's docker.io, which it installs with apt-get where
// there is none (that stays). Engine and agent run in network, mount and PID
// namespaces of their own with a /run of their own. So neither the machine's
// engine nor its network, iptables, /run and cgroups see anything of them. The
// engine's data, its image and its control groups are removed in the end. Where
// it cannot run it prints why in one line and ends with 0. Where something was
// not as it must be, it prints the reason and the logs' ends, and ends with 1.
//
// Example:
//
//	go run ./test/e2e/docker
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, thisMachine(), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// firstLine says what is done to the machine.
const firstLine = "End to end with Docker: this installs Debian's docker.io (apt-get install) where there is no dockerd, and nothing else."

// run is the whole program; it returns the exit code.
func run(ctx context.Context, m machine, args []string, stdout, stderr io.Writer) int {
	var dockerd string
	harness := stage.Harness{
		Name:   "e2e-docker",
		Usage:  "docker [flags]  runs the end-to-end test and cleans up",
		Verbs:  []string{roomVerb},
		Socket: "run/docker/plugins/cadastre.sock",
		Title:  func(stage.Way, string) string { return "Using " + dockerd + "." },
		Scenario: func(ctx context.Context, p stage.Place, _ stage.Way, s *stage.Scenario) error {
			return runScenario(ctx, p, s, dockerd)
		},
		Other: func(_ context.Context, opt stage.Options, stdout, _ io.Writer) error {
			return serveRoom(opt.Dir, os.Stdin, stdout)
		},
	}
	opt, err := harness.Parse(args, io.Discard)
	if err != nil || opt.Verb != "" { // which Run says
		return harness.Run(ctx, args, stdout, stderr)
	}
	fmt.Fprintln(stdout, firstLine)
	if dockerd, err = m.need(ctx, stdout); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(stderr, "e2e-docker: interrupted")
			return 1
		}
		fmt.Fprintf(stdout, "NOT RUN: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 0
	}
	if opt.Way != stage.WayAuto && opt.Way != stage.WayRoot {
		fmt.Fprintln(stderr, "e2e-docker:", errors.New("--namespaces: only root can do this"))
		return 2
	}
	return harness.Run(ctx, slices.Concat([]string{"--namespaces=root"}, args), stdout, stderr)
}
