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
}

// packages are all there are, in the order of a run: ours and the limits, which
// are compared most closely, one after the other.
func packages() []pkg {
	return []pkg{
		{"limits", "test/peers/limits", "the limits"},
		{"ours", "test/peers/ours", "the index and the ledger"},
		{"loop", "test/bench", "the event loop"},
		{"cni", "test/peers/cni", "cadastre-cni and host-local"},
		{"cilium", "test/peers/cilium", "Cilium's ipallocator and cidralloc"},
		{"cilium115", "test/peers/cilium115", "the IPAM of Cilium's agent"},
		{"k8s", "test/peers/k8s", "Kubernetes' service bitmap and cidrset"},
		{"cidrset", "test/peers/cidrset", "the book of node CIDRs beside Kubernetes' cidrset"},
		{"moby", "test/peers/moby", "moby's defaultipam"},
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
