// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// promise is a row of docs/performance.md: a sentence, and the aim of the benchmarks that
// measures it.
type promise struct{ sentence, aim string }

func promises() []promise {
	const pair = "`cadastre-cni` ADD + DEL"
	return []promise{
		{
			"ADD and DEL as processes, durable, beside `host-local`, which never syncs; nothing else leased",
			pair + " beside `host-local`, nothing else leased",
		},
		{"the same with 1 000 other leases", pair + " beside `host-local`, 1 000 other leases"},
		{"the same, 50 processes at once", pair + " beside `host-local`, 50 processes at once, 1 000 other leases"},
		{"the same grows little from 0 to 1 000 leases", pair + ", flat up to 1 000 leases"},
		{
			"ADD with the pod's interface, dual stack, beside `bridge` with `host-local`",
			"main plugin: ADD beside `bridge` + `host-local`",
		},
		{"DEL, likewise", "main plugin: DEL, likewise"},
		{"30 ADDs at once, likewise", "main plugin: 30 ADDs at once, likewise"},
		{"an ADD grows little from 0 to 990 other pods", "main plugin: flat up to 1 000 pods on the node"},
		{
			"a killed agent has compared 250 pods with the kernel in 250 ms",
			"a killed agent has resynced 250 pods in under 250 ms",
		},
		{"a durable claim, in transactions of bbolt", "durable claim alone, in bbolt transactions"},
		{
			"100 pods at once on the agent's socket, each, beside one alone",
			"100 concurrent pods over the agent's socket, each, beside one",
		},
		{"50 000 leases load in half a second", "50 000 leases load in under half a second"},
		{"a lease with its key and pod takes at most 600 bytes", "heap of a lease with its key and pod, bytes"},
		{
			"the change of one other node costs the same with 100 and 10 000 nodes",
			"the change of one node, flat from 100 to 10 000 nodes",
		},
		{
			"the slowest ADD while 10 000 nodes join, beside 50 ms",
			"the slowest ADD while 10 000 nodes join, beside 50 ms",
		},
		{
			"the operator's round over 10 000 nodes takes a second",
			"a round of the NetResourceSet manager over 10 000 nodes in under a second",
		},
		{
			"any address of a /24 or /16, beside the cheapest code that could do it",
			"bare index, /24 and /16, lowest first, beside bitmap tree + mutex",
		},
		{
			"the address manager beside Cilium 1.15's agent",
			"address manager, host scope, any address, beside Cilium 1.15's agent",
		},
		{
			"addresses of a cloud's interfaces beside AWS VPC CNI's datastore",
			"interface datastore, no checkpoint, single addresses, beside AWS's",
		},
		{
			"the memory of such an address, beside AWS's",
			"interface datastore, heap of an assigned address, beside AWS's",
		},
		{"Docker's driver in process on a half-full /16, beside moby's", "Docker driver, half-full /16, beside moby's"},
		{"Docker's driver elsewhere, beside moby's", "Docker driver, addresses elsewhere, beside moby's"},
	}
}

// promiseTable returns the table of the promises with what the results say.
func promiseTable(r *results) (string, error) {
	var w strings.Builder
	w.WriteString(
		"<!-- written by test/peers/pictures from results/benchmarks.md (make generate): do not edit -->\n\n" +
			"| promise | at most | measured, at its worst point | beside | ratio | |\n|---|--:|--:|--:|--:|---|\n",
	)
	for _, p := range promises() {
		cells, err := r.row(benchmarks, "The aims", p.aim)
		if err != nil {
			return "", err
		}
		if len(cells) != 7 {
			return "", fmt.Errorf("read aim %q: the row has %d cells, want 7", p.aim, len(cells))
		}
		fmt.Fprintf(
			&w,
			"| %s | %s | %s | %s | %s | %s |\n",
			p.sentence,
			cells[1],
			cells[3],
			cells[4],
			cells[5],
			cells[6],
		)
	}
	return w.String() + "\n", nil
}
