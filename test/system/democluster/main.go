// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command democluster shows what the project does on several nodes over one
// etcd, in network namespaces of its own, and checks everything that it shows.
// It needs Go and nothing else.
//
// Three agents start at the same time, each on a node with a network namespace.
// They agree on node IDs and subnets through a real etcd, which is this program
// started again. Pods reach each other across the nodes. Then etcd is killed and
// comes back. It is wiped while all agents are dead, and a newcomer is there
// before most of them. Pools change under live pods. A node leaves for good. In
// the end etcd is wiped once more, with no node left to tell a newcomer which ID
// is not free. After each step the addresses and subnets are compared with what
// they were, and packets are sent again; some pods talk all the time, and may not
// lose one packet.
//
// It ends with 0 if everything was as it must be. If not, or if it was
// interrupted, it prints the reason and the ends of the logs, and ends with 1.
// It ends with 2 for a wrong command line. Nothing is left behind, and the
// network of the machine is not touched.
//
// Where network namespaces cannot be made it says why in one line and does all
// but the packets. Agents and etcd then run beside each other, without routes,
// and addresses are asked for from cadastre-cni itself.
//
// Example:
//
//	go run ./test/system/democluster                    # as root, or in a user namespace
//	go run ./test/system/democluster --namespaces=none  # without packets
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
	if len(args) > 0 && args[0] == etcdVerb {
		if err := serveEtcd(ctx, args[1:], stdout); err != nil {
			fmt.Fprintln(stderr, "democluster: etcd:", err)
			return 1
		}
		return 0
	}
	harness := stage.Harness{
		Name: "democluster", Usage: "democluster [flags]  shows everything and cleans up",
		Title: title, Socket: "node-9/" + stage.SocketName, Scenario: runScenario,
	}
	return harness.Run(ctx, args, stdout, stderr)
}

// title says what is to come.
func title(w stage.Way, why string) string {
	switch w {
	case stage.WayNone:
		return fmt.Sprintf(
			"Cadastre's cluster demo, without network namespaces (%s): all is done but routes and packets.",
			why,
		)
	case stage.WayUser:
		return "Cadastre's cluster demo, in network namespaces of a user namespace: root is not needed."
	}
	return "Cadastre's cluster demo, in network namespaces of its own."
}
