// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo shows what the project does on this machine, in network
// namespaces of its own, and checks everything that it shows. It needs Go and
// nothing else.
//
// It builds the programs, starts an agent on the embedded store, gives two pods
// an address through CNI's own bridge plugin, sends packets between them, kills
// the agent, starts it again, adds a third pod, deletes all and leaves nothing
// behind. It ends with 0 if everything was as it must be, with 1 (and the
// reason, and the end of the agent's log) if not or if it was interrupted, and
// with 2 for a wrong command line. The network of the machine is not touched.
//
// Where network namespaces cannot be made it says why in one line and does all
// but the packets: the addresses are then asked for from cadastre-cni itself.
//
// Example:
//
//	go run ./test/demo                    # as root, or in a user namespace
//	go run ./test/demo --namespaces=none  # without packets
//	go run ./test/demo run                # an agent in the foreground, in ./.run
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/cadastre/cadastre/test/netlab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opt, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "demo:", err)
		return 2
	}
	switch opt.verb {
	case "run":
		err = foreground(ctx, opt, stdout, stderr)
	case "probe":
		err = netlab.Try()
	case "inside":
		err = inside(ctx, opt, stdout)
	default:
		err = whole(ctx, opt, stdout)
	}
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(told)):
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: interrupted")
	default:
		fmt.Fprintln(stderr, "demo:", err)
	}
	return 1
}
