// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// nodeSeries is a row of a benchmark of node CIDRs.
func nodeSeries(name, bench string, subs []string) row { return series(name, "cidrset", bench, subs) }

func nodeTable() table {
	subs := churns("8in24", "48in64")
	ours, theirs := nodeSeries(
		"Cadastre node CIDRs, with owners",
		"Cadastre",
		subs,
	), nodeSeries(
		"Kubernetes `cidrset`",
		"Kubernetes",
		subs,
	)
	huge := nodeSeries("Cadastre, /32 in /64", "Cadastre", churns("32in64"))
	huge.cells = append(make([]cell, len(huge.cells)), huge.cells...)
	return table{
		title: "The next node CIDR given and a random older one released, ns a pair",
		note: "65 536 blocks, in one process. Ours is behind a mutex and keeps who has each block; `cidrset` keeps no owners, and cannot have a range more than 16 bits larger than its blocks. " +
			"In the /32 all but 65 536 blocks are reserved.",
		head: churnHeads("/8 in /24", "/48 in /64"),
		rows: []row{ours, theirs, huge, of("Cadastre / Kubernetes", ours, theirs)},
	}
}

func nodeOtherTable() table {
	var subs []string
	for _, op := range []string{"full", "specific/50", "specific/99"} {
		subs = append(subs, "8in24/"+op, "48in64/"+op)
	}
	ours, theirs := nodeSeries(
		"Cadastre node CIDRs, with owners",
		"Cadastre",
		subs,
	), nodeSeries(
		"Kubernetes `cidrset`",
		"Kubernetes",
		subs,
	)
	return table{
		title: "No node CIDR is left, and a named one, ns",
		note: "\"full\" is a call that must fail; ours says how many there are and how many cool. \"named\" occupies a block that a node says it has, and releases it. The last column is what callers make of a " +
			"Node object before each call: the owner of its UID, or the network of its podCIDR.",
		head: []string{
			"full /8 in /24",
			"/48 in /64",
			"named 50 %",
			"/48 in /64",
			"named 99 %",
			"/48 in /64",
			"before a call",
		},
		rows: []row{
			ours.and(cell{at("cidrset", "TheOwner"), plain}), theirs.and(cell{at("cidrset", "TheNetwork"), plain}),
			of("Cadastre / Kubernetes", ours, theirs).and(cell{}),
		},
	}
}

func nodeAims() []aim {
	beside := func(subs ...string) []point {
		var ps []point
		for _, s := range subs {
			ps = append(ps, point{s, at("cidrset", "Cadastre/"+s), at("cidrset", "Kubernetes/"+s)})
		}
		return ps
	}
	part := func(v float64) string { return fmt.Sprintf("1/%.0f", 1/v) }
	return []aim{
		{"node CIDRs, owner and all, beside `cidrset`", 1, beside(churns("8in24", "48in64")...), duration, nil},
		{
			"a named node CIDR, beside `cidrset`",
			1,
			beside("8in24/specific/50", "8in24/specific/99", "48in64/specific/50", "48in64/specific/99"),
			duration,
			nil,
		},
		{
			"the last free node CIDR, beside `cidrset`",
			1. / 300,
			beside("8in24/churn/last", "48in64/churn/last"),
			duration,
			part,
		},
	}
}
