// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Command node is the end-to-end test with Kubernetes nodes: two nodes, each with a real
// kubelet, containerd and kube-proxy, of networks that a router separates. Their pods get
// addresses and links from cadastre-cni, which is the only CNI plugin beside loopback. The
// agents are the pods of the DaemonSet in k8s/, with the rights that they have there.
// Pods reach each other, Services and the outside, also while agents are killed or away.
// After each step the addresses of the pods are compared with the ledgers' leases and
// with the nodes' links and routes: each pod has one, and there are no others. The
// witnesses of a node, read in the agent's pod, see the same, and notice that the
// runtime's socket is gone. In the end k8s/uninstall removes all of it.
//
// All of it runs twice: with blocks that the agent derives from its node ID, and with
// podCIDRs that our operator gives. The operator is a process of the room, with
// the flags and the account of its Deployment; the cluster's state is in the API server.
//
// It needs root and some of Debian's packages, which it installs with apt-get
// where they are missing (they stay). It also needs the programs of test/e2e/kubernetes,
// which it builds into .cache/kube, or takes from where KUBEBUILDER_ASSETS says.
// All of it runs in network, mount and PID namespaces of its own, with a /run and
// a /var/lib of its own. It runs below control groups of its own, and cannot
// reach the settings of the kernel that kubelet changes. What is outside of the
// namespaces is removed in the end, but by SIGKILL. Where it cannot run it prints
// why in one line and ends with 0. Where something was not as it must be, it
// prints the reason and the logs' ends, and ends with 1.
//
// Example:
//
//	go run ./test/e2e/node
package main

import (
	"context"
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
const firstLine = "End to end with kubelet and containerd: this installs Debian's containerd, containernetworking-plugins, busybox-static, iptables and\n" +
	"conntrack (apt-get install) where they are missing, builds Kubernetes' programs into .cache/kube, and leaves nothing else behind."

// Modes are told one after the other, each by this program in a room; they are
// the verbs that it is started with there.
const (
	derived  = "derived"  // the agent derives its block from its node ID
	external = "external" // Node.spec.podCIDRs, which our operator gives
)

// run is the whole program; it returns the exit code.
func run(ctx context.Context, m machine, args []string, stdout, stderr io.Writer) int {
	harness := stage.Harness{
		Name:     "e2e-node",
		Usage:    "node [flags]  runs the end-to-end test and cleans up",
		Verbs:    []string{derived, external, holderVerb},
		Socket:   external + "/node-1/agent/" + stage.SocketName,
		Title:    func(stage.Way, string) string { return "Using containerd and kubelet." },
		Scenario: runScenario,
		Other: func(ctx context.Context, opt stage.Options, stdout, _ io.Writer) error {
			if opt.Verb == holderVerb {
				return hold(ctx, opt.Dir)
			}
			return runInRoom(ctx, opt, stdout)
		},
	}
	opt, err := harness.Parse(args, io.Discard)
	if err != nil || opt.Verb != "" { // which Run says
		return harness.Run(ctx, args, stdout, stderr)
	}
	fmt.Fprintln(stdout, firstLine)
	if opt.Way != stage.WayAuto && opt.Way != stage.WayRoot {
		fmt.Fprintf(
			stderr,
			"e2e-node: --namespaces=%s: only root can do this: leave it out, or write %s\n",
			opt.Way,
			stage.WayRoot,
		)
		return 2
	}
	if err := m.need(ctx, stdout); err != nil {
		if ctx.Err() != nil {
			fmt.Fprintln(stderr, "e2e-node: interrupted")
			return 1
		}
		fmt.Fprintf(stdout, "NOT RUN: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return 0
	}
	return harness.Run(ctx, slices.Concat([]string{"--namespaces=root"}, args), stdout, stderr)
}
