// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// tables are all tables of the report, in order.
func tables() []table {
	return []table{
		indexTable(),
		wideTable(),
		prefixTable(),
		nodeTable(),
		nodeOtherTable(),
		ownerTable(),
		otherOpsTable(),
		managerTable(),
		managerOtherTable(),
		parallelTable(),
		memoryTable(),
		durableTable(),
		callersTable(),
		podTable(),
		socketTable(),
		updatesTable(),
		joinsTable(),
		processTable(),
		mainTable(),
		transportTable(),
		killedTable(),
		startTable(),
		interfacesTable(),
		interfacesFileTable(),
		interfacesDeltaTable(),
		interfacesRestoreTable(),
		interfacesMemoryTable(),
		roundTable(),
		dockerTable(),
		dockerOtherTable(),
		dockerPoolTable(),
		dockerSocketTable(),
	}
}

// levels are the fullnesses of a churn, as workload names them.
func levels() []string { return []string{"0", "50", "99", "last"} }

// churns are the churns of some sizes: 24/churn/0, 24/churn/50, ...
func churns(sizes ...string) []string {
	var all []string
	for _, s := range sizes {
		for _, l := range levels() {
			all = append(all, s+"/churn/"+l)
		}
	}
	return all
}

func churnHeads(sizes ...string) []string {
	var all []string
	for _, s := range sizes {
		all = append(all, s+" 0 %", "50 %", "99 %", "one left")
	}
	return all
}

// describe says for people what something is of: 64spread/churn/last is
// "/64 spread, one left", 16/fill is "/16, fill".
func describe(sub string) string {
	size, level, churn := strings.Cut(sub, "/churn/")
	if !churn {
		size, level, _ = strings.Cut(sub, "/")
	}
	size = "/" + strings.Replace(strings.Replace(size, "8in", "8 in /", 1), "64s", "64 s", 1)
	switch {
	case level == "last":
		return size + ", one left"
	case level == "specific/50":
		return size + ", named"
	case !churn:
		return size + ", " + level
	}
	return size + ", " + level + " %"
}

// series is a row of one benchmark: a cell for each of subs, in ns.
func series(name, pkg, bench string, subs []string) row {
	r := row{name: name}
	for _, s := range subs {
		r.cells = append(r.cells, cell{at(pkg, bench+"/"+s), plain})
	}
	return r
}

// of is a row of the ratios of two rows.
func of(name string, x, y row) row {
	r := row{name: "**" + name + "**"}
	for i := range x.cells {
		r.cells = append(r.cells, cell{ratio(x.cells[i].expr, y.cells[i].expr), bold(times)})
	}
	return r
}

// and adds a cell to a row.
func (r row) and(c ...cell) row {
	return row{r.name, append(r.cells[:len(r.cells):len(r.cells)], c...)}
}

// without leaves cells out that are of something that is not offered.
func (r row) without(columns ...int) row {
	for _, c := range columns {
		r.cells[c] = cell{}
	}
	return r
}

// allocs is the cell of a benchmark's allocations.
func allocs(pkg, bench string) cell { return cell{at(pkg, bench, "allocs/op"), plain} }

func indexTable() table {
	subs, at50 := churns("24", "16"), "/16/churn/50"
	lowest, next := series(
		"Cadastre index, lowest first",
		"ours",
		"Index/lowest",
		subs,
	), series(
		"Cadastre index, next fit",
		"ours",
		"Index/next",
		subs,
	)
	locked, nextFit := series(
		"*limit: bitmap tree, mutex*",
		"limits",
		"Locked",
		subs,
	), series(
		"*limit: the same, next fit*",
		"limits",
		"NextFit",
		subs,
	)
	tree, cilium := series(
		"*limit: bitmap tree, no lock*",
		"limits",
		"Tree",
		subs,
	), series(
		"Cilium `ipallocator`",
		"cilium",
		"IPAllocator",
		subs,
	)
	return table{
		title: "Any address taken and a random older one given back, ns a pair",
		note: "No owner is recorded here. A pool is held at a fullness with its free addresses at random places; \"one left\" has one single free address. " +
			"The last column is allocations a pair, of a /16 at 50 %.",
		head: append(churnHeads("/24", "/16"), "allocs"),
		rows: []row{
			lowest.and(allocs("ours", "Index/lowest"+at50)), next.and(allocs("ours", "Index/next"+at50)),
			tree.and(allocs("limits", "Tree"+at50)),
			locked.and(allocs("limits", "Locked"+at50)), nextFit.and(allocs("limits", "NextFit"+at50)),
			cilium.and(allocs("cilium", "IPAllocator"+at50)),
			series("Kubernetes service bitmap", "k8s", "ServiceBitmap", subs).and(allocs("k8s", "ServiceBitmap"+at50)),
			series("moby, first free", "moby", "DefaultIPAM/first", subs).and(allocs("moby", "DefaultIPAM/first"+at50)),
			series("moby, serial", "moby", "DefaultIPAM/serial", subs).and(allocs("moby", "DefaultIPAM/serial"+at50)),
			of("lowest first / limit with mutex", lowest, locked), of("next fit / its limit with mutex", next, nextFit),
			of("lowest first / limit without lock", lowest, tree), of("lowest first / Cilium", lowest, cilium),
		},
	}
}

// wideLimit is the limit of something larger than a /16; that of addresses
// that are spread is the same as of those that are not.
func wideLimit(order, sub string) expr {
	return at("limits", "Wide/"+order+"/"+strings.Replace(sub, "64spread", "64", 1))
}

func wideLimits(name, order string, subs []string) row {
	r := row{name: name}
	for _, s := range subs {
		r.cells = append(r.cells, cell{wideLimit(order, s), plain})
	}
	return r
}

func wideTable() table {
	subs := churns("64", "64spread")
	lowest, next := series(
		"Cadastre index, lowest first",
		"ours",
		"Index/lowest",
		subs,
	), series(
		"Cadastre index, next fit",
		"ours",
		"Index/next",
		subs,
	)
	locked, nextFit := wideLimits(
		"*limit: bitmap tree of 65 536, mutex*",
		"lowest",
		subs,
	), wideLimits(
		"*limit: the same, next fit*",
		"next",
		subs,
	)
	return table{
		title: "The same in an IPv6 /64, ns a pair",
		note: "65 536 addresses of the /64 can be had, the rest is taken: one window in its middle, and 256 windows of 256 addresses spread over all of it. " +
			"No peer of this run can do a /64.",
		head: churnHeads("/64, one window", "/64, spread"),
		rows: []row{
			lowest,
			next,
			locked,
			nextFit,
			of("lowest first / limit", lowest, locked),
			of("next fit / its limit", next, nextFit),
		},
	}
}

func prefixTable() table {
	subs := churns("8in24", "8in27")
	lowest, next := series(
		"Cadastre index, lowest first",
		"ours",
		"Prefix/lowest",
		subs,
	), series(
		"Cadastre index, next fit",
		"ours",
		"Prefix/next",
		subs,
	)
	locked, nextFit := wideLimits(
		"*limit: bitmap tree, mutex*",
		"lowest",
		subs,
	), wideLimits(
		"*limit: the same, next fit*",
		"next",
		subs,
	)
	cilium := series("Cilium `cidralloc`", "cilium", "CIDRAlloc", subs)
	return table{
		title: "The next prefix taken and a random older one given back, ns a pair",
		note:  "Node CIDRs: /24 out of 10.0.0.0/8 (65 536), and /27 (524 288).",
		head:  churnHeads("/8 in /24", "/8 in /27"),
		rows: []row{
			lowest,
			next,
			locked,
			nextFit,
			series("Kubernetes `cidrset`", "k8s", "CIDRSet", subs),
			cilium,
			of(
				"lowest first / limit",
				lowest,
				locked,
			),
			of("next fit / its limit", next, nextFit),
			of("lowest first / Cilium", lowest, cilium),
		},
	}
}

func ownerTable() table {
	subs, at50 := churns("24", "16"), "/16/churn/50"
	book, limit := series(
		"Cadastre ledger, cool-down 0",
		"ours",
		"Ledger",
		subs,
	), series(
		"*limit: tree, mutex, two-way index*",
		"limits",
		"Owned",
		subs,
	)
	agent := series("Cilium 1.15 agent, host scope", "cilium115", "HostScope", subs)
	return table{
		title: "The same with the owner recorded, ns a pair",
		note: "The ledger is without a journal, as nothing of the peers is durable either. It is given a whole lease key (network, 64-digit container ID, interface) and the pod's namespace, " +
			"name and UID, new ones for each claim; making these is included, and a row of its own. The limit's owner is an integer, Cilium's a name of 20 bytes.",
		head: append(churnHeads("/24", "/16"), "allocs"),
		rows: []row{
			book.and(allocs("ours", "Ledger"+at50)),
			series(
				"Cadastre ledger, cool-down 60 s",
				"ours",
				"LedgerCoolDown",
				subs,
			).and(
				allocs("ours", "LedgerCoolDown"+at50),
			),
			{
				"making the names",
				append(make([]cell, len(subs)-1), cell{at("ours", "Names"), plain}, allocs("ours", "Names")),
			},
			limit.and(allocs("limits", "Owned"+at50)),
			agent.and(allocs("cilium115", "HostScope"+at50)),
			of("ledger / limit", book, limit),
			of("ledger / Cilium agent", book, agent),
		},
	}
}

func otherOpsTable() table {
	var subs []string
	for _, op := range []string{"full", "specific/50", "fill", "drain"} {
		subs = append(subs, "24/"+op, "16/"+op)
	}
	index, locked := series(
		"Cadastre index",
		"ours",
		"Index/lowest",
		subs,
	), series(
		"*limit: bitmap tree, mutex*",
		"limits",
		"Locked",
		subs,
	)
	return table{
		title: "A full pool's answer, a named address, fill and drain, ns",
		note: "\"full\" is a call that must fail; \"named\" takes an address that the caller names and gives it back, at 50 %; \"fill\" and \"drain\" are per address of the whole pool, " +
			"given back in random order. The ledger's answer says where the addresses are (held, cooling, quarantined, reserved).",
		head: []string{"full /24", "/16", "named /24", "/16", "fill /24", "/16", "drain /24", "/16"},
		rows: []row{
			index,
			series("Cadastre ledger", "ours", "Ledger", subs),
			locked,
			series("*limit: with owners*", "limits", "Owned", subs).without(2, 3),
			series(
				"Cilium `ipallocator`",
				"cilium",
				"IPAllocator",
				subs,
			),
			series("Kubernetes service bitmap", "k8s", "ServiceBitmap", subs),
			series(
				"moby, serial",
				"moby",
				"DefaultIPAM/serial",
				subs,
			),
			series("Cilium 1.15 agent", "cilium115", "HostScope", subs),
			of("index / limit", index, locked),
		},
	}
}

func parallelTable() table {
	subs := []string{"50/parallel@1", "50/parallel@2", "99/parallel@1", "99/parallel@2"}
	return table{
		title: "One and two goroutines, ns a pair",
		note:  "A /16; GOMAXPROCS is the number of goroutines. Lower is more throughput.",
		head:  []string{"50 %, one", "two", "99 %, one", "two"},
		rows: []row{
			series("Cadastre ledger", "ours", "LedgerParallel", subs),
			series(
				"*limit: with owners*",
				"limits",
				"Parallel/owned",
				subs,
			),
			series("*limit: bitmap tree, mutex*", "limits", "Parallel/locked", subs),
			series(
				"Cilium `ipallocator`",
				"cilium",
				"IPAllocatorParallel",
				subs,
			),
			series("Kubernetes service bitmap", "k8s", "ServiceBitmapParallel", subs),
			series(
				"moby, serial",
				"moby",
				"DefaultIPAMParallel",
				subs,
			),
			series("Cilium 1.15 agent", "cilium115", "HostScopeParallel", subs),
		},
	}
}

func memoryTable() table {
	heap := func(name, pkg, bench, with string) row {
		return row{
			name,
			[]cell{{at(pkg, bench, "heapB/item"), plain}, {constant(0), func(float64) string { return with }}},
		}
	}
	return table{
		title: "Live heap, bytes an address",
		note:  "50 000 leases where owners are kept, a million addresses elsewhere (262 144 for the limit).",
		head:  []string{"bytes", "what is kept"},
		rows: []row{
			heap("Cadastre ledger, claimed", "ours", "LedgerMemory/claimed", "key, pod, state, times"),
			heap("Cadastre ledger, loaded at start", "ours", "LedgerMemory/loaded", "the same"),
			heap("Cadastre address manager", "ours", "ManagerMemory/16", "a name of 20 bytes, state, times"),
			heap("*limit: with owners*", "limits", "Memory/owned", "8-byte owner"),
			heap("Cilium 1.15 agent", "cilium115", "HostScopeMemory/16", "a name of 20 bytes"),
			heap("Cadastre index", "ours", "IndexMemory/12", "free or not"),
			heap("*limit: bitmap tree*", "limits", "Memory/tree", "free or not"),
			heap("Cilium `ipallocator`", "cilium", "IPAllocatorMemory/12", "free or not"),
			heap("Kubernetes service bitmap", "k8s", "ServiceBitmapMemory/12", "free or not"),
		},
	}
}
