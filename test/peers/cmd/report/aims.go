// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

// aim is something that we want to hold: at each of its points ours is at most
// most times the limit.
type aim struct {
	name   string
	most   float64
	points []point
	format format // of both numbers
	as     format // of the ratio and of most; nil: times
}

type point struct {
	where       string
	ours, limit expr
}

// verdict is an aim's point that comes closest to failing, or fails most.
type verdict struct {
	point
	ours, limit, ratio float64
	known              bool // there is at least one point with results
}

func (a aim) judge(r *results) verdict {
	var worst verdict
	for _, p := range a.points {
		ours, ok := p.ours(r)
		limit, ok2 := p.limit(r)
		if !ok || !ok2 {
			continue
		}
		if x := ours / limit; !worst.known || x > worst.ratio {
			worst = verdict{p, ours, limit, x, true}
		}
	}
	return worst
}

// writeAims writes the table of the verdicts.
func writeAims(w *strings.Builder, r *results) {
	w.WriteString("\n### The aims\n\nEach line shows the point that is closest to the aim, or farthest beyond it.\n\n" +
		"| aim | at most | worst at | ours | measured against | ratio | |\n|---|--:|---|--:|--:|--:|---|\n")
	for _, a := range aims() {
		writeAim(w, a, r)
	}
}

func writeAim(w *strings.Builder, a aim, r *results) {
	v := a.judge(r)
	if !v.known {
		fmt.Fprintf(w, "| %s | | | | | | not measured |\n", a.name)
		return
	}
	as, met := a.as, "met"
	if as == nil {
		as = times
	}
	if v.ratio > a.most {
		met = "**not met**"
	}
	fmt.Fprintf(
		w,
		"| %s | %s | %s | %s | %s | %s | %s |\n",
		a.name,
		as(a.most),
		v.where,
		a.format(v.ours),
		a.format(v.limit),
		as(v.ratio),
		met,
	)
}

// aims are the aims that docs/results/benchmarks.md states.
func aims() []aim {
	return slices.Concat(
		indexAims(),
		nodeAims(),
		managerAims(),
		interfaceAims(),
		durableAims(),
		processAims(),
		mainAims(),
		updateAims(),
		dockerAims(),
	)
}

// against are the points of some subs of a benchmark of ours and what limit
// says for each.
func against(bench string, subs []string, limit func(sub string) expr) []point {
	var ps []point
	for _, s := range subs {
		ps = append(ps, point{describe(s), at("ours", bench+"/"+s), limit(s)})
	}
	return ps
}

func indexAims() []aim {
	same := func(bench string) func(string) expr {
		return func(sub string) expr { return at("limits", bench+"/"+sub) }
	}
	wideOf := func(order string) func(string) expr {
		return func(sub string) expr { return wideLimit(order, sub) }
	}
	small, wide, prefixes := churns("24", "16"), churns("64", "64spread"), churns("8in24", "8in27")
	return []aim{
		{
			"bare index, /24 and /16, lowest first, beside bitmap tree + mutex",
			2,
			against("Index/lowest", small, same("Locked")),
			duration,
			nil,
		},
		{
			"bare index, /24 and /16, next fit, beside the same with next fit",
			2,
			against("Index/next", small, same("NextFit")),
			duration,
			nil,
		},
		{"bare index, /64, lowest first", 4, against("Index/lowest", wide, wideOf("lowest")), duration, nil},
		{"bare index, /64, next fit", 4, against("Index/next", wide, wideOf("next")), duration, nil},
		{"next prefix, lowest first", 4, against("Prefix/lowest", prefixes, wideOf("lowest")), duration, nil},
		{"next prefix, next fit", 4, against("Prefix/next", prefixes, wideOf("next")), duration, nil},
		{"no allocation once warm, index and prefixes (allocations a pair)", 0, allocationPoints(), plain, plain},
		{
			"full lease key recorded, /24 and /16, beside tree + mutex + two-way index",
			6,
			against("Ledger", small, same("Owned")),
			duration,
			nil,
		},
	}
}

func allocationPoints() []point {
	var ps []point
	add := func(bench string, subs []string) {
		for _, s := range subs {
			ps = append(ps, point{bench + ", " + describe(s), at("ours", bench+"/"+s, "allocs/op"), constant(1)})
		}
	}
	for _, order := range []string{"lowest", "next"} {
		add("Index/"+order, churns("24", "16", "64", "64spread"))
		add("Prefix/"+order, churns("8in24", "8in27"))
	}
	return ps
}

func durableAims() []aim {
	unit := func(n, u string) expr { return at("ours", "Durable/"+n, u) }
	var alone []point
	for _, n := range []string{"0", "1000", "50000"} {
		alone = append(alone, point{n + " leases", unit(n, "claim-p50-ns"), unit(n, "bbolt-put-p50-ns")})
	}
	inSyncs := func(n string) expr { return ratio(unit(n, "claim-p50-ns"), unit(n, "fdatasync-p50-ns")) }
	single := mean(unit("1000", "claim-ns"), unit("1000", "release-ns"))
	return []aim{
		{"durable claim alone, in bbolt transactions", 1.3, alone, duration, nil},
		{
			"durable claim alone, flat in the number of leases (in fdatasyncs of the same minute)",
			1.25,
			[]point{
				{
					"1000 / 0 leases",
					inSyncs("1000"),
					inSyncs("0"),
				},
				{"50000 / 0 leases", inSyncs("50000"), inSyncs("0")},
			},
			times,
			nil,
		},
		{
			"100 concurrent callers of the ledger, each, beside one",
			.1,
			[]point{{"1000 leases", at("ours", "Callers/ledger"), single}},
			duration,
			nil,
		},
		{"100 concurrent pods through the event loop, each, beside one", .1, []point{
			{"ADD + DEL", at("loop", "Pod/loop-100/disk"), at("loop", "Pod/loop/disk")}}, duration, nil},
		{"100 concurrent pods over the agent's socket, each, beside one", .25, []point{
			{"ADD + DEL", at("loop", "Socket/100"), at("loop", "Socket/1")}}, duration, nil},
	}
}

func processAims() []aim {
	p50 := func(n, who string) expr { return at("cni", "Process/"+n, who+"-p50-ns") }
	burst := func(n, who string) expr { return at("cni", "ProcessBurst/"+n, who+"-p50-ns") }
	return []aim{
		{
			"`cadastre-cni` ADD + DEL beside `host-local`, nothing else leased",
			1,
			[]point{{"0 leases", p50("0", "cadastre-cni"), p50("0", "host-local")}},
			duration,
			nil,
		},
		{
			"`cadastre-cni` ADD + DEL beside `host-local`, 1 000 other leases",
			.25,
			[]point{{"1000 leases", p50("1000", "cadastre-cni"), p50("1000", "host-local")}},
			duration,
			nil,
		},
		{
			"`cadastre-cni` ADD + DEL beside `host-local`, 50 processes at once, 1 000 other leases",
			.35,
			[]point{{"1000 leases", burst("1000", "cadastre-cni"), burst("1000", "host-local")}},
			duration,
			nil,
		},
		{
			"`cadastre-cni` ADD + DEL, flat up to 1 000 leases",
			1.25,
			[]point{
				{
					"100 / 0 leases",
					p50("100", "cadastre-cni"),
					p50("0", "cadastre-cni"),
				},
				{"1000 / 0 leases", p50("1000", "cadastre-cni"), p50("0", "cadastre-cni")},
			},
			duration,
			nil,
		},
		{
			"50 000 leases load in under half a second",
			1,
			[]point{{"50000 leases", at("ours", "Start/50000"), constant(500e6)}},
			duration,
			nil,
		},
		{
			"heap of a lease with its key and pod, bytes",
			1,
			[]point{
				{
					"claimed",
					at("ours", "LedgerMemory/claimed", "heapB/item"),
					constant(600),
				},
				{"loaded", at("ours", "LedgerMemory/loaded", "heapB/item"), constant(600)},
			},
			plain,
			nil,
		},
	}
}
