// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// Both interface datastores are measured in one process.
const interfacesPkg = "awsdatastore"

func interfaceModes() []string { return []string{"secondary", "prefix"} }

func interfaceSizes() []string { return []string{"30", "250", "1000", "16000"} }

// interfaceLevels are fullnesses in percent; at 99 one address is free.
func interfaceLevels() []string { return []string{"0", "50", "99"} }

// interfaceStores are 30/0, 30/50, ...
func interfaceStores() []string {
	var all []string
	for _, n := range interfaceSizes() {
		for _, l := range interfaceLevels() {
			all = append(all, n+"/"+l)
		}
	}
	return all
}

func interfaceHeads() []string {
	var all []string
	for _, n := range []string{"30", "250", "1 000", "16 000"} {
		all = append(all, n+": 0 %", "50 %", "one left")
	}
	return all
}

// of a benchmark, what one of the two took, a pair.
func interfaceTime(bench, who string) expr { return at(interfacesPkg, bench, who+"-p50-ns") }

// interfaceRows are both datastores and their ratio.
func interfaceRows(name, bench string) []row {
	ours, theirs := row{name: "Cadastre, " + name}, row{name: "AWS, " + name}
	for _, s := range interfaceStores() {
		ours.cells = append(ours.cells, micro(interfaceTime(bench+"/"+s, "cadastre")))
		theirs.cells = append(theirs.cells, micro(interfaceTime(bench+"/"+s, "aws")))
	}
	return []row{ours, theirs, of("Cadastre / AWS", ours, theirs)}
}

func interfacesTable() table {
	t := table{
		title: "The interface datastore without a checkpoint: an address assigned and the oldest unassigned, µs a pair",
		note: "So many addresses of interfaces with 50 each, or in prefixes of 16 of one interface (30 are 32 then, 250 are 256, 1 000 are 1 008). The cool-down is 0. Both take turns in one process; medians. " +
			"The free addresses are at random places.",
		head: interfaceHeads(),
	}
	for _, m := range interfaceModes() {
		t.rows = append(t.rows, interfaceRows(m, "Null/"+m)...)
	}
	return t
}

func interfacesFileTable() table {
	t := table{
		title: "The same with a JSON file that is written at each change, µs a pair",
		note:  "Two writes of the whole file a pair, with an fsync each, on the disk under test and on a tmpfs, where the sync costs nothing. With 16 000 addresses a run has a few pairs.",
		head:  interfaceHeads(),
	}
	for _, where := range []string{"disk", "tmpfs"} {
		for _, m := range interfaceModes() {
			t.rows = append(t.rows, interfaceRows(m+", "+where, "File/"+where+"/"+m)...)
		}
	}
	return t
}

// delta and bare are a pair of ours that writes what has changed, and the same
// as two transactions of a bare bbolt file with as many records.
func delta(store, size string) expr { return interfaceTime("Delta/"+store, "delta-"+size) }
func bare(store, size string) expr  { return interfaceTime("Delta/"+store, "bare-"+size) }

func interfacesDeltaTable() table {
	t := table{
		title: "The same, writing what has changed to bbolt, µs a pair",
		note:  "All sizes take turns, and beside each two transactions of a bare bbolt file with as many records. AWS's has nothing of the kind.",
		head: []string{"30", "250", "1 000", "16 000", "bare: 30", "250", "1 000", "16 000",
			"in transactions: 30", "250", "1 000", "16 000", "worst / best"},
	}
	for _, s := range interfaceDeltas() {
		var pairs, two, count []cell
		for _, n := range interfaceSizes() {
			pairs, two = append(pairs, micro(delta(s, n))), append(two, micro(bare(s, n)))
			count = append(count, cell{ratio(delta(s, n), half(bare(s, n))), bold(plain)})
		}
		r := row{s + " %", pairs}.and(two...).and(count...)
		t.rows = append(t.rows, r.and(cell{ratio(deltaOf(most, s), deltaOf(least, s)), bold(times)}))
	}
	return t
}

// interfaceDeltas are secondary/0, secondary/50, ...
func interfaceDeltas() []string {
	var all []string
	for _, m := range interfaceModes() {
		for _, l := range interfaceLevels() {
			all = append(all, m+"/"+l)
		}
	}
	return all
}

// deltaOf is the most or the least of all sizes.
func deltaOf(f func(expr, ...expr) expr, store string) expr {
	var all []expr
	for _, n := range interfaceSizes() {
		all = append(all, delta(store, n))
	}
	return f(all[0], all[1:]...)
}

// restored returns the measured sizes; the published store takes minutes for 16 000 single
// addresses.
func restored() []struct{ name, sub string } {
	return []struct{ name, sub string }{
		{
			"1 000 single addresses",
			"secondary/1000",
		},
		{"1 000 in prefixes", "prefix/1000"},
		{"16 000 in prefixes", "prefix/16000"},
	}
}

func interfacesRestoreTable() table {
	t := table{
		title: "Assignments are read again after a restart, ms",
		note: "The interface datastores' ReadBackingStore, with the interfaces and addresses attached before the clock runs; AWS's takes minutes for 16 000 single addresses. " +
			"The address manager opens its database, its ledger and itself; a tenth of its leases have timers.",
		head: []string{"Cadastre, JSON file", "Cadastre, bbolt", "AWS, JSON file", "JSON: Cadastre / AWS"},
	}
	for _, x := range restored() {
		from := func(who string) expr { return interfaceTime("Restore/"+x.sub, who) }
		t.rows = append(
			t.rows,
			row{
				x.name,
				[]cell{
					milli(from("cadastre")),
					milli(from("delta")),
					milli(from("aws")),
					{ratio(from("cadastre"), from("aws")), bold(times)},
				},
			},
		)
	}
	alone := func(who string) cell { return milli(interfaceTime("Restore/secondary-ours/16000", who)) }
	t.rows = append(t.rows, row{"16 000 single addresses", []cell{alone("cadastre"), alone("delta"), {}, {}}},
		row{"address manager, 16 000 leases", []cell{{}, milli(at("ours", "ManagerRestore/16000")), {}, {}}})
	return t
}

// interfaceHeap returns the memory of an assigned address.
func interfaceHeap(mode, who string) expr {
	return at(interfacesPkg, fmt.Sprintf("Memory/%s/%s", mode, who), "heapB/item")
}

func interfacesMemoryTable() table {
	line := func(name, who string) row {
		r := row{name: name}
		for _, m := range interfaceModes() {
			r.cells = append(r.cells, cell{interfaceHeap(m, who), plain})
		}
		return r
	}
	ours, theirs := line("Cadastre, with a JSON file", "cadastre"), line("AWS", "aws")
	return table{
		title: "Live heap of the interface datastore, bytes an assigned address",
		note:  "4 096 addresses, all assigned: an address's part of interfaces and blocks, the names of its pod, and what is kept to write the checkpoint. AWS's labels of metrics are not in it.",
		head:  []string{"secondary", "prefix"},
		rows: []row{
			ours,
			line("Cadastre, without a checkpoint", "cadastre-null"),
			theirs,
			of("Cadastre / AWS", ours, theirs),
		},
	}
}

// interfacePoints are all stores of a benchmark and a mode, ours beside AWS's.
func interfacePoints(bench, mode string) (ps []point) {
	for _, s := range interfaceStores() {
		sub := bench + "/" + mode + "/" + s
		ps = append(ps, point{mode + "/" + s + " %", interfaceTime(sub, "cadastre"), interfaceTime(sub, "aws")})
	}
	return ps
}

func interfaceAims() []aim {
	file := func(where string) []point {
		return append(interfacePoints("File/"+where, "secondary"), interfacePoints("File/"+where, "prefix")...)
	}
	var transactions, flat, restores, heap []point
	for _, s := range interfaceDeltas() {
		for _, n := range interfaceSizes() {
			transactions = append(transactions, point{s + " % of " + n, delta(s, n), half(bare(s, n))})
		}
		flat = append(flat, point{s + " %", deltaOf(most, s), deltaOf(least, s)})
	}
	for _, x := range restored() {
		restores = append(
			restores,
			point{x.name, interfaceTime("Restore/"+x.sub, "cadastre"), interfaceTime("Restore/"+x.sub, "aws")},
		)
	}
	for _, m := range interfaceModes() {
		heap = append(heap, point{m, interfaceHeap(m, "cadastre"), interfaceHeap(m, "aws")})
	}
	return []aim{
		{
			"interface datastore, no checkpoint, single addresses, beside AWS's",
			.2,
			interfacePoints("Null", "secondary"),
			duration,
			nil,
		},
		{
			"interface datastore, no checkpoint, prefixes, beside AWS's",
			.2,
			interfacePoints("Null", "prefix"),
			duration,
			nil,
		},
		{"interface datastore, JSON file on the disk, beside AWS's", 1, file("disk"), duration, nil},
		{"interface datastore, JSON file on a tmpfs, beside AWS's", 1, file("tmpfs"), duration, nil},
		{"interface datastore, changes only: a pair in bbolt transactions", 2.6, transactions, duration, nil},
		{
			"interface datastore, changes only: flat from 30 to 16 000 addresses (worst / best)",
			1.25,
			flat,
			duration,
			nil,
		},
		{"interface datastore, restored from a JSON file, beside AWS's", 1, restores, duration, nil},
		{"interface datastore, heap of an assigned address, beside AWS's", 1, heap, plain, nil},
	}
}
