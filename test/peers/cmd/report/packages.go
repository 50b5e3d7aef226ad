// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// pkg is a package of benchmarks: a folder of the main module, or a module of
// its own below test/peers.
type pkg struct {
	name string
	dir  string // from the root of the repository
	what string // for the report, where it could not be measured
	// share is which part of the time each benchmark runs, 1/share; 0: all of it.
	// What has many rows, each measured in turns, is settled sooner.
	share int
	// bench selects among the benchmarks of a package that has others; "" selects all.
	bench string
}

// packages are all there are, in the order of a run: ours and what it is
// compared with most closely, one after the other.
func packages() []pkg {
	return []pkg{
		{name: "limits", dir: "test/peers/limits", what: "the limits"},
		{name: "ours", dir: "test/peers/ours", what: "the index, the ledger and the address manager"},
		{name: "cilium115", dir: "test/peers/cilium115", what: "the IPAM of Cilium's agent"},
		{name: "awsdatastore", dir: "test/peers/awsdatastore", what: "the interface datastore beside AWS's", share: 3},
		{name: "netresource", dir: "operator/netresource", what: "the NetResourceSet manager"},
		{name: "loop", dir: "test/peers/bench", what: "the event loop"},
		{name: "cni", dir: "test/peers/cni", what: "cadastre-cni beside other plugins"},
		{name: "linux", dir: "southbound/linux", what: "the transports", bench: "Throughput"},
		{name: "cilium", dir: "test/peers/cilium", what: "Cilium's ipallocator and cidralloc"},
		{name: "k8s", dir: "test/peers/k8s", what: "Kubernetes' service bitmap and cidrset"},
		{name: "cidrset", dir: "test/peers/cidrset", what: "the book of node CIDRs beside Kubernetes' cidrset"},
		{name: "moby", dir: "test/peers/moby", what: "moby's defaultipam"},
	}
}

// choose are the packages of these names, all where there is none.
func choose(chosen []string) ([]pkg, error) {
	if len(chosen) == 0 {
		return packages(), nil
	}
	var ps []pkg
next:
	for _, name := range chosen {
		for _, p := range packages() {
			if p.name == name {
				ps = append(ps, p)
				continue next
			}
		}
		return nil, fmt.Errorf("package %q is none of %s", name, names(packages()))
	}
	return ps, nil
}

func names(ps []pkg) string {
	var ns []string
	for _, p := range ps {
		ns = append(ns, p.name)
	}
	return strings.Join(ns, ", ")
}
