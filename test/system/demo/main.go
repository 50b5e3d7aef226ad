// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo shows what the project does on this machine, in network
// namespaces of its own, and checks everything that it shows. It needs Go and
// nothing else.
//
// It builds the programs, starts an agent on the embedded store, and gives two pods
// an address and an interface through cadastre-cni. It sends packets between them,
// kills the agent, starts it again, and adds a third pod. Then it deletes all and
// leaves nothing behind. It ends with 0 if everything was as it must be. If not, or
// if it was interrupted, it prints the reason and the end of the agent's log, and
// ends with 1. It ends with 2 for a wrong command line. The network of the machine
// is not touched.
//
// Where network namespaces cannot be made it says why in one line and does all
// but the packets: the addresses are then asked for from cadastre-cni itself.
//
// Example:
//
//	go run ./test/system/demo                    # as root, or in a user namespace
//	go run ./test/system/demo --namespaces=none  # without packets
//	go run ./test/system/demo run                # an agent in the foreground, in ./.run
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	harness := stage.Harness{
		Name:     "demo",
		Title:    title,
		Socket:   stage.SocketName,
		Scenario: runScenario,
		Usage:    "demo [flags]      shows everything and cleans up\n       demo [flags] run  starts an agent in the foreground",
		Verbs:    []string{"run"},
		Other:    foreground,
	}
	return harness.Run(ctx, args, stdout, stderr)
}

// title says what is to come.
func title(w stage.Way, why string) string {
	switch w {
	case stage.WayNone:
		return fmt.Sprintf("Cadastre's demo, without network namespaces (%s): all is done but sending packets.", why)
	case stage.WayUser:
		return "Cadastre's demo, in network namespaces of a user namespace: root is not needed."
	}
	return "Cadastre's demo, in network namespaces of its own."
}
